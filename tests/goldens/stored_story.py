"""A story that uses every kind of event as the engine accepts them, and what is true after it.

The story becomes an event log with a snapshot in its middle; whoever reads that log later must find the same truth.
"""

from __future__ import annotations

from typing import Any

from cotenant.job_settings import stored_settings
from cotenant.v1 import scheduling_pb2
from scheduler_service.core import events
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.records import Phase
from tests.goldens.filled_events import as_json, filled_settings
from tests.support.engine_play import Play
from tests.support.scheduling import DEVICE, GIB, all_pairs, job, node, pair, prediction

SNAPSHOT_AFTER = 17
"""Events before the snapshot; the others are replayed on top of it."""


class RecordedPlay(Play):
    """A play that keeps what it was told, and needs no engine that starts with nodes."""

    def __init__(self, **options: Any) -> None:
        self.told: list[events.Event] = []
        super().__init__(nodes=0, **options)

    def tell(self, kind: type[events.Event], *, after_ms: int = 1_000, **values: Any) -> list[Any]:
        self.told.append(kind(at_ms=self.now_ms + after_ms, **values))
        return super().tell(kind, after_ms=after_ms, **values)


def told_story() -> RecordedPlay:
    """Everything that can happen to jobs on two nodes; three live on at its end."""
    play = RecordedPlay(policy="sjf_bsbf")
    _begin(play)
    _share(play)
    _lose_and_return(play)
    _end(play)
    return play


def _begin(play: RecordedPlay) -> None:
    launch = as_json(scheduling_pb2.JobSpec)
    # Settings that came after the story was stored have the defaults that its readers take.
    settings = filled_settings()
    later = (
        "no_trial", "owner", "ranks", "collective_timeout_ms", "across_nodes",
        "priority", "held", "after_job_ids", "after_any", "time_limit_ms", "deadline_at_ms",
        "array_id", "array_index", "array_running_max", "restarts_stalled", "allowed_devices", "retry_of",
        "no_preparation", "migration_cost_ms", "releases_memory",
        "target_loss", "servers", "straggler_ratio", "straggler_window_ms", "batches_per_step",
        "takes_whole_batch",
    )  # fmt: skip
    for name in later:  # fields that came after the story was stored
        launch.pop(name)
    play.tell(events.PolicyChosen, policy="sjf_bsbf", parameters={})
    play.tell(events.NodeJoined, node=node("n0", 1))
    for number, steps in ((1, 100), (2, 200)):
        name = f"job-{number}"
        request = job(name, key=name, steps_total=steps, max_slowdown_ratio=0.5)
        play.tell(
            events.JobSubmitted, request=request, launch=launch, graph_sha256="0" * 63 + str(number), settings=settings
        )
    play.tell(events.PredictionArrived, prediction=prediction("job-1", step_ms={(1, 1): 50.0}))
    play.tell(events.PairPredictionsFailed, device=DEVICE, keys=("job-1",), code="UNAVAILABLE", message="not yet")
    play.tell(events.PredictionArrived, prediction=prediction("job-2", step_ms={(1, 1): 80.0}))


def _share(play: RecordedPlay) -> None:
    play.tell(events.PairPredictionsArrived, pairs=tuple(all_pairs(["job-1", "job-2"], 0.1)))
    for name in ("job-1", "job-2"):
        if play.phase(name) is Phase.STARTING:
            play.report(events.JobStarted, name)
    refreshed = (pair("job-1", "job-2", 0.2, upper_ratio=0.3),)
    play.tell(events.PairsRefreshed, device=DEVICE, pairs=refreshed)
    play.tell(events.PairsRefreshed, device=DEVICE, code="UNAVAILABLE")
    for steps in (10, 25):
        play.report(
            events.JobProgressed, "job-1", steps_done=steps, window_steps=10, window_ms=600, loss=1.5 / steps,
            utilization_ratio=0.4, memory_bytes=GIB, memory_peak_bytes=2 * GIB, checkpoint_step=steps,
        )  # fmt: skip
    play.submit("job-3", key="job-3", graph="3" * 64)
    play.tell(events.PredictionFailed, key="job-3", device=DEVICE, code="INVALID_GRAPH", message="no such operator")


def _lose_and_return(play: RecordedPlay) -> None:
    play.tell(events.NodeJoined, node=node("n1", 2))
    play.tell(events.GpuHealthChanged, gpu_id="n1.1", healthy=False, fault="Xid 79")
    if play.phase("job-3") is Phase.STARTING:
        play.report(events.LaunchRefused, "job-3", code="OVER_CAPACITY", message="the device is full")
    play.tell(events.TimerFired, after_ms=60_000)
    play.tell(events.NodeDisconnected, node_id="n0")
    play.tell(events.NodeLost, node_id="n0", after_ms=90_000)
    play.tell(events.TimerFired, after_ms=60_000)
    play.tell(events.NodeJoined, node=node("n0", 1))


def _end(play: RecordedPlay) -> None:
    for name in ("job-4", "job-5", "job-6", "job-7"):
        play.submit(name, key=name, gpus=1)
    play.tell(events.GpuHealthChanged, gpu_id="n1.1", healthy=True)
    _report_starts(play)
    play.tell(events.JobCancelled, job_id="job-7")
    running = [job_id for job_id in sorted(play.engine.state.jobs) if play.phase(job_id) is Phase.RUNNING]
    assert len(running) >= 3, running
    play.report(events.JobFinished, running[0], steps_done=200, memory_peak_bytes=2 * GIB)
    _report_starts(play)
    play.report(
        events.JobFailed, running[1], exit_class="gpu_oom", exit_code=1, steps_done=3, checkpoint_step=2,
        memory_peak_bytes=3 * GIB, memory_available_bytes=4 * GIB, detail="CUDA out of memory",
    )  # fmt: skip
    play.tell(events.JobCancelled, job_id=running[2])
    stopped = {"exit_class": "stopped", "exit_code": 85, "steps_done": 4, "checkpoint_step": 4, "memory_peak_bytes": 7}
    play.report(events.JobStopped, running[2], **stopped)


def _report_starts(play: RecordedPlay) -> None:
    for job_id in sorted(play.engine.state.jobs):
        if play.phase(job_id) is Phase.STARTING:
            play.report(events.JobStarted, job_id)


def truth(engine: SchedulerEngine) -> dict[str, Any]:
    """What users and operators would see, in words that no renaming of classes touches."""
    state = engine.state
    return {
        "now_ms": state.now_ms,
        "policy": state.policy,
        "next_fence": state.next_fence,
        "nodes": {
            node_id: {
                "connected": one.connected,
                "gpus": [[gpu.gpu_id, gpu.device, gpu.memory_bytes, gpu.healthy] for gpu in one.gpus],
            }
            for node_id, one in sorted(state.nodes.items())
        },
        "jobs": {job_id: _job_truth(engine, job_id) for job_id in sorted(state.jobs)},
    }


def _job_truth(engine: SchedulerEngine, job_id: str) -> dict[str, Any]:
    record = engine.state.jobs[job_id]
    decision = engine.state.decisions.get(job_id)
    return {
        "phase": record.phase.value,
        "attempt": record.attempt,
        "fence": record.fence,
        "gpu_ids": [part.gpu_id for part in record.assignments],
        "steps_done": record.steps_done,
        "checkpoint_step": record.checkpoint_step,
        "memory_peak_bytes": record.reported.memory_peak_bytes,
        "memory_floor_bytes": record.request.memory_floor_bytes,
        "restarts": record.counts.restarts,
        "exit": [record.exit.exit_class, record.exit.exit_code, record.exit.exit_detail],
        "reason": decision.reason.code if decision is not None else record.reason.code,
        "launch": {name: item for name, item in record.submission.launch.items() if name != "settings"},
        "settings": stored_settings(record.submission.settings) if record.submission.settings is not None else {},
        "graph_sha256": record.submission.graph_sha256,
    }
