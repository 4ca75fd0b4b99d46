"""`up` refuses what it would fail for before a program is started, and leaves nothing behind."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from cotenant.local_cluster import LocalCluster
from tests.support.cli_cluster import CommandLine


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[LocalCluster]:
    """The clusters that would have been started."""
    clusters: list[LocalCluster] = []
    monkeypatch.setattr("cotenant.cli.up_command._serve", clusters.append)
    return clusters


@pytest.mark.parametrize("service", ["predictor", "scheduler"])
def test_a_port_that_another_program_has_is_refused_with_the_flag_to_change(
    cotenant: CommandLine, started: list[LocalCluster], service: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        ports = {"predictor": "0", "scheduler": "0", service: port}
        flags = [word for name, number in ports.items() for word in (f"--{name}-port", number)]
        outcome = cotenant("up", "--standin-cores", "0", *flags)
    assert (outcome.code, started) == (2, [])
    assert f"has port {port} of this machine" in outcome.err
    assert f"--{service}-port 0" in outcome.err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--predictor-port", "1", "--scheduler-port", "1"), "port 1 is named twice"),
        (("--policy", "horos"), "there is no policy 'horos'\n  remedy: did you mean 'horus'?"),
        (("--policy", ""), "there is no policy ''"),
        (("--state-dir", ""), "the name of a folder is empty"),
        (("--standin-cores", ""), "'' is not a list of cores"),
    ],
)
def test_a_wrong_or_empty_value_is_no_default(
    cotenant: CommandLine, started: list[LocalCluster], tmp_path: Path, flags: tuple[str, ...], words: str
) -> None:
    state = () if "--state-dir" in flags else ("--state-dir", str(tmp_path / "kept"))
    outcome = cotenant("up", "--predictor-port", "0", "--scheduler-port", "0", *state, *flags)
    assert (outcome.code, started) == (2, [])
    assert words in outcome.err
    assert not (tmp_path / "kept").exists()


def test_any_free_ports_and_an_installed_policy_are_right(cotenant: CommandLine, started: list[LocalCluster]) -> None:
    flags = ("--standin-cores", "0", "--predictor-port", "0", "--scheduler-port", "0")
    assert cotenant("up", *flags, "--policy", "horus").code == 0
    assert [cluster.policy for cluster in started] == ["horus"]
