"""cotenant pairs: the most harmful first, by name where one is known, for people and for programs."""

from __future__ import annotations

import json

import pytest

from tests.support.cli_cluster import CommandLine
from tests.support.fake_services import FakePredictor, FakeScheduler


def test_programs_get_the_most_harmful_pair_first(cotenant: CommandLine, predictor: FakePredictor) -> None:
    found = json.loads(cotenant("pairs", "-o", "json", "--device", "cpu-standin").out)["pairs"]
    assert [pair["slowdown_ratio"] for pair in found] == [0.8, 0.1]
    assert found[0]["times_measured"] == 3
    assert predictor.seen[-1].device == "cpu-standin"  # type: ignore[attr-defined]
    limited = cotenant("pairs", "-o", "name", "--limit", "1").out
    assert limited == f"{'cd' * 32}/{'ab' * 32}\n"


def test_jobs_are_named_where_the_scheduler_knows_them(
    cotenant: CommandLine, scheduler: FakeScheduler, predictor: FakePredictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler.jobs["job-000001"].job_key = "ab" * 32
    monkeypatch.setenv("COLUMNS", "120")
    assert "cnn-waiting x16" in cotenant("pairs").out


def test_a_pair_says_how_the_two_shared_the_device(
    cotenant: CommandLine, predictor: FakePredictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert [line.rstrip().endswith("cpu-standin MPS") for line in cotenant("pairs").out.splitlines()[1:]] == [
        False,
        True,
    ]
    assert json.loads(cotenant("pairs", "-o", "json").out)["pairs"][1]["sharing"] == "DEVICE_SHARING_MPS"


def test_without_a_scheduler_keys_stand_for_names(cotenant: CommandLine, predictor: FakePredictor) -> None:
    outcome = cotenant("pairs", "--scheduler", "127.0.0.1:1", "--timeout", "1")
    assert outcome.code == 0
    assert "abababab x16" in outcome.out
