"""What to ask the predictor, and when a job waits for an answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from scheduler_service.core.cluster_view.shared_ways import device_of
from scheduler_service.core.commands import PairMember, RequestPairPredictions, RequestPrediction
from scheduler_service.core.event_effects import EventEffects
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.predictions.key_use import KeyUse
from scheduler_service.core.queue.queue_holds import find_queue_hold
from scheduler_service.core.queue.queue_terms import NO_TERMS
from scheduler_service.core.records import Phase, Reason, Share
from scheduler_service.core.state import ClusterState

SMALLER_SIZES_MAX = 3
"""Halvings of a new key's micro-batch that its pairs are asked about."""
SMALLER_PARTNERS_MAX = 64
"""With more keys in question its pairs are asked about with the whole batch only."""


def ask_about_job(state: ClusterState, job: JobRecord, step: EventEffects) -> None:
    """Ask about a new job on every device type that is not yet answered, or no more as the answer says."""
    key = job.request.key
    use = state.living_keys.get(key)
    if use is None:
        return
    state.predictions.use(key)
    state.predictions.forget_unused(state.living_keys)
    ask_again(state, key, step)
    for device in state.devices:
        if state.predictions.job(key, device) is not None:
            ask_about_pairs(state, key, device, step)
        elif device not in state.predictions.outstanding_devices(key):
            step.commands.append(_question(state, key, use, device))
            state.predictions.await_job(key, device)


def ask_again(state: ClusterState, key: str, step: EventEffects) -> None:
    """Ask once more about a living key that took more memory than is known; nothing waits for the answer."""
    use = state.living_keys.get(key)
    if use is None:
        return
    for device in state.predictions.larger_peaks.take_unasked(key):
        if device in state.devices:
            step.commands.append(_question(state, key, use, device))


def ask_about_devices(state: ClusterState, devices: frozenset[str], step: EventEffects) -> None:
    """Ask about every living key on device types that have just come."""
    for key, use in sorted(state.living_keys.items()):
        for device in sorted(devices):
            step.commands.append(_question(state, key, use, device))
            state.predictions.await_job(key, device)
    for job_id in tuple(state.in_phase(Phase.PENDING)):
        refresh_hold(state, job_id)


def ask_about_pairs(state: ClusterState, key: str, device: str, step: EventEffects) -> None:
    """Ask how a key and the living ones slow each other down on a device, where nothing is known yet."""
    use = state.living_keys.get(key)
    if use is None or not use.may_share:
        return
    for place in state.predictions.places(device):
        _ask_about_place(state, key, place, step)


def _ask_about_place(state: ClusterState, key: str, place: str, step: EventEffects) -> None:
    if state.predictions.awaits_pairs(key, place):
        return
    if state.keys.knows_all_pairs(key, place):  # as for nearly every job of a key that others have had before
        return
    others = _unknown_partners(state, key, place)
    if others:
        _ask_about_pairs_with(state, key, place, others, step)
        state.predictions.await_pairs(key, place)
    else:
        state.keys.note_all_pairs_known(key, place)


def ways_now(state: ClusterState) -> Mapping[str, object]:
    """Return how every device type is shared, to be compared by `ask_about_sharing`."""
    predictions = state.predictions
    return {device: (predictions.sharing.get(device), predictions.places(device)) for device in state.devices}


def ask_about_sharing(state: ClusterState, before: Mapping[str, object], step: EventEffects) -> None:
    """Ask about the pairs on device types that are shared in other ways than `before`; jobs wait for the answers."""
    ways = ways_now(state)
    changed = [name for name in sorted(state.devices) if ways[name] != before.get(name, (None, (name,)))]
    if not changed:
        return
    for key in state.living_keys:
        state.predictions.changes.note(key)
    for device in changed:
        state.predictions.forget_questions(device)
    for place in _present_places(state, changed):
        keys = _meeting_keys(state, place)
        unknown = tuple(key for key in keys if any(not _knows_pair(state, key, other, place) for other in keys))
        if unknown:
            step.commands.append(_pairs_question(state, keys, unknown, place))
        for key in unknown:
            state.predictions.await_pairs(key, place)
    for job_id in tuple(state.in_phase(Phase.PENDING)):
        refresh_hold(state, job_id)


def _present_places(state: ClusterState, devices: Iterable[str]) -> list[str]:
    present = {entry.gpu.device for entry in state.gpus.values()}
    return [place for name in devices if name in present for place in state.predictions.places(name)]


def _meeting_keys(state: ClusterState, place: str) -> tuple[str, ...]:
    sharing = sorted(key for key, use in state.living_keys.items() if _may_meet(state, key, use, place))
    return tuple(sharing[-state.predictions.keys_max :])


def _may_meet(state: ClusterState, key: str, use: KeyUse, place: str) -> bool:
    return use.may_share and state.predictions.job(key, device_of(place)) is not None


def _knows_pair(state: ClusterState, key: str, other: str, device: str) -> bool:
    return state.predictions.has_pair(key, other, device) and state.predictions.has_pair(other, key, device)


def _ask_about_pairs_with(
    state: ClusterState, key: str, device: str, others: Sequence[str], step: EventEffects
) -> None:
    keys = tuple(dict.fromkeys((key, *others)))
    step.commands.append(_pairs_question(state, keys, (key,), device))


def _pairs_question(
    state: ClusterState, keys: tuple[str, ...], new_keys: tuple[str, ...], place: str
) -> RequestPairPredictions:
    device = device_of(place)
    is_small = len(new_keys) == 1 and len(keys) <= SMALLER_PARTNERS_MAX
    return RequestPairPredictions(
        device=device,
        members=(
            *(pair_member(state, member, device) for member in keys),
            *(_smaller_members(state, new_keys[0]) if is_small else ()),
        ),
        new_keys=new_keys,
        observed=state.predictions.observed_among(keys, place),
        device_memory_bytes=state.devices.get(device, 0),
        doubted=state.predictions.doubted_among(keys, place),
        calibration=state.calibrations.get(device),
        sharing=state.predictions.way_at(place),
        facts=state.device_facts.get(device),
    )


def _unknown_partners(state: ClusterState, key: str, device: str) -> list[str]:
    """Return the living keys about whose pair with this one nothing is known, itself included; bounded."""
    found = [
        other
        for other, use in state.living_keys.items()
        if _may_meet(state, other, use, device) and not _knows_pair(state, key, other, device)
    ]
    return sorted(found)[-state.predictions.keys_max :]


def _smaller_members(state: ClusterState, key: str) -> Iterator[PairMember]:
    """Yield a new key with parts of its batch in a pass: the smaller, the less it disturbs a job that it joins."""
    use = state.living_keys[key]
    if use.settings is None:
        return
    samples = -(-use.global_batch_size // (use.gpus[0] if use.gpus else 1))
    for number in range(1, SMALLER_SIZES_MAX + 1):
        size = -(-samples // 2**number)
        if size == -(-samples // 2 ** (number - 1)):
            return
        yield PairMember(
            key=key,
            graph_sha256=use.graph_sha256,
            settings=use.settings,
            solo_step_ms=None,
            micro_batch_size=size,
        )


def reissue_questions(state: ClusterState, step: EventEffects) -> None:
    """Ask again whatever was unanswered when the scheduler went down."""
    for key in state.predictions.outstanding_keys():
        use = state.living_keys.get(key)
        if use is not None:
            step.commands += [
                _question(state, key, use, device) for device in state.predictions.outstanding_devices(key)
            ]
    for key, device, peak in state.predictions.larger_peaks.stored():
        use = state.living_keys.get(key)
        if use is not None and peak.is_asked and device in state.devices:  # whether it was answered is not known
            step.commands.append(_question(state, key, use, device))
    for key, device in state.predictions.outstanding_pairs():
        if key in state.living_keys:
            # Jobs are held until an answer comes, so the question is asked again even if nothing is unknown by now.
            _ask_about_pairs_with(state, key, device, _unknown_partners(state, key, device), step)
    _ask_about_ways(state, step)


def _ask_about_ways(state: ClusterState, step: EventEffects) -> None:
    """Ask by way what an older version kept once for all GPUs of a type; nothing waits for the answers.

    Answers about a key hold its pair with itself: of one without that nothing was ever answered there.
    """
    predictions = state.predictions
    for place in _present_places(state, sorted(predictions.ways_counts)):
        keys = _meeting_keys(state, place)
        unknown = tuple(
            key for key in keys if not predictions.awaits_pairs(key, place) and not _knows_pair(state, key, key, place)
        )
        if unknown:
            step.commands.append(_pairs_question(state, keys, unknown, place))


def refresh_hold(state: ClusterState, job_id: str) -> bool:
    """Hold a pending job back, or show it to the policy; True when it is shown."""
    reason = _hold_reason(state, state.jobs[job_id])
    state.set_hold(job_id, reason)
    return reason is None


def refresh_hold_of_waiting(state: ClusterState, job_id: str) -> None:
    """Do the same for a job that may not wait, or be unknown."""
    job = state.jobs.get(job_id)
    if job is not None and job.phase is Phase.PENDING:
        refresh_hold(state, job_id)


def _hold_reason(state: ClusterState, job: JobRecord) -> Reason | None:
    asked = find_queue_hold(state, job) if job.request.terms is not NO_TERMS else None
    if asked is not None:
        return asked
    if not state.gpus:
        return Reason(code="NO_NODE", numbers={"gpus_needed": job.request.gpus, "gpus_in_cluster": 0})
    if attempts := state.occupancy.abandoned_of(job.job_id):
        return Reason(code="FORMER_ATTEMPT_RUNS", numbers={"attempts_count": attempts})
    if job.times.not_before_ms > state.now_ms:
        return _backoff_reason(state, job)
    waiting = _unanswered_devices(state, job)
    if waiting:
        numbers = {"devices_unanswered": len(waiting), "waited_ms": state.now_ms - job.times.submitted_at_ms}
        return Reason(code="AWAITING_PREDICTION", numbers=numbers)
    return None


def _unanswered_devices(state: ClusterState, job: JobRecord) -> set[str]:
    """Return the device types about which the job, or its neighbourhood if it would share, is still asked."""
    key = job.request.key
    if not state.predictions.awaits_answers or key not in state.living_keys:
        return set()
    devices = set(state.predictions.outstanding_devices(key))
    if job.request.share is not Share.NEVER:
        predictions = state.predictions
        devices |= {
            device
            for device in state.devices
            if any(predictions.awaits_pairs(key, place) for place in predictions.places(device))
        }
    return devices


def _backoff_reason(state: ClusterState, job: JobRecord) -> Reason:
    wait_ms = job.times.not_before_ms - state.now_ms
    if job.reason.code == "LAUNCH_REFUSED":
        return Reason(code="LAUNCH_REFUSED", numbers={"wait_ms": wait_ms, "refusals": job.counts.launch_refusals})
    if job.reason.code == "RESTORED":
        return Reason(code="RESTORED", numbers={"wait_ms": wait_ms})
    if job.reason.code == "PEAKS_MET":
        return Reason(code="PEAKS_MET", numbers={"wait_ms": wait_ms}, job_ids=job.reason.job_ids)
    numbers = {"wait_ms": wait_ms, "restarts": job.counts.restarts, "restart_limit": job.request.restart_limit}
    return Reason(code="RESTART_BACKOFF", numbers=numbers)


def _question(state: ClusterState, key: str, use: KeyUse, device: str) -> RequestPrediction:
    return RequestPrediction(
        key=key,
        device=device,
        device_memory_bytes=state.devices[device],
        graph_sha256=use.graph_sha256,
        settings=use.settings,
        micro_batch_sizes=micro_batch_sizes_of(use),
        gpus=use.gpus,
        calibration=state.calibrations.get(device),
        facts=state.device_facts.get(device),
    )


def micro_batch_sizes_of(use: KeyUse) -> tuple[int, ...]:
    """Return the samples per GPU and pass that a policy may choose: the batch over the GPUs, halved down to one."""
    found: set[int] = set()
    for gpus in use.gpus or (1,):
        samples = -(-use.global_batch_size // gpus)
        while samples > 1:
            found.add(samples)
            samples = -(-samples // 2)
    return tuple(sorted(found | {1}, reverse=True))


def pair_member(state: ClusterState, key: str, device: str) -> PairMember:
    """Return a living key as a question about pairs names it."""
    use = state.living_keys[key]
    prediction = state.predictions.job(key, device)
    full = -(-use.global_batch_size // (use.gpus[0] if use.gpus else 1))
    point = prediction.memory.get(full) if prediction is not None else None
    return PairMember(
        key=key,
        graph_sha256=use.graph_sha256,
        settings=use.settings,
        solo_step_ms=state.predictions.sound_solo_step_ms(key, device, gpus=1, micro_batch_size=full),
        utilization_ratio=prediction.utilization_ratio if prediction is not None else None,
        memory_bytes=point.memory_bytes if point is not None else None,
    )
