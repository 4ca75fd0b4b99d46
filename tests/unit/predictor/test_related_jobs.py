"""A job that was measured at one batch corrects its predictions at others and at other precisions; none ever falls."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

from cotenant.job_settings import JobSettings
from predictor_service.inference.graph_library import GraphLibrary
from predictor_service.inference.in_process_describer import InProcessDescriber
from predictor_service.inference.observed_jobs import RELATED_MAX, ObservedJobs, line_key, read_entry_job
from predictor_service.inference.predictor import Predictor
from predictor_service.inference.records import JobAnswer, JobQuestion, Level
from predictor_service.outcome_journal import PredictionEntry
from predictor_service.registry.served_version import ServedVersion
from tests.support.cases import for_each
from tests.support.onnx_graphs import mobilenet_v2

_DEVICE = "NVIDIA L4"
_BATCHES = (1, 3, 16, 31, 32, 33, 64, 100, 128, 129, 200, 256, 257, 512)


class _NoVersion:
    def current(self) -> ServedVersion | None:
        return None


@cache
def _graph() -> bytes:
    return mobilenet_v2("batch").SerializeToString()


def _predictor() -> tuple[Predictor, str]:
    predictor = Predictor(GraphLibrary(InProcessDescriber(), None), _NoVersion())
    return predictor, predictor.keep_graph(_graph())[0]


class _Job:
    """One graph that is asked about and measured."""

    def __init__(self) -> None:
        self.predictor, self.graph_sha256 = _predictor()

    def ask(self, batch: int, precision: str = "fp32", *, largest: bool = False) -> JobAnswer:
        settings = JobSettings(global_batch_size=batch, precision=precision)
        return self.predictor.predict_job(
            JobQuestion(settings=settings, device=_DEVICE, graph_sha256=self.graph_sha256, find_largest_batch=largest)
        )

    def measure(self, batch: int, precision: str = "fp32", **outcome: object) -> None:
        answer = self.ask(batch, precision)
        content = {
            "job_key": answer.job_key,
            "graph_sha256": self.graph_sha256,
            "settings": [batch, "train", precision, "sgd", 0.0],
            "bindings": {},
        }
        entry = PredictionEntry(
            prediction_id="p", at_ms=0, kind="job", device=_DEVICE, model_version="none", content=content
        )
        measured: Mapping[str, Any] = {"window_ms": 60_000, **outcome}
        self.predictor.learn_outcomes([(entry, measured)])


def _width(answer: JobAnswer) -> float:
    return answer.step_ms.upper / answer.step_ms.lower


@pytest.mark.parametrize(("batch", "precision", "least"), [(256, "fp32", 1.25), (64, "fp32", 1.25), (128, "fp16", 1.1)])
def test_other_batches_and_precisions_follow_a_measured_one(batch: int, precision: str, least: float) -> None:
    job = _Job()
    before = job.ask(batch, precision)
    job.measure(128, step_ms_mean=1.5 * job.ask(128).step_ms.value)
    after = job.ask(batch, precision)
    assert least * before.step_ms.value < after.step_ms.value < 1.5 * before.step_ms.value
    assert _width(after) < _width(before)
    assert (after.step_ms.level, after.step_ms.range_not_calibrated) == (Level.FALLBACK, False)


def test_the_nearer_a_batch_the_surer_its_step_time() -> None:
    job = _Job()
    job.measure(64, step_ms_mean=2.0 * job.ask(64).step_ms.value)
    widths = [_width(job.ask(batch)) for batch in (64, 128, 1024)]
    assert widths == sorted(widths)
    assert widths[0] < widths[2]


def test_curves_never_fall_with_the_batch_whatever_was_measured() -> None:
    for seed in range(6):
        drawn, job = random.Random(seed), _Job()
        for _ in range(8):
            batch, precision = drawn.choice(_BATCHES), drawn.choice(["fp32", "fp32", "fp16"])
            predicted = job.ask(batch, precision)
            job.measure(
                batch,
                precision,
                step_ms_mean=predicted.step_ms.value * drawn.choice([0.2, 0.7, 1.0, 1.4, 8.0]),
                memory_peak_bytes=int(predicted.memory_bytes.value * drawn.choice([0.5, 0.9, 1.1, 1.6])),
                quality_flags=drawn.choice([[], [], ["foreign_load"], ["incomplete_run"]]),
            )
        for precision in ("fp32", "fp16"):
            answers = [job.ask(batch, precision) for batch in _BATCHES]
            for name in ("step_ms", "memory_bytes"):
                values = [getattr(answer, name).value for answer in answers]
                assert all(one <= two * (1 + 1e-9) for one, two in itertools.pairwise(values)), (seed, name)
                assert all(
                    getattr(answer, name).lower <= getattr(answer, name).value <= getattr(answer, name).upper
                    for answer in answers
                )


@pytest.mark.parametrize("flag", ["foreign_load", "unsteady", "incomplete_run"])
def test_a_contaminated_window_moves_no_step_time_of_any_batch_and_narrows_none(flag: str) -> None:
    job = _Job()
    before = [job.ask(batch).step_ms for batch in _BATCHES]
    job.measure(256, step_ms_mean=380.0 * job.ask(256).step_ms.value, quality_flags=[flag])
    assert [job.ask(batch).step_ms for batch in _BATCHES] == before


@pytest.mark.parametrize("flag", ["incomplete_run", "foreign_load"])
def test_the_peak_of_a_run_that_was_cancelled_or_failed_raises_larger_batches_and_leaves_smaller_ones(
    flag: str,
) -> None:
    job = _Job()
    before = {batch: job.ask(batch).memory_bytes for batch in (32, 64, 65)}
    peak = int(3.0 * (before[64].upper_99 or 0.0))
    job.measure(64, memory_peak_bytes=peak, quality_flags=[flag])
    assert job.ask(32).memory_bytes == before[32]
    for batch in (64, 65):
        after = job.ask(batch).memory_bytes
        assert after.value >= peak
        assert (after.upper_99 or 0.0) > peak


def test_a_peak_above_its_bound_makes_the_largest_batch_smaller() -> None:
    job = _Job()
    before = job.ask(64, largest=True)
    job.measure(64, memory_peak_bytes=int(1.1 * (before.memory_bytes.upper_99 or 0.0)))
    after = job.ask(64, largest=True).largest_batch_that_fits
    assert after is not None
    assert before.largest_batch_that_fits is not None
    assert 0 < after < before.largest_batch_that_fits


def test_a_measured_peak_lowers_no_bound_of_another_batch() -> None:
    job = _Job()
    before = job.ask(128).memory_bytes
    job.measure(64, memory_peak_bytes=int(0.3 * job.ask(64).memory_bytes.value))
    after = job.ask(128).memory_bytes
    assert after.value < before.value
    assert (after.upper, after.upper_99) == (before.upper, before.upper_99)


def test_jobs_that_differ_in_more_than_batch_and_precision_are_no_relatives() -> None:
    one = JobSettings(global_batch_size=8)
    assert line_key("a", one) == line_key("a", JobSettings(global_batch_size=64, precision="bf16"))
    assert line_key("a", one) != line_key("b", one)
    assert line_key("a", one) != line_key("a", JobSettings(global_batch_size=8, optimizer="adam"))


def test_relatives_of_a_job_are_bounded() -> None:
    table, settings = ObservedJobs(), JobSettings(global_batch_size=1)
    for batch in range(1, RELATED_MAX + 9):
        content = {
            "job_key": JobSettings(global_batch_size=batch).key("a"),
            "graph_sha256": "a",
            "settings": [batch, "train", "fp32", "sgd", 0.0],
        }
        entry = PredictionEntry(
            prediction_id="p", at_ms=0, kind="job", device=_DEVICE, model_version="none", content=content
        )
        table.learn([(entry, {"step_ms_mean": 1.0, "window_ms": 60_000})])
    assert len(table.related(_DEVICE, line_key("a", settings))) == RELATED_MAX


@for_each("settings", [None, "x", [1], [0, "train", "fp32", "sgd", 0.0], [1, "train", "fp32", "sgd", "much"]])
def test_an_entry_without_possible_settings_is_of_no_job(settings: object) -> None:
    assert read_entry_job({"job_key": "k", "graph_sha256": "a", "settings": settings}) is None
    assert read_entry_job({"job_key": "k", "graph_sha256": "a", "settings": [1, "train", "fp32", "sgd", 0.0]}) is None
