from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from cotenant.client_errors import InputError
from cotenant.command_run import run_command
from cotenant_agent.commands import EXIT_CODES, cli
from cotenant_agent.errors import DriverMissingError
from cotenant_agent.scheduler_link import LinkSettings, Pauses, open_channel
from cotenant_agent.settings import SETTINGS, AgentSettings
from tests.support.cases import for_each

BASE = {"state_dir": "/tmp/x", "nvml": True}


def settings_of(*arguments: str, environment: Mapping[str, str] | None = None) -> AgentSettings:
    """What the command line makes of flags and variables."""
    found: list[AgentSettings] = []
    command = click.command()(SETTINGS.options()(lambda settings: found.append(settings)))
    done = CliRunner().invoke(command, arguments, env=dict(environment or {}), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return found[0]


def test_flags_win_over_variables_over_the_file_over_defaults(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text('[agent]\nrack_id = "file"\nnode_id = "file"\nsample_ms = 60\nstate_dir = "/x"\nnvml = true\n')
    variables = {"COTENANT_AGENT_NODE_ID": "variable", "COTENANT_AGENT_SAMPLE_MS": "70"}
    settings = settings_of("--config", str(file), "--sample-ms", "80", environment=variables)
    assert (settings.rack_id, settings.node_id, settings.sample_ms) == ("file", "variable", 80)
    assert settings.log_limit_bytes == AgentSettings().log_limit_bytes


def test_lists_may_be_repeated_or_separated_by_commas() -> None:
    directories = ("--allow-directory", "/a,/b", "--allow-directory", "/c")
    settings = settings_of("--state-dir", "/x", "--standin-cores", "0", *directories)
    assert settings.standin_cores == (0,)
    assert settings.allow_directory == ("/a", "/b", "/c")


@for_each(
    ("flags", "reason"),
    [
        ({"nvml": True}, "state directory"),
        ({"state_dir": "/x"}, "no devices"),
        ({**BASE, "node_id": "a/b"}, "node_id"),
        ({**BASE, "standin_cores": "99999"}, "may not run on"),
        ({**BASE, "standin_cores": "x"}, "standin_cores"),
        ({**BASE, "node_id": "n" * 64}, "node_id"),
        ({**BASE, "node_id": "k\u00f6ln"}, "node_id"),
        ({**BASE, "sample_ms": "1"}, "sample_ms from flag: 1 is not in the range x>=50"),
        ({**BASE, "metrics_address": "127.0.0.1:70000"}, "not an address"),
        ({**BASE, "metrics_address": "0.0.0.0:7"}, "plain HTTP"),
        ({**BASE, "checkpoint_interval_ms": "-1"}, "checkpoint_interval_ms"),
        ({**BASE, "tls_key_file": "k"}, "belong together"),
        ({**BASE, "insecure": "perhaps"}, "insecure"),
    ],
)
def test_a_bad_setting_is_named(flags: dict[str, object], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        SETTINGS.load(flags, {})


def test_unknown_keys_of_a_file_are_named(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text("schedulr = 'x'\n")
    with pytest.raises(InputError, match="schedulr"):
        SETTINGS.load({}, {}, file)


@pytest.mark.parametrize("content", [b"node_id = '\xff'", b"seed = " + b"9" * 5_000, b"x = " + b"[" * 5_000])
def test_a_file_that_cannot_be_read_is_named(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"agent\.toml"):
        SETTINGS.load({}, {}, file)


def test_a_scheduler_elsewhere_needs_tls_or_a_word() -> None:
    with pytest.raises(InputError, match="not on this machine") as refused:
        open_channel(LinkSettings(scheduler="10.0.0.1:7071"))
    assert "--tls-ca-file" in refused.value.remedy
    with pytest.raises(InputError, match=r"cannot read /nowhere\.pem"):
        open_channel(LinkSettings(scheduler="10.0.0.1:7071", tls_ca_file=Path("/nowhere.pem")))


def test_pauses_grow_to_a_bound_and_repeat_with_their_seed() -> None:
    first, second = Pauses(1), Pauses(1)
    pauses = [first.next_s() for _ in range(12)]
    assert pauses == [second.next_s() for _ in range(12)]
    assert all(0.1 <= pause <= 5.0 for pause in pauses)
    assert pauses[-1] >= 2.5
    first.reset()
    assert first.next_s() <= 0.2


def run(*arguments: str) -> int:
    return run_command(cli, arguments, exit_codes=EXIT_CODES)


def test_the_command_line_names_what_is_wrong_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("run", "--state-dir", "/tmp/x") == 2
    assert capsys.readouterr().err.startswith("error: no devices are offered; give --nvml, or --standin-cores 0 ")


def test_a_machine_without_a_gpu_names_what_can_stand_in(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def find_no_driver(settings: AgentSettings) -> None:
        raise DriverMissingError("cannot start NVML: not found")

    monkeypatch.setattr("cotenant_agent.commands.build_agent", find_no_driver)
    assert run("run", "--nvml", "--state-dir", str(tmp_path), "--scheduler", "127.0.0.1:1") == 1
    expected = (
        "error: cannot start NVML: not found; install the driver of a GPU of NVIDIA (those of other makers, and on the "
        "chip of their host, are not offered), or let cores stand in: --standin-cores 0,1\n"
    )
    assert capsys.readouterr().err == expected


def test_a_probe_prints_what_was_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("probe", "-o", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["standin_cores"]
    assert "shim_lease" in found["enforcements"]
