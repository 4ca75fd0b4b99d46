"""One JSON object for all benchmarks, and one failure does not hide the others."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping

import pytest

from benchmarks import run_all


def measure_two() -> Mapping[str, object]:
    return {"answer_ms": 2}


def measure_nothing() -> Mapping[str, object]:
    raise RuntimeError("no figures today")


def test_figures_are_kept_next_to_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    figures, failed = run_all.run_benchmarks({"broken": measure_nothing, "two": measure_two})
    assert (figures, failed) == ({"two": {"answer_ms": 2}}, ["broken"])
    assert "no figures today" in capsys.readouterr().err


def test_standard_output_is_one_json_object_about_a_named_machine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_all, "find_benchmarks", lambda: {"two": measure_two})
    assert run_all.main([]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["benchmarks"] == {"two": {"answer_ms": 2}}
    assert set(report["machine"]) == {"python", "system", "processor", "cores", "load_1_min"}


def test_an_unknown_name_is_answered_with_the_known_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_all, "find_benchmarks", lambda: {"two": measure_two})
    assert run_all.main(["three"]) == 2
    assert capsys.readouterr().err == "no benchmark three; there are: two\n"


def test_every_benchmark_runs_without_an_argument() -> None:
    needy = {
        name: [one.name for one in inspect.signature(measure).parameters.values() if one.default is one.empty]
        for name, measure in run_all.find_benchmarks().items()
    }
    assert {name: names for name, names in needy.items() if names} == {}
