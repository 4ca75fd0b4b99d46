"""What people read about a job is what the engine and the agent know about it."""

from __future__ import annotations

import re

import pytest
from google.protobuf import struct_pb2

from cotenant.cli.job_views import estimate_text
from cotenant.job_settings import JobSettings
from cotenant.v1 import prediction_pb2, resources_pb2, scheduling_pb2
from scheduler_service.adapters.predictor.prediction_messages import job_prediction
from scheduler_service.core import events
from scheduler_service.core.commands import RequestPrediction
from scheduler_service.core.records import MemoryPoint, Share
from scheduler_service.errors import InvalidRequestError, WrongJobPhaseError
from scheduler_service.grpc_api.jobs.log_requests import attempt_key
from scheduler_service.grpc_api.jobs.translate_jobs import job_message
from scheduler_service.grpc_api.policies import read_parameters
from tests.support.engine_play import Play
from tests.support.scheduling import DEVICE, prediction

REFUSAL = "COMMAND_NOT_ALLOWED: 'train.sh' is not on the allow-list (the node's owner adds one: --allow-file)"


@pytest.mark.parametrize(("refusals", "code"), [(1, "LAUNCH_REFUSED"), (5, "LAUNCH_REFUSED_FOR_GOOD")])
def test_a_job_that_an_agent_refused_shows_its_words(refusals: int, code: str) -> None:
    play = Play()
    play.submit()
    for _ in range(refusals):
        play.tell(events.TimerFired, after_ms=600_000)
        words = REFUSAL.partition(": ")[2]
        play.report(events.LaunchRefused, code="COMMAND_NOT_ALLOWED", message=words)
    job = play.engine.state.jobs["j0"]
    reason = job_message(play.engine.state, job).reason
    assert reason.code == code
    assert reason.message.endswith(f" It said: {REFUSAL}")
    assert code == "LAUNCH_REFUSED" or job.history[-1].message == REFUSAL
    with pytest.raises(WrongJobPhaseError, match=re.escape(f"its node refused to start it: {REFUSAL}")):
        attempt_key(job, 0)


@pytest.mark.parametrize(
    ("detail", "expected"),
    [
        ("exit code 127: pyhton: command not found", "exit code 127; see its log. It said: pyhton: command not found"),
        ("exit code 127", "exit code 127; see its log."),
        ("exit code 127; no checkpoint manifest", "exit code 127; see its log. It said: no checkpoint manifest"),
        ("rank 2 ended first: exit code 127", "exit code 127; see its log. It said: rank 2 ended first: exit code 127"),
    ],
)
def test_a_job_that_lacked_a_command_names_it_in_its_reason(detail: str, expected: str) -> None:
    play = Play()
    play.submit()
    play.report(events.JobFailed, exit_class="error", exit_code=127, detail=detail)
    message = job_message(play.engine.state, play.engine.state.jobs["j0"])
    assert message.reason.message == f"The program ended with {expected}"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_parameter_that_json_cannot_say_is_the_callers_fault(value: float) -> None:
    with pytest.raises(InvalidRequestError, match="every number finite"):
        read_parameters(struct_pb2.Struct(fields={"x": struct_pb2.Value(number_value=value)}))


@pytest.mark.parametrize("not_calibrated", [True, False])
def test_every_estimate_of_a_job_says_whether_its_range_was_calibrated(not_calibrated: bool) -> None:
    play = Play()
    play.submit(key="k", graph="g")
    batch = play.engine.state.jobs["j0"].request.global_batch_size
    point = MemoryPoint(memory_bytes=1, memory_bytes_upper_99=2)
    found = prediction("k", memory={batch: point}, step_ms={(1, batch): 5.0}, range_not_calibrated=not_calibrated)
    play.tell(events.PredictionArrived, prediction=found)
    (message,) = job_message(play.engine.state, play.engine.state.jobs["j0"]).predictions
    estimates = (message.memory_bytes, message.utilization_ratio, message.step_ms)
    assert [estimate.range_not_calibrated for estimate in estimates] == [not_calibrated] * 3


def test_a_job_says_what_is_unusual_about_it() -> None:
    play = Play()
    play.submit(key="k", graph="g")
    texts = ("activations 9.1 GiB, trained 0.01 GiB to 2.1 GiB",)
    play.tell(events.PredictionArrived, prediction=prediction("k", in_domain=False, unusual_features=texts))
    (message,) = job_message(play.engine.state, play.engine.state.jobs["j0"]).predictions
    assert tuple(message.utilization_ratio.unusual_features) == texts


def test_what_a_predictor_finds_unusual_is_kept_once_short_and_printable() -> None:
    settings = JobSettings(global_batch_size=8)
    command = RequestPrediction(key="k", graph_sha256="g", device="d", device_memory_bytes=0, settings=settings)
    answer = prediction_pb2.PredictJobResponse()
    answer.utilization_ratio.unusual_features.extend(["same", "x" * 10_000])
    answer.memory_bytes.unusual_features.extend(["same", "b", "c", "d"])
    for estimate in (answer.utilization_ratio, answer.memory_bytes, answer.step_ms):
        estimate.level = resources_pb2.ESTIMATE_LEVEL_GRAPH
    assert job_prediction(command, answer).unusual_features == ("same", "b", "c")
    del answer.memory_bytes.unusual_features[:]
    assert [len(text) for text in job_prediction(command, answer).unusual_features] == [4, 200]
    answer.utilization_ratio.unusual_features[:] = ["\x1b[2Jgone\n", "\x07"]
    assert job_prediction(command, answer).unusual_features == ("[2Jgone",)


def test_a_job_shows_the_step_time_at_every_count_with_its_basis_and_what_was_predicted_stays() -> None:
    play = Play("fifo", gpus=4)
    shapes = {(1, 64): 800.0, (2, 32): 400.0, (4, 16): 200.0}
    play.submit(key="k", graph="g", global_batch_size=64, gpus=2, allowed_gpus=(1, 2, 4), share=Share.NEVER)
    play.tell(events.PredictionArrived, prediction=prediction("k", step_ms=shapes))
    play.report(events.JobStarted)
    for done in (10, 20):
        play.report(events.JobProgressed, steps_done=done, window_steps=10, window_ms=6_000, after_ms=6_100)
    (message,) = job_message(play.engine.state, play.engine.state.jobs["j0"]).predictions
    assert [(one.gpus, one.step_ms, one.basis, one.measurements) for one in message.step_times] == [
        (1, 1_200.0, scheduling_pb2.STEP_TIME_BASIS_CORRECTED, 1),
        (2, 600.0, scheduling_pb2.STEP_TIME_BASIS_MEASURED, 1),
        (4, 300.0, scheduling_pb2.STEP_TIME_BASIS_CORRECTED, 1),
    ]
    assert message.step_ms.value == 800.0


def test_a_job_that_may_have_one_count_of_which_nothing_was_measured_lists_no_step_times() -> None:
    play = Play()
    play.submit(key="k", graph="g")
    play.tell(events.PredictionArrived, prediction=prediction("k", step_ms={(1, 1): 5.0}))
    (message,) = job_message(play.engine.state, play.engine.state.jobs["j0"]).predictions
    assert not message.step_times


def test_a_job_shows_the_steps_that_its_script_says_it_has() -> None:
    play = Play()
    play.submit(steps_total=0)
    play.report(events.JobProgressed, steps_done=2, steps_total=40)
    assert job_message(play.engine.state, play.engine.state.jobs["j0"]).script_steps_total == 40


def test_what_was_measured_once_is_shown_as_a_value_and_promises_no_interval() -> None:
    play = Play()
    play.submit(key="k")
    measured = play.engine.state.predictions
    measured.observe_solo("k", DEVICE, gpus=1, micro_batch_size=1, steps=10, window_ms=10_000)
    measured.observe_alone("k", DEVICE, micro_batch_size=1, memory_peak_bytes=1 << 30, utilization_ratio=0.2)
    (message,) = job_message(play.engine.state, play.engine.state.jobs["j0"]).predictions
    assert (message.step_ms.value, message.step_ms.confidence) == (1_000.0, 0.0)
    assert (message.utilization_ratio.value, message.utilization_ratio.confidence) == (0.2, 0.0)
    assert estimate_text(message.step_ms, "ms") == "1000 ms, observed"
    assert estimate_text(message.utilization_ratio, "ratio") == "20 %, observed"


def test_what_was_predicted_keeps_its_interval() -> None:
    play = Play()
    play.submit(key="k", graph="g")
    ranges = {
        "step_ms_lower": 4.0,
        "step_ms_upper": 6.0,
        "utilization_lower_ratio": 1.0,
        "utilization_upper_ratio": 1.0,
    }
    play.tell(events.PredictionArrived, prediction=prediction("k", step_ms={(1, 1): 5.0}, **ranges))
    (message,) = job_message(play.engine.state, play.engine.state.jobs["j0"]).predictions
    assert (message.step_ms.lower, message.step_ms.upper, message.step_ms.confidence) == (4.0, 6.0, 0.9)
    assert (message.utilization_ratio.lower, message.utilization_ratio.confidence) == (1.0, 0.9)
