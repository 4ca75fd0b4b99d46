"""A live cluster's snapshot as it is simulated on: without what has ended, and with what would be different."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from cotenant_simulator.errors import InputError
from scheduler_service.core.cluster_view.step_times import passes_of
from scheduler_service.core.codec import decode, encode
from scheduler_service.core.engine_snapshot import StoredState
from scheduler_service.core.predictions.stored_predictions import StoredPredictions
from scheduler_service.core.records import ENDED_PHASES, JobPrediction, JobRequest, Share

_BATCH = "batch_size"
_SETTERS: Mapping[str, Callable[[JobRequest, Any], JobRequest]] = {
    "gpus": lambda request, value: replace(request, gpus=int(value), allowed_gpus=()),
    "steps": lambda request, value: replace(request, steps_total=int(value)),
    "share": lambda request, value: replace(request, share=Share(value)),
    "max_slowdown": lambda request, value: replace(request, max_slowdown_ratio=float(value)),
    "memory_bytes": lambda request, value: replace(request, memory_request_bytes=int(value)),
}


def changed_snapshot(snapshot: Mapping[str, Any], changes: Mapping[str, Any]) -> tuple[Mapping[str, Any], str | None]:
    """Return the snapshot as it would be, and the policy that would be chosen; None = the cluster's own.

    Ended jobs and what is known of keys that no living job has are left out: many runs read the rest.

    Args:
        snapshot: Of an engine.
        changes: `policy`; with `job_id` also gpus, steps, share, max_slowdown, memory_bytes and batch_size of that job.

    Raises:
        InputError: A change cannot be made.
        CodecError: It is no snapshot.
    """
    rest = dict(changes)
    policy, job_id = rest.pop("policy", None), rest.pop("job_id", "")
    stored = _living(decode(StoredState, snapshot.get("state")))
    if not rest:
        return {**snapshot, "state": encode(StoredState, stored)}, policy
    job = next((job for job in stored.jobs if job.job_id == job_id), None)
    if job is None:
        raise InputError(f"there is no job {job_id!r} to change; name one that waits")
    request, predictions = job.request, stored.predictions
    if _BATCH in rest:
        request, predictions = _with_batch(request, predictions, int(rest.pop(_BATCH)))
    for name, value in rest.items():
        if name not in _SETTERS:
            raise InputError(f"{name!r} cannot be changed; known are policy, {_BATCH}, {', '.join(_SETTERS)}")
        request = _SETTERS[name](request, value)
    living_keys = dict(stored.living_keys)
    if request.key != job.request.key and job.request.key in living_keys:
        living_keys[request.key] = replace(living_keys[job.request.key], jobs=1)
    changed = replace(
        stored,
        jobs=tuple(other.changed(request=request) if other is job else other for other in stored.jobs),
        predictions=predictions,
        living_keys=living_keys,
    )
    return {**snapshot, "state": encode(StoredState, changed)}, policy


def _living(stored: StoredState) -> StoredState:
    jobs = tuple(job.changed(history=()) for job in stored.jobs if job.phase not in ENDED_PHASES)
    keys, known = {job.request.key for job in jobs}, stored.predictions
    counted = known.observed_windows or (1,) * len(known.observed)
    observed = [pair for pair in zip(known.observed, counted, strict=True) if keys.issuperset(pair[0][:2])]
    predictions = replace(
        known,
        recent=tuple(key for key in known.recent if key in keys),
        jobs=tuple(one for one in known.jobs if one.key in keys),
        failures=tuple(one for one in known.failures if one[0] in keys),
        outstanding=tuple(one for one in known.outstanding if one[0] in keys),
        pairs=tuple(one for one in known.pairs if one.victim_key in keys and one.other_key in keys),
        observed=tuple(pair for pair, _ in observed),
        observed_windows=tuple(count for _, count in observed),
        outstanding_pairs=tuple(one for one in known.outstanding_pairs if one[0] in keys),
        solo=tuple(one for one in known.solo if one[0] in keys),
        alone=tuple(one for one in known.alone if one[0] in keys),
        broken_trials=tuple(one for one in known.broken_trials if keys.issuperset(one[:2])),
        doubted=tuple(one for one in known.doubted if keys.issuperset(one[:2])),
    )
    return replace(stored, jobs=jobs, predictions=predictions, rejected=())


def _with_batch(
    request: JobRequest, predictions: StoredPredictions, batch_size: int
) -> tuple[JobRequest, StoredPredictions]:
    """Let a job take fewer samples per step: passes of a smaller micro-batch are predicted already.

    Raises:
        InputError: More samples are wanted than now; that takes another prediction.
    """
    if not 0 < batch_size <= request.global_batch_size:
        raise InputError(
            f"batch_size can be lowered from {request.global_batch_size} here, not set to {batch_size}; "
            "`cotenant predict --batch-size` tells of larger ones"
        )
    smaller = replace(request, global_batch_size=batch_size, key=f"{request.key}/{batch_size}" if request.key else "")
    if smaller.key == request.key:
        return smaller, predictions
    jobs = [_of_smaller(one, request, smaller) for one in predictions.jobs if one.key == request.key]
    pairs = [
        replace(pair, victim_key=_renamed(pair.victim_key, request, smaller), other_key=other)
        for pair in predictions.pairs
        if request.key in (pair.victim_key, pair.other_key)
        for other in (_renamed(pair.other_key, request, smaller),)
    ]
    return smaller, replace(
        predictions,
        jobs=(*predictions.jobs, *jobs),
        pairs=(*predictions.pairs, *pairs),
        recent=(*predictions.recent, smaller.key),
    )


def _of_smaller(prediction: JobPrediction, request: JobRequest, smaller: JobRequest) -> JobPrediction:
    step_ms = {
        (gpus, micro): taken_ms
        / passes_of(request, gpus=gpus, micro_batch_size=micro)
        * passes_of(smaller, gpus=gpus, micro_batch_size=micro)
        for (gpus, micro), taken_ms in prediction.step_ms.items()
    }
    return replace(prediction, key=smaller.key, step_ms=step_ms, step_ms_lower=0.0, step_ms_upper=0.0)


def _renamed(key: str, request: JobRequest, smaller: JobRequest) -> str:
    return smaller.key if key == request.key else key
