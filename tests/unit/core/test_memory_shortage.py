"""Out of device memory: what is said of it, and the tries that follow, each with more room or less to put there."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_service.core import codec, events
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.queue.queue_terms import QueueTerms
from scheduler_service.core.records import Phase, Share
from scheduler_service.core.sharing.memory_shortage import HALVINGS_MAX
from scheduler_service.policies.placement import length_queue
from tests.support.engine_play import Play
from tests.support.scheduling import DEVICE, GIB, all_pairs, gpu, memory, node, prediction


def run_out(play: Play, name: str = "j0", **values: Any) -> None:
    """The job runs out of memory, and its next attempt is due."""
    play.report(events.JobFailed, name, exit_class="gpu_oom", **values)
    play.tell(events.TimerFired, after_ms=300_000)


def record(play: Play, name: str = "j0") -> JobRecord:
    return play.engine.state.jobs[name]


def passes(play: Play) -> tuple[int, int]:
    return record(play).shape.micro_batch_size, record(play).shape.accumulation_steps


def test_alone_the_micro_batch_is_halved_a_few_times_and_every_step_keeps_its_samples() -> None:
    play = Play()
    play.submit(global_batch_size=64)
    found = [passes(play)]
    for _ in range(HALVINGS_MAX):
        run_out(play)
        found.append(passes(play))
    assert found == [(64, 1), (32, 2), (16, 4), (8, 8)]
    run_out(play)
    assert play.phase() is Phase.STARTING
    run_out(play)
    assert (play.phase(), record(play).reason.code) == (Phase.FAILED, "OUT_OF_MEMORY")
    assert record(play).counts.out_of_memory == HALVINGS_MAX + 2


def test_an_odd_batch_loses_no_sample() -> None:
    play = Play()
    play.submit(global_batch_size=7)
    run_out(play)
    assert passes(play) == (3, 3)


@pytest.mark.parametrize("changes", [{"share": Share.NEVER}, {"takes_whole_batch": True}])
def test_a_job_that_bears_no_parts_of_a_batch_keeps_its_batch(changes: dict[str, Any]) -> None:
    play = Play()
    play.submit(global_batch_size=64, **changes)
    run_out(play)
    assert passes(play) == (64, 1)
    run_out(play)
    assert record(play).reason.code == "OUT_OF_MEMORY"


def test_what_cannot_be_halved_any_more_goes_to_a_larger_device() -> None:
    play = Play()
    play.tell(events.NodeJoined, node=node("large", [gpu("large.0", memory_bytes=80 * GIB)]))
    play.submit("occupies", memory_request_bytes=80 * GIB)
    play.submit()
    assert record(play).gpu_ids == ("n0.0",)
    run_out(play)
    assert (play.phase(), record(play).request.memory_floor_bytes) == (Phase.PENDING, 8 * GIB + 1)
    play.report(events.JobFinished, "occupies", steps_done=10)
    assert record(play).gpu_ids == ("large.0",)
    run_out(play)
    run_out(play)
    assert record(play).reason.code == "OUT_OF_MEMORY"


def test_the_owner_is_told_what_was_expected_what_happened_and_with_whom() -> None:
    play = Play()
    for name in ("a", "b"):
        play.submit(name, key=name, graph="g")
        play.tell(events.PredictionArrived, prediction=prediction(name, memory=memory(1, 2)))
    play.tell(events.PairPredictionsArrived, pairs=tuple(all_pairs(["a", "b"])))
    play.report(
        events.JobFailed, "b", exit_class="gpu_oom", memory_available_bytes=6 * GIB, memory_peak_bytes=5 * GIB,
        detail="it tried to allocate 2.00 GiB",
    )  # fmt: skip
    autopsy = record(play, "b").reported.memory_autopsy
    assert autopsy is not None
    assert (autopsy.attempt, autopsy.gpu_id, autopsy.gpu_memory_bytes) == (1, "n0.0", 8 * GIB)
    assert (autopsy.predicted_bytes, autopsy.predicted_upper_99_bytes, autopsy.reserved_bytes) == (
        GIB,
        2 * GIB,
        2 * GIB,
    )
    assert (autopsy.peak_bytes, autopsy.available_bytes, autopsy.co_located_ids) == (5 * GIB, 6 * GIB, ("a",))
    assert autopsy.detail == "it tried to allocate 2.00 GiB"


def test_the_account_outlives_the_next_attempts_and_a_restart_of_the_scheduler() -> None:
    play = Play()
    play.submit(global_batch_size=4)
    run_out(play)
    kept = record(play)
    assert kept.phase is Phase.STARTING
    assert kept.reported.memory_autopsy is not None
    assert codec.decode(JobRecord, codec.encode(JobRecord, kept)) == kept


@pytest.mark.parametrize("batch", [1, 2])
def test_no_less_than_one_sample_is_tried_at_once(batch: int) -> None:
    play = Play()
    play.submit(global_batch_size=batch)
    for _ in range(4):
        if play.phase() is Phase.STARTING:
            run_out(play)
    assert record(play).shape.micro_batch_size == 1
    assert play.phase() is Phase.FAILED


def predicted_too_large(play: Play, *devices: str, **changes: Any) -> None:
    play.submit(graph="g", **changes)
    for device in devices or (DEVICE,):
        play.tell(events.PredictionArrived, prediction=prediction(device=device, memory=memory(9, 10)))
        play.tell(
            events.PairPredictionsFailed, device=device, keys=("key-j0",), code="UNAVAILABLE", message="not asked"
        )


@pytest.mark.parametrize("policy", ["fifo", "horus", "sjf_bsbf", "best_fit"])
def test_a_prediction_alone_locks_no_job_out(policy: str) -> None:
    play = Play(policy)
    predicted_too_large(play)
    play.tell(events.TimerFired)
    assert play.phase() is Phase.STARTING
    assert record(play).shape.memory_reserved_bytes == 8 * GIB
    assert any("tried alone" in line.message for line in record(play).history)


@pytest.mark.parametrize("policy", ["horus", "srtf", "tiresias"])
def test_a_prediction_alone_locks_no_job_of_a_long_queue_out(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(length_queue, "QUEUE_LONG_MIN", 1)
    play = Play(policy)
    predicted_too_large(play, steps_total=100)
    play.tell(events.TimerFired)
    assert any("tried alone" in line.message for line in record(play).history)


def test_a_prediction_that_was_right_is_found_out_once() -> None:
    play = Play()
    predicted_too_large(play)
    play.tell(events.TimerFired)
    for _ in range(2):
        run_out(play)
    assert (play.phase(), record(play).reason.code) == (Phase.FAILED, "OUT_OF_MEMORY")


@pytest.mark.parametrize("policy", ["fifo", "horus", "sjf_bsbf", "best_fit"])
def test_a_prediction_alone_locks_no_job_out_that_names_smaller_devices(policy: str) -> None:
    play = Play(policy)
    play.tell(events.NodeJoined, node=node("large", [gpu("large.0", device="other", memory_bytes=80 * GIB)]))
    predicted_too_large(play, DEVICE, "other", terms=QueueTerms(devices=(DEVICE,)))
    play.tell(events.TimerFired)
    assert (play.phase(), record(play).gpu_ids) == (Phase.STARTING, ("n0.0",))


@pytest.mark.parametrize("policy", ["fifo", "horus", "sjf_bsbf", "best_fit"])
def test_a_prediction_alone_locks_no_job_out_where_the_first_device_is_not_the_largest(policy: str) -> None:
    play = Play(policy)
    play.tell(events.NodeJoined, node=node("a", [gpu("a.0", memory_bytes=4 * GIB)]))
    predicted_too_large(play)
    play.tell(events.TimerFired)
    assert (play.phase(), record(play).gpu_ids) == (Phase.STARTING, ("n0.0",))


def test_what_the_owner_states_is_believed_and_a_larger_device_that_is_away_is_waited_for() -> None:
    play = Play()
    play.submit("stated", memory_request_bytes=9 * GIB)
    play.tell(events.TimerFired)
    assert play.phase("stated") is Phase.PENDING
    play.tell(events.NodeJoined, node=node("large", [gpu("large.0", memory_bytes=80 * GIB)]))
    play.report(events.JobFinished, "stated", steps_done=10)
    play.tell(events.NodeDisconnected, node_id="large")
    predicted_too_large(play)
    play.tell(events.TimerFired)
    assert play.phase() is Phase.PENDING
