"""What people read where no measurement checked how often a range holds: an estimate, and neither 90 % nor 99 %."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cotenant.v1 import prediction_pb2, resources_pb2, scheduling_pb2
from tests.support.cli_cluster import CommandLine
from tests.support.fake_services import FakePredictor, FakeScheduler, sample_prediction

ROOT = Path(__file__).parents[3]
GRAPH = str(ROOT / "examples/jobs/graphs/cnn.onnx")
JOB_FILE = str(ROOT / "examples/jobs/1-cnn.yaml")


def uncalibrated_prediction(*, fits: bool) -> prediction_pb2.PredictJobResponse:
    answer = sample_prediction(fits=fits)
    for estimate in (answer.memory_bytes, answer.utilization_ratio, answer.step_ms):
        estimate.level, estimate.in_domain = resources_pb2.ESTIMATE_LEVEL_FALLBACK, False
        estimate.range_not_calibrated = True
    answer.micro_batches.add(
        micro_batch_size=8, accumulation_steps=8, memory_bytes=answer.memory_bytes, step_ms=answer.step_ms
    )
    return answer


@pytest.mark.parametrize("words", [("predict", GRAPH, "--batch-size", "64"), ("submit", JOB_FILE, "--dry-run")])
@pytest.mark.parametrize("fits", [True, False])
def test_what_is_uncalibrated_is_called_an_estimate_and_promises_no_share(
    words: tuple[str, ...], fits: bool, cotenant: CommandLine, scheduler: FakeScheduler, predictor: FakePredictor
) -> None:
    predictor.answer = uncalibrated_prediction(fits=fits)
    outcome = cotenant(*words)
    text = " ".join(outcome.out.split())
    # A dry run ends as the submission would, which warns of what may not fit.
    assert outcome.code == (0 if fits or words[0] == "submit" else 4)
    assert "(estimate, range not calibrated)" in text
    assert "estimate, range not calibrated: memory, utilization, step time" in text
    assert not re.search(r"9[09] ?%", text)


def test_where_some_are_calibrated_the_promise_names_them(
    cotenant: CommandLine, scheduler: FakeScheduler, predictor: FakePredictor
) -> None:
    predictor.answer = uncalibrated_prediction(fits=True)
    predictor.answer.step_ms.range_not_calibrated = False
    text = " ".join(cotenant("predict", GRAPH, "--batch-size", "64").out.split())
    assert "(nominal): step time; estimate, range not calibrated: memory, utilization" in text


def test_ranges_that_were_checked_on_other_machines_name_them_and_promise_nothing_here(
    cotenant: CommandLine, scheduler: FakeScheduler, predictor: FakePredictor
) -> None:
    predictor.answer = sample_prediction(fits=True)
    predictor.answer.warnings.add(code="CHECKED_ELSEWHERE", message="checked only where x was measured")
    predictor.pairs = prediction_pb2.PredictPairsResponse()
    alone = " ".join(cotenant("predict", GRAPH, "--batch-size", "64").out.split())
    assert "90 % of rows where it learned (nominal) device not calibrated" in alone
    assert "ranges checked only where x was measured" in alone
    together = " ".join(cotenant("predict", GRAPH, GRAPH, "--batch-size", "64").out.split())
    assert together.count("ranges checked only where x was measured") == 1


def test_a_calibrated_device_is_promised_its_share_of_measured_values(
    cotenant: CommandLine, scheduler: FakeScheduler, predictor: FakePredictor
) -> None:
    predictor.answer = sample_prediction(fits=True)
    predictor.answer.warnings.add(code="CALIBRATED", message="steps take 2.00 times what is known of the type")
    text = " ".join(cotenant("predict", GRAPH, "--batch-size", "64").out.split())
    assert "intervals hold 90 % of measured values (nominal) device calibrated" in text


def test_a_bound_that_does_not_fit_is_distinguished_from_what_is_expected(
    cotenant: CommandLine, scheduler: FakeScheduler, predictor: FakePredictor
) -> None:
    predictor.answer = uncalibrated_prediction(fits=False)
    predictor.answer.memory_bytes.value = 0.9 * predictor.answer.device_memory_bytes
    likely = cotenant("predict", GRAPH, "--batch-size", "64")
    assert "MAY NOT FIT: 0.90 GiB is expected, which fits" in " ".join(likely.out.split())
    predictor.answer = uncalibrated_prediction(fits=False)
    unlikely = cotenant("predict", GRAPH, "--batch-size", "64")
    assert "DOES NOT FIT: 1.10 GiB is expected" in " ".join(unlikely.out.split())
    assert (likely.code, unlikely.code) == (0, 4)


def test_a_table_of_batches_tells_what_may_not_fit_from_what_does_not(
    cotenant: CommandLine, scheduler: FakeScheduler, predictor: FakePredictor
) -> None:
    words = ("predict", GRAPH, "--batch-size", "64,128")
    predictor.answer = uncalibrated_prediction(fits=False)
    unlikely = cotenant(*words)
    predictor.answer.memory_bytes.value = 0.9 * predictor.answer.device_memory_bytes
    likely = cotenant(*words)
    assert " NO " in unlikely.out
    assert " maybe " in likely.out
    assert (likely.code, unlikely.code) == (0, 4)


def test_the_json_of_a_prediction_says_that_its_range_is_not_calibrated(
    cotenant: CommandLine, scheduler: FakeScheduler, predictor: FakePredictor
) -> None:
    predictor.answer = uncalibrated_prediction(fits=True)
    answer = json.loads(cotenant("predict", GRAPH, "--batch-size", "64", "-o", "json").out)
    assert answer["memory_bytes"]["range_not_calibrated"] is True


def test_a_described_job_says_that_its_range_is_not_calibrated(cotenant: CommandLine, scheduler: FakeScheduler) -> None:
    job = next(job for job in scheduler.jobs.values() if job.predictions)
    for estimate in (job.predictions[0].memory_bytes, job.predictions[0].step_ms, job.predictions[0].utilization_ratio):
        estimate.range_not_calibrated = True
    text = " ".join(cotenant("describe", job.job_id).out.split())
    assert "bound 0.75 GiB (estimate, range not calibrated)" in text
    assert "99 %" not in text


def test_a_described_job_calls_the_share_of_its_interval_nominal(
    cotenant: CommandLine, scheduler: FakeScheduler
) -> None:
    job = next(job for job in scheduler.jobs.values() if job.predictions)
    assert "] at nominal 90 %, 99 % bound 0.75 GiB" in " ".join(cotenant("describe", job.job_id).out.split())


@pytest.mark.parametrize("verb", ["describe", "explain"])
def test_a_described_and_an_explained_job_say_what_is_unusual_about_it(
    verb: str, cotenant: CommandLine, scheduler: FakeScheduler
) -> None:
    job = next(job for job in scheduler.jobs.values() if job.predictions)
    job.predictions[0].utilization_ratio.unusual_features.append("activations 9.1 GiB, trained 0.01 GiB to 2.1 GiB")
    scheduler.explanations[job.job_id] = scheduling_pb2.ExplainJobResponse(job=job)
    text = " ".join(cotenant(verb, job.job_id).out.split())
    assert f"activations 9.1 GiB, trained 0.01 GiB to 2.1 GiB ({job.predictions[0].device})" in text


@pytest.mark.parametrize("calibrated", [True, False])
def test_a_job_whose_least_memory_exceeds_the_device_does_not_fit(
    calibrated: bool, cotenant: CommandLine, scheduler: FakeScheduler, predictor: FakePredictor
) -> None:
    predictor.answer = sample_prediction(fits=False) if calibrated else uncalibrated_prediction(fits=False)
    predictor.answer.memory_bytes.lower = 18.0 * predictor.answer.device_memory_bytes
    outcome = cotenant("predict", GRAPH, "--batch-size", "64")
    assert outcome.code == 4
    text = " ".join(outcome.out.split())
    assert "DOES NOT FIT: at least 18.00 GiB (predicted)" in text
    assert "cpu-standin has 1.00 GiB" in text


@pytest.mark.parametrize(
    ("solo_step_ms", "reason", "is_told"),
    [(0.0, "STARTS_SHARED_BLINDLY", True), (9.0, "STARTS_SHARED_BLINDLY", False), (0.0, "IS_MEASURED", False)],
)
def test_a_job_that_was_never_measured_alone_says_how_to_learn_what_sharing_costs_it(
    solo_step_ms: float, reason: str, is_told: bool, cotenant: CommandLine, scheduler: FakeScheduler
) -> None:
    job = next(job for job in scheduler.jobs.values() if job.predictions)
    job.step_ms, job.solo_step_ms, job.reason.code = 12.0, solo_step_ms, reason
    del job.co_located_jobs[:]
    job.co_located_jobs.add(job_id="job-77")
    scheduler.explanations[job.job_id] = scheduling_pb2.ExplainJobResponse(job=job)
    for verb in ("describe", "explain"):
        text = " ".join(cotenant(verb, job.job_id).out.split())
        assert "job-77: slowdown unknown" in text
        assert ("`cotenant hold --stop job-77`" in text) is is_told
