"""How much work a question is: models asked and features computed, counted instead of timed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from cotenant.job_settings import JobSettings
from predictor_service.features.job_settings import OPTIMIZER_SLOTS
from predictor_service.inference import job_work, measured_graph
from predictor_service.inference.predictor import Predictor
from predictor_service.inference.records import JobQuestion
from predictor_service.registry.onnx_model import OnnxModel
from predictor_service.selection.nearness import Nearness
from predictor_service.selection.targets import MEMORY, SLOWDOWN
from tests.support.measured_dataset import DEVICE, graphs
from tests.support.predictor_service import open_predictor

GRAPH = graphs()["medium"]


class Work:
    """Counts what is done while a predictor answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._done: Counter[str] = Counter()
        for owner, name in (
            (OnnxModel, "_run"),
            (Nearness, "novelty"),
            (job_work, "tabulate_work"),
            (measured_graph, "time_operators"),
            (measured_graph, "tabulate_graph"),
        ):
            monkeypatch.setattr(owner, name, self._counted(name, getattr(owner, name)))

    def _counted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def count(*arguments: Any) -> Any:
            self._done[name] += 1
            return call(*arguments)

        return count

    def of(self, predictor: Predictor, batch: int, **settings: Any) -> dict[str, int]:
        """What one question was, by name."""
        self._done.clear()
        predictor.predict_job(
            JobQuestion(settings=JobSettings(global_batch_size=batch, **settings), device=DEVICE, onnx_graph=GRAPH)
        )
        return dict(self._done)


def models_of(predictor: Predictor, *left_out: str) -> int:
    """Models that know jobs alone on the device, and those of the spread of their errors."""
    assert predictor.version is not None
    records = [target.record for target in predictor.version.devices[DEVICE].values()]
    return sum(2 if record.spread else 1 for record in records if record.target not in {SLOWDOWN.name, *left_out})


def novelty_of(predictor: Predictor) -> int:
    """Questions for nearness: one at all batches of a curve, one at the two around a share."""
    assert predictor.version is not None
    return 2 if any(target.record.near for target in predictor.version.devices[DEVICE].values()) else 0


def vectors_of(predictor: Predictor, optimizer: str) -> int:
    """Vectors of a job: its own, and those by the optimizer that models were taught where that is another one."""
    assert predictor.version is not None
    models = predictor.version.devices[DEVICE].values()
    asked = {model.asked_slots for model in models if model.asked_slots is not None}
    return len({OPTIMIZER_SLOTS[optimizer]} | asked)


def test_a_new_job_asks_every_model_once_and_computes_its_features_once(monkeypatch: pytest.MonkeyPatch) -> None:
    predictor, work = open_predictor(), Work(monkeypatch)
    predictor.keep_graph(GRAPH)
    once = {"tabulate_graph": 1, "time_operators": 1, "_run": models_of(predictor)}
    once["tabulate_work"] = vectors_of(predictor, "sgd")
    assert positive({**once, "novelty": novelty_of(predictor)}) == work.of(predictor, 300)


def test_another_job_of_a_known_graph_shares_the_times_of_its_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    predictor, work = open_predictor(), Work(monkeypatch)
    work.of(predictor, 300)
    expected = positive({"_run": models_of(predictor), "novelty": novelty_of(predictor)})
    assert work.of(predictor, 299, optimizer="adam") == {**expected, "tabulate_work": vectors_of(predictor, "adam")}
    tabulated = vectors_of(predictor, "sgd")
    found = work.of(predictor, 299, precision="bf16")
    assert found == {**expected, "tabulate_work": tabulated, "time_operators": 1}


def test_a_job_that_only_waits_longer_computes_no_features_and_asks_no_model_of_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    predictor, work = open_predictor(), Work(monkeypatch)
    work.of(predictor, 300)
    expected = positive({"_run": models_of(predictor, MEMORY.name), "novelty": novelty_of(predictor)})
    assert work.of(predictor, 299, input_wait_ratio=0.125) == expected
    assert work.of(predictor, 400, input_wait_ratio=0.25) == expected


def test_a_repeated_job_asks_nothing_at_its_batch_and_at_those_between_the_same_powers_of_two(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    predictor, work = open_predictor(), Work(monkeypatch)
    work.of(predictor, 300)
    for batch in (300, 301, 257, 511, 512, 256):
        assert work.of(predictor, batch) == {}


def positive(counts: dict[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}
