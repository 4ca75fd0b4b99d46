"""What `up` would fail for is found before its predictor learns, which takes up to two minutes."""

from __future__ import annotations

import errno
import socket

from cotenant.cli.policy_commands import installed_policies
from cotenant.client_errors import InputError
from cotenant.default_policy import DEFAULT_POLICY
from cotenant.nearest_name import did_you_mean

LOOPBACK = "127.0.0.1"


def refuse_taken_ports(*, predictor_port: int, scheduler_port: int) -> None:
    """Looks whether both ports can be had; 0 = any free one.

    Raises:
        InputError: They are the same, or another program listens on one.
    """
    if predictor_port == scheduler_port != 0:
        raise InputError(f"port {predictor_port} is named twice", remedy="one each, or 0 for any free one")
    for service, port in (("predictor", predictor_port), ("scheduler", scheduler_port)):
        if port and _is_taken(port):
            raise InputError(
                f"another program, or another user's `cotenant up`, has port {port} of this machine",
                remedy=f"--{service}-port 0 takes any free one; `cotenant up` then says what to export",
            )


def refuse_unknown_policy(name: str) -> None:
    """Looks whether a policy is installed here.

    Raises:
        InputError: It is not.
        ProgramError: The installed ones cannot be listed.
    """
    if name == DEFAULT_POLICY:  # spares the start of a program
        return
    names = [policy.name for policy in installed_policies()[0]]
    if name not in names:
        raise InputError(f"there is no policy {name!r}", remedy=did_you_mean(name, names))


def _is_taken(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As a server that starts again: connections that are not over yet do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False
