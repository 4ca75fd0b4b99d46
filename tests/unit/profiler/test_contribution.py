"""A contribution: predicted before measured, resumable, anonymous, and importable as rows of the schema."""

from __future__ import annotations

import getpass
import json
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from cotenant_profiler import contribution as module
from cotenant_profiler.bench import Measurement
from cotenant_profiler.contribution import (
    NETWORKS,
    PAIRS,
    TIME_MS_MAX,
    Contribution,
    QuestionsByName,
    choose_networks,
    fill,
    open_contribution,
    report,
)
from cotenant_profiler.contribution_time import TimePlan
from cotenant_profiler.errors import JournalError, WorkerError

from predictor_service.commands.program import program
from predictor_service.errors import TrainingDataError
from predictor_service.importers.catalogue import import_set
from tests.support.calibrations import calibration

FOUR = ["lenet", "lstm", "mlp", "gcn_small"]


class FakeClock:
    """Goes on when something is done, and only then."""

    def __init__(self) -> None:
        self.ms = 0.0

    def __call__(self) -> int:
        return round(1e6 * self.ms)


class FakeBench:
    """Measures nothing; ends the program at the call that a test names, and takes the time that a test states.

    What would take longer than its limit is given up then, as by the bench.
    """

    def __init__(
        self,
        interrupted_at: int = -1,
        clock: FakeClock | None = None,
        *,
        foreign_ratio: float = 0.0,
        **taken_ms: float,
    ) -> None:
        self.calls: list[str] = []
        self.limits_ms: list[float] = []
        self.closed = 0
        self._interrupted_at = interrupted_at
        self._clock = clock or FakeClock()
        self._taken_ms = taken_ms
        self._foreign_ratio = foreign_ratio

    def __enter__(self) -> FakeBench:
        return self

    def __exit__(self, *_: object) -> None: ...

    def limit(self, time_ms: float) -> None:
        self.limits_ms.append(time_ms)

    def close(self) -> None:
        self.closed += 1

    def measure_memory(self, job: Any, method: object) -> Measurement:
        return Measurement(figures=({"peak_bytes": 1e8, "reserved_bytes": 0},))

    def measure(self, loads: Any, references: Any, method: object) -> Measurement:
        if len(self.calls) == self._interrupted_at:
            raise KeyboardInterrupt
        self.calls.append("+".join(load.job.architecture for load in loads))
        needed_ms = self._taken_ms.get(self.calls[-1], self._taken_ms.get("each", 0.0))
        self._clock.ms += min(needed_ms, self.limits_ms[-1])
        if needed_ms > self.limits_ms[-1]:
            raise WorkerError("no answer")
        figures = {"step_ms_mean": 5.0 * len(loads), "utilization_ratio": 0.9, "steps": 100.0}
        return Measurement(
            figures=(figures,) * len(loads),
            references_ms=((5.0, 5.0),) * len(loads),
            foreign_ratio=self._foreign_ratio,
        )


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "choose_networks", lambda found: list(FOUR))
    monkeypatch.setattr(
        module, "export_graph", lambda name: type("Graph", (), {"content": name.encode(), "sha256": name[0] * 64})()
    )


def run(
    monkeypatch: pytest.MonkeyPatch,
    path: Path,
    bench: FakeBench,
    *,
    whole_ms: float = 600_000,
    clock: FakeClock | None = None,
    export_ms: float = 0.0,
) -> tuple[Contribution, list[str]]:
    clock = clock or FakeClock()
    monkeypatch.setattr(module, "Bench", lambda device, group: bench)
    events: list[str] = []
    found = open_contribution(path, calibration())

    def listen(event: str) -> None:
        events.append(event)
        if event.startswith("predicting"):
            clock.ms += export_ms

    def predict(asked: QuestionsByName, time_ms_max: float) -> Mapping[str, Any]:
        return {name: {"step_ms": {"value": 5.0}, "graph": graph.decode()} for name, (graph, _) in asked.items()}

    plan = TimePlan.start(clock, whole_ms)
    fill(found, object(), predict=predict, listener=listen, plan=plan)  # type: ignore[arg-type]
    return found, events


def test_everything_is_predicted_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found, events = run(monkeypatch, tmp_path / "mine.json", FakeBench())
    kinds = [event.split()[0] for event in events]
    assert kinds == ["predicting"] * 4 + ["measuring"] * (4 + 6)
    assert found.is_complete


def test_an_interrupted_contribution_keeps_what_is_done_and_goes_on_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "mine.json"
    with pytest.raises(KeyboardInterrupt):
        run(monkeypatch, path, FakeBench(interrupted_at=2))
    kept = json.loads(path.read_text())
    assert list(kept["predicted"]) == sorted(FOUR)
    assert len(kept["measured"]) == 2
    again = FakeBench()
    found, events = run(monkeypatch, path, again)
    assert not [event for event in events if event.startswith("predicting")]
    assert len(again.calls) == 2 + 6
    assert found.is_complete
    assert json.loads(path.read_text())["campaign"] == kept["campaign"]


def test_nothing_is_begun_after_the_time_is_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found, events = run(monkeypatch, tmp_path / "mine.json", FakeBench(), whole_ms=-1)
    assert events == []
    assert not found.is_complete


@pytest.fixture
def all_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "choose_networks", choose_networks)


@pytest.mark.usefixtures("all_networks")
def test_predictions_that_are_slow_leave_networks_and_pairs_their_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock = FakeClock()
    bench = FakeBench(clock=clock, each=20_000)
    found, events = run(monkeypatch, tmp_path / "mine.json", bench, clock=clock, export_ms=30_000)
    predicted = [event for event in events if event.startswith("predicting")]
    assert 7 <= len(predicted) < NETWORKS
    assert len(found.content["measured"]) == len(predicted)
    assert len(found.content["paired"]) == PAIRS
    assert clock.ms <= TIME_MS_MAX
    assert f"{len(predicted)} of {NETWORKS} networks and {PAIRS} pairs" in report(found)
    assert "left out for want of time: " in report(found)


@pytest.mark.usefixtures("all_networks")
def test_networks_that_are_slow_leave_pairs_a_quarter_of_the_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock = FakeClock()
    path = tmp_path / "mine.json"
    found, _ = run(monkeypatch, path, FakeBench(clock=clock, each=50_000), clock=clock)
    assert 8 <= len(found.content["measured"]) < NETWORKS
    assert 2 <= len(found.content["paired"]) < PAIRS
    assert clock.ms <= TIME_MS_MAX
    for _ in range(3):
        found, _ = run(monkeypatch, path, FakeBench(clock=clock, each=50_000), clock=clock)
    assert found.is_complete
    assert "left out" not in report(found)


@pytest.mark.usefixtures("all_networks")
def test_a_network_that_does_not_end_costs_itself_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clock = FakeClock()
    stuck = choose_networks(calibration())[1]
    bench = FakeBench(-1, clock, each=10_000, **{stuck: 1e9})
    found, _ = run(monkeypatch, tmp_path / "mine.json", bench, clock=clock)
    measured = found.content["measured"]
    assert [name for name, row in measured.items() if row["status"] == "failed"] == [stuck]
    assert len(measured) == NETWORKS
    assert len(found.content["paired"]) == PAIRS
    assert bench.closed == 1
    assert f"not in their time: {stuck}" in report(found)
    assert clock.ms <= TIME_MS_MAX


@pytest.mark.usefixtures("all_networks")
def test_a_file_of_before_whose_graphs_have_no_hash_is_gone_on_with(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "mine.json"
    run(monkeypatch, path, FakeBench(clock=(clock := FakeClock()), each=50_000), clock=clock)
    content = json.loads(path.read_text())
    del content["graphs"]
    path.write_text(json.dumps(content))
    found, _ = run(monkeypatch, path, FakeBench())
    assert found.is_complete


def test_the_file_names_no_machine_and_no_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    run(monkeypatch, path, FakeBench())
    text = path.read_text()
    content = json.loads(text)
    assert "No host name" in content["privacy"]
    assert content["calibration"]["measured_at_ms"] % 86_400_000 == 0
    assert str(tmp_path) not in text
    values = set(strings(content))
    assert not {socket.gethostname(), getpass.getuser(), str(Path.home())} & values


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from strings(name)
            yield from strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from strings(each)


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"schema": "other"}', '{"calibration": 3}'])
def test_something_else_is_not_gone_on_with(content: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(content)
    with pytest.raises(JournalError, match="name another file"):
        open_contribution(path, calibration())
    assert path.read_text() == content


def test_the_contribution_of_another_device_is_not_gone_on_with(tmp_path: Path) -> None:
    open_contribution(tmp_path / "mine.json", calibration())
    with pytest.raises(JournalError, match="another device"):
        open_contribution(tmp_path / "mine.json", calibration(device="NVIDIA H200"))


def test_a_contributed_file_is_imported_as_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    run(monkeypatch, path, FakeBench())
    imported = import_set("contributed", path)
    assert [row.architecture for row in imported.solo] == sorted(FOUR)
    assert len(imported.pairs) == 12
    assert {row.slowdown_ratio for row in imported.pairs} == {1.0}
    assert {row.victim_job_key for row in imported.pairs} <= {row.job_key for row in imported.solo}
    output = tmp_path / "set"
    done = CliRunner().invoke(program, ["datasets", "import", "contributed", str(path), "-o", str(output)])
    assert done.exit_code == 0, done.output
    assert CliRunner().invoke(program, ["datasets", "check", str(output)]).exit_code == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": "other/1"}, "no contribution"),
        ({"measured": []}, "lacks measured"),
        ({"measured": {"a": 7}}, "text cells"),
        ({"measured": {"a": {"batch": "-1"}}}, "batch"),
        ({"paired": {"a+b": [{"victim": 3}]}}, "text cells"),
        ({"paired": {"a+b": 7}}, "text cells"),
    ],
)
def test_a_hostile_contribution_is_refused_by_name(
    change: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "mine.json"
    run(monkeypatch, path, FakeBench())
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(TrainingDataError, match=said):
        import_set("contributed", path)


@pytest.mark.parametrize("part", ["measured", "paired"])
def test_a_refused_row_is_named_with_its_file(part: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    run(monkeypatch, path, FakeBench())
    path.write_text(json.dumps(json.loads(path.read_text()) | {part: {"vgg": 7}}))
    with pytest.raises(TrainingDataError, match=r"mine\.json, vgg: .*text cells"):
        import_set("contributed", path)


def test_what_was_measured_under_the_load_of_others_teaches_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "mine.json"
    found, _ = run(monkeypatch, path, FakeBench(foreign_ratio=0.5))
    assert {row["status"] for row in found.content["measured"].values()} == {"ok"}
    imported = import_set("contributed", path)
    assert {*(row.status for row in imported.solo), *(row.status for row in imported.pairs)} == {"rejected"}
    assert "others used the device during 4 of them: these teach nothing" in report(found)


def test_an_absent_or_binary_contribution_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingDataError, match="cannot be read"):
        import_set("contributed", tmp_path / "absent.json")
    (tmp_path / "binary.json").write_bytes(b"\xff\x00")
    with pytest.raises(TrainingDataError, match="cannot be read"):
        import_set("contributed", tmp_path / "binary.json")
    (tmp_path / "empty").mkdir()
    with pytest.raises(TrainingDataError, match=r"no .json file"):
        import_set("contributed", tmp_path / "empty")


def test_twenty_different_networks_are_chosen_for_either_kind_of_device() -> None:
    for device in ("cpu-standin", "NVIDIA H200"):
        assert len(set(choose_networks(calibration(device=device)))) == 20
