"""A scheduler's own event log, as `cotenant export-log` writes it: yesterday's jobs under another policy.

Measured values become the ground truth. The log lacks the co-located jobs of a window, so the fastest tenth of a
key's windows counts as measured alone; slowdowns are those that the predictor gave; memory is the highest peak. A job
of which no step was counted is as long as it ran. One that was submitted held comes when it was released.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from cotenant_simulator.errors import TraceError
from cotenant_simulator.truth.kinds import GroundTruth, Kind
from cotenant_simulator.truth.trace import JOB_MEMORY_BYTES, Trace, TraceJob
from scheduler_service.core import events, queue_events
from scheduler_service.core.codec import decode_event
from scheduler_service.core.errors import CodecError
from scheduler_service.core.records import Gpu, JobPrediction, Node

LINE_CHARACTERS_MAX = 10_000_000
ALONE_SHARE = 10
"""One in so many windows, the fastest, counts as measured alone."""


@dataclass(slots=True)
class _Seen:
    """The contents of a log, collected in one pass."""

    submitted: dict[str, events.JobSubmitted] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    predictions: dict[tuple[str, str], JobPrediction] = field(default_factory=dict)
    slowdowns: dict[tuple[str, str, str], float] = field(default_factory=dict)
    windows_ms: dict[str, list[float]] = field(default_factory=dict)
    memory_bytes: dict[str, int] = field(default_factory=dict)
    utilization: dict[str, list[float]] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    released_ms: dict[str, int] = field(default_factory=dict)
    started_ms: dict[str, int] = field(default_factory=dict)
    ran_ms: dict[str, int] = field(default_factory=dict)


def is_event_log(path: Path) -> bool:
    """Return whether a file begins like an exported event log."""
    try:
        with path.open(encoding="utf-8") as file:
            first = file.readline(LINE_CHARACTERS_MAX)
    except (OSError, UnicodeDecodeError):
        return False
    return first.startswith("{") and '"kind"' in first


def read_events(path: Path) -> Iterator[events.Event]:
    """Yield the events of an exported log.

    Raises:
        TraceError: A line is no event of this version.
    """
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield _event(path, number, line)
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(path, f"cannot be read: {error}") from error


def _event(path: Path, number: int, line: str) -> events.Event:
    try:
        data = json.loads(line)
        if not isinstance(data, dict):
            raise CodecError(f"expected an object, found {type(data).__name__}")
        data.pop("sequence", None)
        return decode_event(data)
    except (ValueError, RecursionError, CodecError) as error:
        raise TraceError(
            path, f"is no event of this version: {error}; export the log anew with cotenant export-log", line=number
        ) from error


def read_event_log(path: Path) -> Trace:
    """Read an exported log as a workload with its machines.

    Raises:
        TraceError: A line is no event, or the log names no job or no machine.
    """
    seen = _Seen()
    for event in read_events(path):
        _note(seen, event)
    if not seen.submitted or not seen.nodes:
        missing = "machine" if seen.submitted else "submitted job"
        raise TraceError(path, f"names no {missing}; export the log from its beginning")
    first_ms = min(event.at_ms for event in seen.submitted.values())
    gpus = [gpu for node in seen.nodes.values() for gpu in node.gpus]
    device_memory_bytes: dict[str, int] = {}
    for gpu in gpus:
        device_memory_bytes[gpu.device] = min(gpu.memory_bytes, device_memory_bytes.get(gpu.device, gpu.memory_bytes))
    kinds: dict[tuple[str, str], Kind] = {}
    jobs: list[TraceJob] = []
    for event in seen.submitted.values():
        job = _job(seen, event, first_ms, gpus[0].device if gpus else "")
        jobs.append(job)
        for device, memory_bytes in device_memory_bytes.items():
            _add_kind(seen, kinds, job, device, memory_bytes)
    return Trace(
        format="event-log",
        jobs=tuple(sorted(jobs, key=lambda job: job.submitted_at_ms)),
        truth=GroundTruth(kinds=kinds, slowdowns=seen.slowdowns),
        device=gpus[0].device if gpus else "",
        nodes=tuple(_fresh(node) for _, node in sorted(seen.nodes.items())),
    )


def _note(seen: _Seen, event: events.Event) -> None:
    if isinstance(event, events.JobSubmitted):
        seen.submitted[event.request.job_id] = event
    elif isinstance(event, events.NodeJoined):
        seen.nodes[event.node.node_id] = event.node
    elif isinstance(event, events.PredictionArrived):
        seen.predictions[event.prediction.key, event.prediction.device] = event.prediction
    elif isinstance(event, events.PairPredictionsArrived):
        for pair in event.pairs:
            seen.slowdowns[pair.victim_key, pair.other_key, pair.device] = max(pair.slowdown_ratio, 0.0)
    elif isinstance(event, events.JobProgressed):
        _note_progress(seen, event)
    elif isinstance(event, queue_events.JobReleased):
        seen.released_ms.setdefault(event.job_id, event.at_ms)
    elif isinstance(event, events.JobStarted):
        seen.started_ms[event.job_id] = event.at_ms
    elif isinstance(event, events.JobFinished | events.JobFailed | events.JobStopped):
        seen.ran_ms[event.job_id] = (
            seen.ran_ms.get(event.job_id, 0) + event.at_ms - seen.started_ms.pop(event.job_id, event.at_ms)
        )
        seen.steps[event.job_id] = max(seen.steps.get(event.job_id, 0), event.steps_done)


def _note_progress(seen: _Seen, report: events.JobProgressed) -> None:
    submitted = seen.submitted.get(report.job_id)
    if submitted is None:
        return
    key = _key(submitted)
    seen.steps[report.job_id] = max(seen.steps.get(report.job_id, 0), report.steps_done)
    seen.memory_bytes[key] = max(seen.memory_bytes.get(key, 0), report.memory_peak_bytes, report.memory_bytes)
    if report.window_steps:
        seen.windows_ms.setdefault(key, []).append(report.window_ms / report.window_steps)
    if report.utilization_ratio is not None:
        seen.utilization.setdefault(key, []).append(report.utilization_ratio)


def _key(event: events.JobSubmitted) -> str:
    return event.request.key or f"job {event.request.job_id}"


def _job(seen: _Seen, event: events.JobSubmitted, first_ms: int, device: str) -> TraceJob:
    request = event.request
    steps = request.steps_total or seen.steps.get(request.job_id, 0)
    if not steps:
        steps = max(round(seen.ran_ms.get(request.job_id, 0) / _step_ms(seen, _key(event), device)), 1)
    terms, came_ms = request.terms, event.at_ms
    if terms.is_held:
        # No user releases it in simulated time, and jobs that wait for its end would never start.
        terms, came_ms = replace(terms, is_held=False), seen.released_ms.get(request.job_id, came_ms)
    return TraceJob(
        submitted_at_ms=came_ms - first_ms,
        request=replace(request, key=_key(event), steps_total=steps, terms=terms),
        graph_sha256=event.graph_sha256,
        settings=event.settings,
    )


def _step_ms(seen: _Seen, key: str, device: str) -> float:
    windows = sorted(seen.windows_ms.get(key, ()))
    prediction = seen.predictions.get((key, device))
    predicted_ms = min(prediction.step_ms.values(), default=1_000.0) if prediction is not None else 1_000.0
    return max(windows[len(windows) // ALONE_SHARE] if windows else predicted_ms, 1e-3)


def _add_kind(seen: _Seen, kinds: dict[tuple[str, str], Kind], job: TraceJob, device: str, memory_bytes: int) -> None:
    request = job.request
    prediction = seen.predictions.get((request.key, device))
    step_ms = _step_ms(seen, request.key, device)
    known = kinds.get((request.key, device))
    busy = seen.utilization.get(request.key, [])
    predicted_busy = prediction.utilization_ratio if prediction is not None else 0.6
    kinds[request.key, device] = Kind(
        step_ms_by_gpus={**(known.step_ms_by_gpus if known is not None else {}), request.gpus: step_ms},
        batch=request.global_batch_size,
        # Unmeasured memory is no more than a device has: the job was accepted there.
        memory_bytes=seen.memory_bytes.get(request.key) or min(JOB_MEMORY_BYTES, memory_bytes),
        utilization_ratio=min(sum(busy) / len(busy) if busy else predicted_busy, 1.0),
    )


def _fresh(node: Node) -> Node:
    """Return a machine as it was before anything ran there."""
    gpus: tuple[Gpu, ...] = tuple(replace(gpu, healthy=True) for gpu in node.gpus)
    return replace(node, connected=True, schedulable=True, gpus=gpus)
