"""What a round of a policy that stops jobs must not do again, for every job that waits and in every round."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from scheduler_service.core import events
from scheduler_service.core.cluster_view import cluster_index, occupancy
from scheduler_service.core.cluster_view.inventory import Kind, kind_of
from scheduler_service.core.cluster_view.ledger import Ledger
from scheduler_service.core.commands import LaunchJob, StopJob
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.jobs.job_shapes import shape_of
from scheduler_service.core.records import JobRequest, Phase, Reason, Share
from scheduler_service.policies import tiresias
from scheduler_service.policies.placement import exclusive_round, free_gpus, length_queue, preemption
from scheduler_service.policies.placement.preemption import PreemptionPlanner
from scheduler_service.policies.placement.shape_speeds import shape_speeds
from scheduler_service.policies.placement.vacant_gpus import VacantGpus
from tests.support.engine_play import Play
from tests.support.scheduling import gpu, job, node, prediction

GPUS = 64
"""Enough for columns."""
SHORT: dict[str, Any] = {"graph": "graph", "key": "key", "share": Share.NEVER, "steps_total": 10}


def refuse(*_: object, **__: object) -> NoReturn:
    raise AssertionError("it was looked at")


def full_of_served_jobs(policy: str = "tiresias") -> Play:
    """Return a cluster full of jobs that have had more GPU time than any that comes."""
    play = Play(policy, nodes=8, gpus=GPUS // 8)
    for number in range(GPUS):
        serve(play, number, job(f"served-{number}", steps_total=1_000_000))
    play.tell(events.TimerFired, after_ms=24 * 3_600_000)
    return play


def full_of_long_jobs(policy: str) -> Play:
    """Return the same, of jobs of one key that are known to be long."""
    play = Play(policy, nodes=8, gpus=GPUS // 8)
    for number in range(GPUS):
        request = job(f"long-{number}", key="key", share=Share.NEVER, steps_total=1_000_000)
        serve(play, number, request, graph="graph")
    play.tell(events.TimerFired, after_ms=24 * 3_600_000)
    return play


def serve(play: Play, number: int, request: JobRequest, graph: str = "") -> None:
    """Let a job come and start, the first one of a graph once its key is predicted."""
    at_ms = play.now_ms + number
    play.engine.handle(events.JobSubmitted(at_ms=at_ms, request=request, graph_sha256=graph))
    if graph and not number:
        known = prediction(request.key, step_ms={(1, 1): 1_000.0})
        play.engine.handle(events.PredictionArrived(at_ms=at_ms, prediction=known))
    play.engine.handle(events.JobStarted(at_ms=at_ms, job_id=request.job_id, attempt=1, fence=number + 1))


@pytest.mark.parametrize("policy", ["srtf", "tiresias"])
def test_a_start_asks_no_other_kind_of_job_anew_whether_it_may_start(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches, search = list[object](), length_queue._candidates

    def count(*arguments: object) -> object:
        searches.append(arguments)
        return search(*arguments)  # type: ignore[arg-type]

    play = Play(policy, nodes=0)
    for number in range(12):
        play.submit(f"j{number}", key=f"kind-{number % 4}", steps_total=number + 1)
    monkeypatch.setattr(length_queue, "_candidates", count)
    launched = [one for one in play.tell(events.NodeJoined, node=node("n0", GPUS)) if isinstance(one, LaunchJob)]
    assert len(launched) == 12
    assert len(searches) == 1


@pytest.mark.parametrize("policy", ["srtf", "tiresias"])
def test_room_that_leaves_no_gpu_over_asks_no_other_kind_of_job_anew_whether_it_may_start(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches, search = list[object](), length_queue._candidates

    def count(*arguments: object) -> object:
        searches.append(arguments)
        return search(*arguments)  # type: ignore[arg-type]

    play = full_of_long_jobs(policy)
    for number in range(4):
        found = play.submit(f"new-{number}", graph="graph", key="key", share=Share.NEVER, steps_total=10)
        assert sum(isinstance(one, StopJob) for one in found) == 1
    monkeypatch.setattr(length_queue, "_candidates", count)
    play.tell(events.TimerFired)
    assert {play.code(f"new-{number}") for number in range(4)} == {"GPU_RELEASING"}
    assert len(searches) == 1


def test_a_round_on_a_full_cluster_puts_no_free_gpus_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    play = full_of_long_jobs("srtf")
    monkeypatch.setattr(exclusive_round, "free_by_kind_and_node", refuse)
    for name, steps in (("long", 2_000_000), ("new", 10)):
        play.submit(name, graph="graph", key="key", share=Share.NEVER, steps_total=steps)
    assert play.code("new") == "STOPS_LONGER"
    assert play.code("long") == "NO_FREE_GPU"


@pytest.mark.parametrize("gpus", [1, 2])
def test_a_job_that_was_promised_gpus_is_promised_them_again_without_a_look_at_those_that_run(
    gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = full_of_served_jobs()
    stops = [one for one in play.submit("new", gpus=gpus) if isinstance(one, StopJob)]
    assert len(stops) == gpus
    monkeypatch.setattr(PreemptionPlanner, "_take", refuse)
    assert not play.tell(events.TimerFired)
    assert play.code("new") == "GPU_RELEASING"
    for stop in stops:
        play.report(events.JobStopped, stop.job_id, exit_class="checkpointed")
    assert play.phase("new") is Phase.STARTING


@pytest.mark.parametrize("gpus", [1, 2])
def test_a_job_that_was_promised_gpus_is_not_put_into_one_order_with_those_that_run(
    gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = full_of_served_jobs()
    stops = [one for one in play.submit("new", gpus=gpus) if isinstance(one, StopJob)]
    assert len(stops) == gpus
    with monkeypatch.context() as patched:
        patched.setattr(tiresias._Places, "of", refuse)
        assert not play.tell(events.TimerFired)
    assert play.code("new") == "GPU_RELEASING"


@pytest.mark.parametrize("policy", ["srtf", "tiresias"])
def test_a_job_that_waits_for_a_promised_gpu_is_not_asked_anew_what_it_fits(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = full_of_long_jobs(policy)
    [stop] = [one for one in play.submit("new", **SHORT) if isinstance(one, StopJob)]
    with monkeypatch.context() as patched:
        patched.setattr(free_gpus, "passes_alone", refuse)
        assert not play.tell(events.TimerFired)
    assert play.code("new") == "GPU_RELEASING"
    play.report(events.JobStopped, stop.job_id, exit_class="checkpointed")
    assert play.phase("new") is Phase.STARTING


def test_what_a_shape_fits_is_found_anew_once_something_else_is_predicted_of_it_or_a_node_comes() -> None:
    play = full_of_long_jobs("srtf")
    play.submit("new", **SHORT)

    def known() -> list[tuple[float | None, Kind]]:
        seen, request = play.engine._view(explain=False), play.engine.state.jobs["new"].request
        return [*shape_speeds(seen).find(seen, request, shape_of(request))]

    kind = kind_of(node("n0", 1).gpus[0])
    assert known() == [(1_000.0, kind)]
    play.tell(events.PredictionArrived, prediction=prediction("key", step_ms={(1, 1): 2_000.0}))
    assert known() == [(2_000.0, kind)]
    other = gpu("other.0", device="other", memory_bytes=kind[1])
    play.tell(events.NodeJoined, node=node("other", [other]))
    play.tell(events.PredictionArrived, prediction=prediction("key", device="other", step_ms={(1, 1): 500.0}))
    assert sorted(known()) == [(500.0, kind_of(other)), (2_000.0, kind)]


def test_rounds_that_give_each_gpu_to_one_job_find_no_load_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    play = full_of_served_jobs()
    monkeypatch.setattr(cluster_index, "load_of", refuse)
    [stop] = [one for one in play.submit("new") if isinstance(one, StopJob)]
    play.report(events.JobStopped, stop.job_id, exit_class="checkpointed")
    assert play.phase("new") is Phase.STARTING
    arrays = play.engine._view(explain=False).index.counted_arrays
    assert arrays.jobs_on.tolist() == [1] * GPUS


def test_classes_are_found_once_they_are_read_after_many_rounds_without() -> None:
    play = full_of_served_jobs()
    [stop] = [one for one in play.submit("new", key="other") if isinstance(one, StopJob)]
    play.report(events.JobStopped, stop.job_id, exit_class="checkpointed")
    arrays = play.engine._view(explain=False).index.arrays
    held = play.engine.state.jobs["new"].gpu_ids[0]
    residents = arrays.classes[arrays.class_of[arrays.position_of[held]]].residents
    assert [one.request.key for one in residents] == ["other"]


def test_jobs_that_wait_before_a_full_cluster_wait_for_one_object_round_after_round() -> None:
    play = full_of_served_jobs("srtf")  # which stops no job of unknown length
    play.submit("wide", gpus=8)
    first = play.engine.state.decisions["wide"].reason
    assert first == Reason(code="NO_FREE_GPU", numbers={"gpus_needed": 8, "gpus_free": 0})
    play.tell(events.TimerFired)
    assert play.engine.state.decisions["wide"].reason is first


@pytest.mark.parametrize(
    ("policy", "full", "graph"), [("srtf", full_of_long_jobs, "graph"), ("tiresias", full_of_served_jobs, "")]
)
def test_a_round_that_stops_a_job_leaves_nothing_to_the_garbage_collector(
    policy: str, full: Callable[[str], Play], graph: str
) -> None:
    play = full(policy)
    gc.collect()
    gc.disable()
    try:
        request = job("new", key="key", share=Share.NEVER, steps_total=10)
        submitted = events.JobSubmitted(at_ms=play.now_ms, request=request, graph_sha256=graph)
        assert any(isinstance(one, StopJob) for one in play.engine.handle(submitted))
        assert gc.collect() == 0
    finally:
        gc.enable()


@pytest.mark.parametrize(("kind", "copies"), [(events.JobStopped, 3), (events.JobFinished, 2)])
def test_the_record_of_a_job_is_copied_no_more_than_its_end_takes(
    kind: type[events.AttemptReport], copies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = full_of_served_jobs()
    [stop] = [one for one in play.submit("new") if isinstance(one, StopJob)]
    copied, with_values = list[str](), JobRecord.with_values

    def count(record: JobRecord, changes: dict[str, Any]) -> JobRecord:
        copied.append(record.job_id)
        return with_values(record, changes)

    monkeypatch.setattr(JobRecord, "with_values", count)
    play.report(
        kind, stop.job_id, **({"exit_class": "checkpointed"} if kind is events.JobStopped else {"steps_done": 1})
    )
    assert copied.count(stop.job_id) == copies  # its steps, that it was preempted, and its end


def test_jobs_that_are_promised_vacant_gpus_look_at_no_node_and_at_free_gpus_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    play = full_of_served_jobs()
    for number in range(4):
        assert sum(isinstance(one, StopJob) for one in play.submit(f"new-{number}")) == 1
    asked, widest = list[object](), exclusive_round.ExclusiveRound.widest

    def count(round_: exclusive_round.ExclusiveRound) -> int:
        asked.append(round_)
        return widest(round_)

    monkeypatch.setattr(VacantGpus, "on_node", refuse)
    monkeypatch.setattr(preemption, "kind_of", refuse)  # for forgetting what was found there
    monkeypatch.setattr(exclusive_round.ExclusiveRound, "widest", count)
    assert not play.tell(events.TimerFired)
    assert {play.code(f"new-{number}") for number in range(4)} == {"GPU_RELEASING"}
    assert len(asked) == 1


@pytest.mark.parametrize("name", [{"gpu_id": "g0"}, {"gpu_id": "MIG-0", "device": "a100 1g.5gb"}])
def test_the_kind_of_a_gpu_is_found_once(name: dict[str, str]) -> None:
    assert kind_of(gpu(**name)) is kind_of(gpu(**name))


@pytest.mark.parametrize("gpus", [1, 4])
def test_a_start_on_free_gpus_sums_up_no_memory_there(gpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play("tiresias", nodes=1, gpus=8)
    for sums in ("residents", "memory_free_bytes", "memory_needed_bytes"):
        monkeypatch.setattr(Ledger, sums, refuse)
    play.submit("new", gpus=gpus)
    assert play.phase("new") is Phase.STARTING


def test_what_a_gpu_holds_of_one_job_that_stays_is_found_without_a_look_at_its_other_gpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    play = Play("tiresias", nodes=1, gpus=8)
    monkeypatch.setattr(JobRecord, "bytes_on", refuse)
    monkeypatch.setattr(occupancy, "_surge_on", refuse)
    play.submit("wide", gpus=8)
    assert {entry.job_ids for entry in play.engine.state.gpus.values()} == {("wide",)}
    assert {entry.memory_reserved_bytes for entry in play.engine.state.gpus.values()} == {
        play.engine.state.jobs["wide"].shape.memory_reserved_bytes
    }
