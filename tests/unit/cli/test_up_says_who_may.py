"""`up` runs any command of its own account, and says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotenant.cli.up_command import StartLines, reach_lines
from cotenant.local_cluster import AgentOptions, LocalCluster, Program
from tests.support.cli_cluster import CommandLine


def cluster_of(folder: Path, options: AgentOptions) -> LocalCluster:
    cluster = LocalCluster(state_dir=folder, policy="fifo", agents=(options,))
    cluster.programs["scheduler"] = Program("scheduler", "serve-scheduler", [], folder, address="127.0.0.1:4711")
    return cluster


def test_it_states_who_gets_in_and_warns_as_root(tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path, AgentOptions(allowed_directories=(tmp_path / "work",)))
    [(line, style)] = reach_lines(cluster, user_id=12_345_678)
    said = "only user-12345678 gets in, by a private socket or with a token; jobs run any program as user-12345678, in "
    assert (line, style) == (f"{said}{tmp_path}/work", "")
    [(warning, style), (remedy, _)] = reach_lines(cluster, user_id=0)
    assert warning.startswith("warning: only root gets in")
    assert "AS ROOT" in warning
    assert style
    assert "ordinary user" in remedy


@pytest.mark.parametrize("any_command", [True, False])
def test_only_a_cluster_of_its_owner_runs_any_command(any_command: bool, tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path, AgentOptions(any_command=any_command))
    arguments = cluster._agent(cluster.agents[0]).arguments
    assert ("--allow-any-command" in arguments) is any_command


def test_up_starts_its_agent_with_any_command(cotenant: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[LocalCluster] = []
    monkeypatch.setattr("cotenant.cli.up_command._serve", started.append)
    assert cotenant("up", "--predictor-port", "0", "--scheduler-port", "0").code == 0
    assert [agent.any_command for agent in started[0].agents] == [True]


@pytest.mark.parametrize("flags", [[], ["--replace-missing-policy"]])
def test_up_lets_its_scheduler_replace_a_missing_policy_where_that_is_asked_for(
    cotenant: CommandLine, monkeypatch: pytest.MonkeyPatch, flags: list[str]
) -> None:
    started: list[LocalCluster] = []
    monkeypatch.setattr("cotenant.cli.up_command._serve", started.append)
    monkeypatch.setattr(LocalCluster, "target", lambda *_: "unix:there")
    assert cotenant("up", "--predictor-port", "0", "--scheduler-port", "0", *flags).code == 0
    arguments = started[0]._scheduler(0).arguments
    assert [one for one in arguments if one == "--replace-missing-policy"] == flags


def test_up_says_what_it_starts_why_that_takes_long_and_how_long_it_took(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    instants_ms = iter((0, 61_000, 61_000, 62_400))
    monkeypatch.setattr("cotenant.system_clock.steady_ms", lambda: next(instants_ms))
    lines = StartLines(is_first=True)
    lines.begin("predictor")
    lines.begin("scheduler")
    lines.end()
    assert capsys.readouterr().err.splitlines() == [
        "starting predictor (its first start: up to two minutes where it has to learn)",
        "  predictor ready after 61 s",
        "starting scheduler",
        "  scheduler ready after 1 s",
    ]
