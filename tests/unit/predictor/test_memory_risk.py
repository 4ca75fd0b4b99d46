"""The chance that jobs run out of one device's memory together, as it is asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from cotenant.job_settings import JobSettings
from predictor_service.errors import InvalidRequestError, UnknownDeviceError, UnknownGraphError
from predictor_service.inference.memory_risk import RISK_JOBS_MAX
from predictor_service.inference.predictor import Predictor
from predictor_service.inference.records import JobQuestion, Level, PairJob, RiskAnswer, RiskQuestion
from predictor_service.outcome_journal import PredictionEntry
from tests.support.measured_dataset import DEVICE, graphs
from tests.support.predictor_service import open_predictor

GRAPHS = graphs()
MIB = 1 << 20


@pytest.fixture
def predictor() -> Predictor:
    made = open_predictor()
    for content in GRAPHS.values():
        made.keep_graph(content)
    return made


def known(job_id: str, memory_bytes: float) -> PairJob:
    return PairJob(job_id=job_id, settings=JobSettings(global_batch_size=1), known_memory_bytes=memory_bytes)


def from_graph(predictor: Predictor, job_id: str, family: str = "wide", batch: int = 32) -> PairJob:
    sha256, _, _ = predictor.keep_graph(GRAPHS[family])
    return PairJob(job_id=job_id, settings=JobSettings(global_batch_size=batch, optimizer="adam"), graph_sha256=sha256)


def ask(predictor: Predictor, jobs: Sequence[PairJob], memory_bytes: int, device: str = DEVICE) -> RiskAnswer:
    return predictor.predict_memory_risk(RiskQuestion(device=device, jobs=jobs, device_memory_bytes=memory_bytes))


def test_jobs_whose_memory_is_known_fit_or_do_not(predictor: Predictor) -> None:
    jobs = [known("a", 400 * MIB), known("b", 500 * MIB)]
    roomy, tight = ask(predictor, jobs, 950 * MIB), ask(predictor, jobs, 900 * MIB)
    assert (roomy.independent_ratio, roomy.union_bound_ratio, roomy.bounds_fit) == (0.0, 0.0, True)
    assert (tight.independent_ratio, tight.union_bound_ratio, tight.bounds_fit) == (1.0, 1.0, False)


def test_the_risk_falls_as_the_device_grows_and_grows_with_every_job(predictor: Predictor) -> None:
    jobs = [from_graph(predictor, "a"), from_graph(predictor, "b", "deep", 128), from_graph(predictor, "c")]
    together = sum(estimate.value for estimate in ask(predictor, jobs, 0).memory_bytes)
    risks = [ask(predictor, jobs, int(factor * together)).union_bound_ratio for factor in (0.5, 0.98, 1.02, 1.5, 4.0)]
    assert all(risk is not None for risk in risks)
    assert risks == sorted(risks, reverse=True)  # type: ignore[type-var]
    assert risks[0] == 1.0
    assert risks[-1] == 0.0
    tight = int(1.02 * together)
    fewer = [ask(predictor, jobs[:count], tight).union_bound_ratio or 0.0 for count in (1, 2, 3)]
    assert fewer == sorted(fewer)


def test_one_job_has_the_risk_that_its_own_prediction_warns_of(predictor: Predictor) -> None:
    job = from_graph(predictor, "a")
    memory_bytes = int(ask(predictor, [job], 0).memory_bytes[0].value)
    risk = ask(predictor, [job], memory_bytes).union_bound_ratio
    assert risk is not None
    question = JobQuestion(
        settings=job.settings, device=DEVICE, graph_sha256=job.graph_sha256, device_memory_bytes=memory_bytes
    )
    messages = {notice.code: notice.message for notice in predictor.predict_job(question).warnings}
    assert f"up to {risk:.0%}" in messages["MEMORY_RISK"]


def test_a_peak_that_was_seen_is_never_doubted(predictor: Predictor) -> None:
    job = from_graph(predictor, "a")
    predicted = ask(predictor, [job], 0).memory_bytes[0]
    peak_bytes = int(3 * (predicted.upper_99 or 0))
    assert ask(predictor, [job], peak_bytes).union_bound_ratio == 0.0
    entry = PredictionEntry(
        prediction_id="p", at_ms=0, kind="job", device=DEVICE, model_version="v", content={"job_key": job.key}
    )
    predictor.learn_outcomes([(entry, {"memory_peak_bytes": peak_bytes, "window_ms": 60_000})])
    answer = ask(predictor, [job], peak_bytes)
    assert answer.union_bound_ratio == 1.0
    assert answer.memory_bytes[0].level is Level.OBSERVED
    assert ask(predictor, [job], math.ceil(1.03 * peak_bytes)).union_bound_ratio == 0.0


def test_without_measurements_there_are_bounds_and_no_risk(predictor: Predictor) -> None:
    jobs = [from_graph(predictor, "a"), known("b", 100 * MIB)]
    answer = ask(predictor, jobs, 0, "NVIDIA H200")
    assert (answer.independent_ratio, answer.union_bound_ratio) == (None, None)
    assert answer.bounds_fit
    assert [estimate.level for estimate in answer.memory_bytes] == [Level.FALLBACK, Level.SOLO_KNOWN]
    assert [notice.code for notice in answer.warnings] == ["NO_TRAINED_MODEL"]
    assert "memory of a is counted" in answer.warnings[0].message


@pytest.mark.parametrize(
    ("jobs", "words"),
    [
        ([], "1 to 64 are accepted"),
        ([known(str(number), 1.0) for number in range(RISK_JOBS_MAX + 1)], "65 jobs"),
        ([known("a", 1.0), known("a", 2.0)], "the same job_id"),
        ([known("a", 0.0)], "must be above 0"),
        ([known("a", math.nan)], "must be above 0"),
        ([PairJob(job_id="a", settings=JobSettings(global_batch_size=1))], "neither a graph nor a known memory"),
    ],
)
def test_a_list_that_cannot_be_is_refused_by_name(predictor: Predictor, jobs: list[PairJob], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        ask(predictor, jobs, 0)


def test_what_is_asked_of_the_rest_is_checked_too(predictor: Predictor) -> None:
    job: Any = known("a", 1.0)
    with pytest.raises(InvalidRequestError, match="device_memory_bytes"):
        ask(predictor, [job], -1)
    with pytest.raises(UnknownDeviceError):
        ask(predictor, [job], 0, "Abacus")
    with pytest.raises(UnknownGraphError):
        ask(predictor, [PairJob(job_id="a", settings=JobSettings(global_batch_size=1), graph_sha256="0" * 64)], 0)


def test_a_slice_of_a_device_is_asked_about_like_a_whole_one(predictor: Predictor) -> None:
    jobs = [known("a", 400 * MIB)]
    assert ask(predictor, jobs, 950 * MIB, device="NVIDIA A100-SXM4-40GB MIG 2g.10gb").bounds_fit
    assert not ask(predictor, jobs, 300 * MIB, device="NVIDIA A100-SXM4-40GB MIG 2g.10gb").bounds_fit
