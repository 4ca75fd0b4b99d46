"""Asks again about pairs whose answers are older than what was measured since.

One measured pair tells of every pair with one of its jobs, and of the whole device type. So when a measurement moves,
the pairs of running and waiting jobs are asked about once more: one question a device type at a time, a bounded one,
not faster than an interval, and only what an answer changes becomes a fact. What was measured here overrides every
answer and is not asked about.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice

from scheduler_service.core.cluster_view.shared_ways import device_of, place_name
from scheduler_service.core.commands import RefreshPairs
from scheduler_service.core.event_effects import EventEffects
from scheduler_service.core.events import PairsRefreshed
from scheduler_service.core.predictions.prediction_requests import pair_member
from scheduler_service.core.predictions.stored_predictions import PairRefresh
from scheduler_service.core.records import PairPrediction, Phase
from scheduler_service.core.state import ClusterState

KEYS_MAX = 32
"""Keys of running jobs, and as many of waiting ones: what may be decided next. An answer is a fact of the log."""
JOBS_LOOKED_AT_MAX = 200
CHANGE_RATIO_MIN = 0.02
"""An answer that differs by less is not kept."""


def note_measured(state: ClusterState, device: str) -> None:
    """Note that answers about a device type, or a place of it, are older than what is known of it."""
    refreshes = state.predictions.refreshes
    refreshes[device] = replace(refreshes.get(device, PairRefresh()), is_stale=True)


def refresh_pairs(state: ClusterState, interval_ms: int, step: EventEffects) -> None:
    """Ask again where answers are stale, no question is open, and the last question is long enough ago."""
    if not state.in_phase(Phase.PENDING) or not state.running:
        return
    for device, refresh in sorted(state.predictions.refreshes.items()):
        is_due = refresh.asked_at_ms == 0 or state.now_ms >= refresh.asked_at_ms + interval_ms
        if refresh.is_stale and not refresh.is_asked and is_due:
            question = _question(state, device)
            # What no job needs now stays stale: the next job may need it.
            if question.known:
                state.predictions.refreshes[device] = PairRefresh(is_asked=True, asked_at_ms=state.now_ms)
                step.commands.append(question)


def reissue_refreshes(state: ClusterState, step: EventEffects) -> None:
    """Ask again what was unanswered when the scheduler went down; a question about nothing is answered too."""
    for device, refresh in sorted(state.predictions.refreshes.items()):
        if refresh.is_asked:
            step.commands.append(_question(state, device))


def pairs_refreshed(state: ClusterState, event: PairsRefreshed, step: EventEffects) -> None:
    """Take the answer in; one that failed leaves everything as stale as it was."""
    predictions = state.predictions
    place = place_name(event.device, event.sharing)
    # It was asked by the name of the type where all of its GPUs were shared alike then.
    name = place if predictions.refreshes.get(place, PairRefresh()).is_asked else event.device
    refresh = predictions.refreshes.get(name, PairRefresh())
    is_stale = refresh.is_stale or bool(event.code)
    predictions.refreshes[name] = replace(refresh, is_asked=False, is_stale=is_stale)
    for pair in event.pairs:
        if predictions.knows(pair.victim_key) and predictions.knows(pair.other_key):
            predictions.replace_pair(pair)
            step.is_decision_due = True


def changed_pairs(
    known: Iterable[PairPrediction], answered: Mapping[tuple[str, str], PairPrediction]
) -> Iterator[PairPrediction]:
    """Yield those answers about known pairs that say something else than before."""
    for before in known:
        after = answered.get((before.victim_key, before.other_key))
        if after is not None and (
            abs(after.slowdown_ratio - before.slowdown_ratio) >= CHANGE_RATIO_MIN
            or abs(after.upper_ratio - before.upper_ratio) >= CHANGE_RATIO_MIN
            or after.times_measured != before.times_measured
        ):
            yield after


def _question(state: ClusterState, place: str) -> RefreshPairs:
    device = device_of(place)
    running = _keys(state, place, state.running)
    waiting = _keys(state, place, state.in_phase(Phase.PENDING))
    pairs = ((one, two) for there in running for here in waiting for one, two in ((there, here), (here, there)))
    known = tuple(
        pair
        for one, two in dict.fromkeys(pairs)
        if (pair := state.predictions.predicted_pair(one, two, place)) is not None
        and not state.predictions.has_sound(one, two, place)
    )
    keys = tuple(dict.fromkeys(key for pair in known for key in (pair.victim_key, pair.other_key)))
    return RefreshPairs(
        device=device,
        device_memory_bytes=state.devices.get(device, 0),
        calibration=state.calibrations.get(device),
        sharing=state.predictions.way_at(place),
        facts=state.device_facts.get(device),
        members=tuple(pair_member(state, key, device) for key in keys),
        observed=state.predictions.observed_among(keys, place),
        doubted=state.predictions.doubted_among(keys, place),
        known=known,
    )


def _keys(state: ClusterState, place: str, job_ids: Iterable[str]) -> tuple[str, ...]:
    """Return the first keys of some jobs that may share and about which everything was answered."""
    found = dict.fromkeys(state.jobs[job_id].request.key for job_id in islice(job_ids, JOBS_LOOKED_AT_MAX))
    return tuple(islice((key for key in found if _can_be_asked(state, key, place)), KEYS_MAX))


def _can_be_asked(state: ClusterState, key: str, place: str) -> bool:
    use = state.living_keys.get(key)
    predictions = state.predictions
    return (
        use is not None
        and use.may_share
        and predictions.job(key, device_of(place)) is not None
        and not predictions.awaits_pairs(key, place)
    )
