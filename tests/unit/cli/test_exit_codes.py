"""Exit status and error lines: scripts rely on the first, people on the second."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.rpc import code_pb2  # type: ignore[import-untyped]

from cotenant.v1 import scheduling_pb2
from tests.support.cli_cluster import CommandLine, ended_job
from tests.support.fake_services import FakePredictor, FakeScheduler, sample_prediction

ROOT = Path(__file__).parents[3]
GRAPH = str(ROOT / "examples/jobs/graphs/cnn.onnx")
JOB_FILE = str(ROOT / "examples/jobs/1-cnn.yaml")
REFUSALS = {
    "bad request": (code_pb2.INVALID_ARGUMENT, 2),
    "other body": (code_pb2.ALREADY_EXISTS, 2),
    "not found": (code_pb2.NOT_FOUND, 3),
    "not feasible": (code_pb2.FAILED_PRECONDITION, 4),
    "too much": (code_pb2.RESOURCE_EXHAUSTED, 4),
    "forbidden": (code_pb2.PERMISSION_DENIED, 6),
    "broken": (code_pb2.INTERNAL, 1),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_refusal_becomes_one_line_with_reason_and_remedy(
    refusal: str, cotenant: CommandLine, scheduler: FakeScheduler
) -> None:
    code, expected = REFUSALS[refusal]
    scheduler.refusals["ListNodes"] = (code, f"{refusal} here", "SOME_REASON", "do this")
    outcome = cotenant("nodes")
    assert outcome.code == expected
    assert outcome.out == ""
    assert outcome.err == f"error: {refusal} here [SOME_REASON]\n  remedy: do this\n"


def test_a_scheduler_that_answers_is_not_said_to_be_away(cotenant: CommandLine, scheduler: FakeScheduler) -> None:
    scheduler.refusals["ListNodes"] = (code_pb2.UNAVAILABLE, "node n1 is not connected", "NODE_UNREACHABLE", "")
    outcome = cotenant("nodes")
    assert (outcome.code, outcome.err) == (5, "error: node n1 is not connected [NODE_UNREACHABLE]\n")


def test_a_scheduler_that_is_not_there_is_unavailable(cotenant: CommandLine) -> None:
    outcome = cotenant("ps", "--scheduler", "127.0.0.1:1", "--timeout", "3")
    assert outcome.code == 5
    assert "cannot be reached" in outcome.err
    assert "cotenant up" in outcome.err


@pytest.mark.parametrize(
    "arguments", [("nonsense",), ("ps", "--phase", "sleeping"), ("predict",), ("ps", "-o", "xml"), ("cancel",)]
)
def test_wrong_usage_exits_with_two(arguments: tuple[str, ...], cotenant: CommandLine) -> None:
    outcome = cotenant(*arguments)
    assert (outcome.code, outcome.out) == (2, "")


def test_an_unknown_job_is_not_found(cotenant: CommandLine, scheduler: FakeScheduler) -> None:
    outcome = cotenant("describe", "job-77")
    assert outcome.code == 3
    assert "cotenant ps -a" in outcome.err


def test_an_ambiguous_name_lists_the_candidates(cotenant: CommandLine, scheduler: FakeScheduler) -> None:
    outcome = cotenant("describe", "job-")
    assert outcome.code == 2
    assert "job-000001" in outcome.err


def test_a_job_that_will_not_fit_exits_with_four(
    cotenant: CommandLine, scheduler: FakeScheduler, predictor: FakePredictor
) -> None:
    predictor.answer = sample_prediction(fits=False)
    outcome = cotenant("predict", GRAPH, "--batch-size", "64")
    assert outcome.code == 4
    text = " ".join(outcome.out.split())
    assert "DOES NOT FIT: 1.10 GiB is expected, up to 1.20 GiB (predicted, 99 %); cpu-standin has 1.00 GiB" in text
    assert "24 fits" in outcome.out


def test_a_job_of_which_only_the_bound_is_too_large_may_be_started(
    cotenant: CommandLine, scheduler: FakeScheduler, predictor: FakePredictor
) -> None:
    predictor.answer = sample_prediction(fits=False)
    predictor.answer.memory_bytes.value = 0.7 * predictor.answer.device_memory_bytes
    outcome = cotenant("predict", GRAPH, "--batch-size", "64")
    assert outcome.code == 0
    assert "MAY NOT FIT: 0.70 GiB is expected, which fits; only the bound, 1.20 GiB" in " ".join(outcome.out.split())


@pytest.mark.parametrize("output", ["table", "json"])
def test_a_dry_run_ends_as_the_submission_would(
    output: str, cotenant: CommandLine, scheduler: FakeScheduler, predictor: FakePredictor
) -> None:
    predictor.answer = sample_prediction(fits=False)
    outcome = cotenant("submit", JOB_FILE, "--dry-run", "-o", output)
    assert (outcome.code, cotenant("submit", JOB_FILE).code) == (0, 0)
    assert output == "json" or "DOES NOT FIT: 1.10 GiB is expected" in " ".join(outcome.out.split())


@pytest.mark.parametrize(
    ("phase", "code"),
    [
        (scheduling_pb2.JOB_PHASE_FINISHED, 0),
        (scheduling_pb2.JOB_PHASE_FAILED, 7),
        (scheduling_pb2.JOB_PHASE_CANCELLED, 8),
    ],
)
def test_waiting_exits_as_the_job_ended(
    phase: scheduling_pb2.JobPhase.ValueType,
    code: int,
    cotenant: CommandLine,
    scheduler: FakeScheduler,
    predictor: FakePredictor,
) -> None:
    ended = ended_job(phase)
    ended.job_id = "job-4"
    scheduler.changes = [ended]
    outcome = cotenant("submit", JOB_FILE, "--wait")
    assert outcome.code == code
    assert outcome.out == "job-4  cnn  submitted\n"


def test_following_a_log_exits_as_the_job_ended(cotenant: CommandLine, scheduler: FakeScheduler) -> None:
    scheduler.jobs["job-000001"].phase = scheduling_pb2.JOB_PHASE_FAILED
    outcome = cotenant("logs", "-f", "job-000001", "--tail", "1")
    assert (outcome.code, outcome.out) == (7, "step 120/450 loss 1.0\n")


def test_following_a_log_ends_with_the_job_though_its_node_knows_the_end_first(
    cotenant: CommandLine, scheduler: FakeScheduler
) -> None:
    """The log of a cancelled job is complete on its node before the scheduler has the report of that."""
    scheduler.jobs["job-000001"].phase = scheduling_pb2.JOB_PHASE_STOPPING
    scheduler.changes = [changed(scheduler, scheduling_pb2.JOB_PHASE_CANCELLED)]
    outcome = cotenant("logs", "-f", "job-000001", "--tail", "1")
    assert (outcome.code, outcome.out) == (8, "step 120/450 loss 1.0\n")


def test_following_a_log_goes_on_with_the_next_attempt(cotenant: CommandLine, scheduler: FakeScheduler) -> None:
    job = scheduler.jobs["job-000001"]
    job.phase, job.attempt = scheduling_pb2.JOB_PHASE_STOPPING, 1
    phases = (
        scheduling_pb2.JOB_PHASE_PENDING,
        scheduling_pb2.JOB_PHASE_STARTING,
        scheduling_pb2.JOB_PHASE_RUNNING,
        scheduling_pb2.JOB_PHASE_FAILED,
    )
    scheduler.changes = [changed(scheduler, phase, attempt=min(place, 1) + 1) for place, phase in enumerate(phases)]
    outcome = cotenant("logs", "-f", "job-000001", "--tail", "1")
    assert outcome.code == 7
    assert outcome.out == "step 120/450 loss 1.0\n" + scheduler.logs["job-000001"].decode()
    reads = [one for one in scheduler.seen if isinstance(one, scheduling_pb2.ReadJobLogRequest) and one.follow]
    assert [(one.attempt, bool(one.tail_bytes)) for one in reads] == [(1, True), (2, False)]


def test_following_a_named_attempt_ends_with_it(cotenant: CommandLine, scheduler: FakeScheduler) -> None:
    job = scheduler.jobs["job-000001"]
    job.phase, job.attempt = scheduling_pb2.JOB_PHASE_RUNNING, 2
    assert cotenant("logs", "-f", "job-000001", "--attempt", "1").code == 0
    scheduler.changes = [changed(scheduler, scheduling_pb2.JOB_PHASE_PENDING)]
    assert cotenant("logs", "-f", "job-000001", "--attempt", "2").code == 0
    assert scheduler.changes == []


def changed(scheduler: FakeScheduler, phase: scheduling_pb2.JobPhase.ValueType, attempt: int = 0) -> scheduling_pb2.Job:
    job = scheduling_pb2.Job()
    job.CopyFrom(scheduler.jobs["job-000001"])
    job.phase, job.attempt = phase, attempt or job.attempt
    return job
