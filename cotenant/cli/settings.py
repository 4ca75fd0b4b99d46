"""Settings of the command: flags > COTENANT_* > the user's file > defaults, each with its origin."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from cotenant.access.local_access import private_socket
from cotenant.cli.formats import OutputFormat
from cotenant.client import ChannelOptions
from cotenant.local_state import VARIABLE, local_state_dir
from cotenant.option_types import FiniteRange
from cotenant.program_settings import ProgramSettings, Resolved, setting
from cotenant.tls_settings import tls_setting

TIMEOUT_MIN_S, TIMEOUT_MAX_S = 0.1, 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What every verb needs to know."""

    output: str = setting(
        "table",
        "Output format.",
        kind=click.Choice([output.value for output in OutputFormat]),
        flags=("-o", "--output"),
    )
    scheduler: str = setting("127.0.0.1:7071", "Where the scheduler listens.", metavar="HOST:PORT")
    predictor: str = setting("127.0.0.1:7070", "Where the predictor listens.", metavar="HOST:PORT")
    timeout_s: float = setting(
        15.0,
        "Deadline of one question to a service.",
        kind=FiniteRange(TIMEOUT_MIN_S, TIMEOUT_MAX_S),
        flags=("--timeout",),
        metavar="SECONDS",
    )
    device: str = setting("cpu-standin", "Device type that predictions are for.")
    tls_ca_file: Path | None = tls_setting("tls_ca_file")
    tls_certificate_file: Path | None = tls_setting("tls_certificate_file")
    tls_key_file: Path | None = tls_setting("tls_key_file")
    token_file: Path | None = tls_setting("token_file")
    state_dir: str = setting("", "Where `cotenant up` keeps the data of its services; empty = the usual folder.")

    def channel_options(self, address: str) -> ChannelOptions:
        """Returns how to reach a service at `address`: by its socket if `up` of this account started it."""
        is_plain = self.tls_ca_file is None and self.token_file is None
        socket = private_socket(state_folder(self), address) if is_plain else ""
        return ChannelOptions(
            address=socket or address,
            tls_ca_file=self.tls_ca_file,
            tls_certificate_file=self.tls_certificate_file,
            tls_key_file=self.tls_key_file,
            token_file=self.token_file,
        )


SETTINGS = ProgramSettings(Settings, prefix="COTENANT_")


def config_file_path(environment: Mapping[str, str]) -> Path:
    """Returns where the user's file lies: $XDG_CONFIG_HOME/cotenant/config.toml."""
    home = environment.get("XDG_CONFIG_HOME") or str(Path(environment.get("HOME", "~")).expanduser() / ".config")
    return Path(home) / "cotenant" / "config.toml"


def state_folder(settings: Settings) -> Path:
    """Returns where `cotenant up` keeps its data, and where every other verb looks for it."""
    return Path(settings.state_dir).expanduser() if settings.state_dir else local_state_dir(os.environ)


def point_at_state() -> None:
    """Sets where `cotenant up` keeps its data, for the programs that this process starts or becomes.

    Raises:
        InputError: The configuration file is wrong.
    """
    os.environ[VARIABLE] = str(state_folder(resolve_settings({}).settings))


def resolve_settings(
    flags: Mapping[str, object], environment: Mapping[str, str] | None = None, file: Path | None = None
) -> Resolved[Settings]:
    """Merges the four sources.

    Args:
        flags: Setting name -> value; None = flag not given.
        environment: Environment variables; None = those of this process.
        file: Configuration file; None = the user's, which need not be there.

    Raises:
        InputError: A file that cannot be read, an unknown setting in it, or a value that cannot be.
    """
    environment = os.environ if environment is None else environment
    path = config_file_path(environment) if file is None else file
    return SETTINGS.resolve(flags, environment, path, must_exist=False)
