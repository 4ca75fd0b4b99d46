"""What is predicted and observed of pairs of keys: answers by micro-batch, averages measured here, broken trials."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from types import MappingProxyType
from typing import Any

from cotenant.device_sharing import DeviceSharing
from scheduler_service.core.change_log import ChangeLog
from scheduler_service.core.cluster_view.shared_ways import device_of, place_name, place_of, way_of
from scheduler_service.core.predictions.measured_averages import ObservedSlowdown, Sizes, at_sizes, with_windows
from scheduler_service.core.records import Gpu, Level, PairPrediction

_NO_PAIRS: Mapping[tuple[str, str], Any] = MappingProxyType({})
OBSERVED_PER_QUESTION_MAX = 2_000
"""Measured pairs that travel with a question about pairs."""
MOVED_RATIO_MIN = 0.01
"""A measured average that moves by less makes nothing stale."""


class PairStore:
    """Pairs of keys by device and way of sharing; what was observed overrides what was predicted.

    The name of a device type means it as it is shared now; what is known of the other way stays where it is. Of a
    type that is shared in several ways each is named by its place (`shared_ways.place_of`).

    Attributes:
        changes: What changed of them.
    """

    def __init__(self) -> None:
        self._broken_trials: dict[tuple[str, str, str], int] = {}
        self._pairs: dict[str, dict[tuple[str, str], dict[Sizes, PairPrediction]]] = {}
        self._observed: dict[str, dict[tuple[str, str], ObservedSlowdown]] = {}
        self._victims_of: dict[str, dict[str, None]] = {}
        self._sharing: dict[str, DeviceSharing] = {}
        self._mixed: dict[str, tuple[str, ...]] = {}
        self._places: dict[str, str] = {}
        self.changes = ChangeLog()

    @property
    def sharing(self) -> Mapping[str, DeviceSharing]:
        """How devices are shared, by type, as far as that is said."""
        return MappingProxyType(self._sharing)

    @property
    def ways_counts(self) -> Mapping[str, int]:
        """In how many ways GPUs of one type are shared, where it is more than one; a GPU that says none is another."""
        return {device: len(places) for device, places in self._mixed.items()}

    def share(self, device: str, *ways: DeviceSharing) -> None:
        """Let the GPUs of a device type be shared in these ways from now on."""
        for known in (self._mixed, self._sharing, self._places):
            known.pop(device, None)
        if len(ways) > 1:
            self._mixed[device] = tuple(place_name(device, way) for way in sorted(ways))
        elif ways and ways[0]:
            self._sharing[device], self._places[device] = ways[0], place_name(device, ways[0])

    def places(self, device: str) -> tuple[str, ...]:
        """Return under what to ask about pairs on a device type: its places where it is shared in several ways."""
        return self._mixed.get(device, (device,))

    def name_for(self, gpu: Gpu) -> str:
        """Return by what of `places` a GPU is meant."""
        return place_of(gpu) if gpu.device in self._mixed else gpu.device

    def way_at(self, name: str) -> DeviceSharing:
        """Return how GPUs are shared that are meant by a device type or a place."""
        return way_of(name) or self._sharing.get(name, DeviceSharing.UNSTATED)

    def _place(self, device: str) -> str:
        return self._places.get(device, device)

    def pair(
        self,
        victim_key: str,
        other_key: str,
        device: str,
        micro_batch_size: int = 0,
        other_micro_batch_size: int = 0,
    ) -> PairPrediction | None:
        """Return how much `other_key` slows `victim_key` down: observed before predicted, these sizes before any.

        What was measured while others used the GPU is no measurement of the pair: it raises a prediction's upper end,
        and answers, out of domain, where nothing else is known. A prediction that it exceeds is sure no more: out of
        domain too, but at what was predicted, so that the pair is tried where that is accepted, and nowhere else. The
        predictor goes by the same rule once it was told: above the upper end that the answer states.
        """
        observed_co_located = self._observed.get(victim_key)
        observed = (
            observed_co_located.get((other_key, self._place(device))) if observed_co_located is not None else None
        )
        if observed is None:
            return self.predicted_pair(victim_key, other_key, device, micro_batch_size, other_micro_batch_size)
        known = observed.answers.get((micro_batch_size, other_micro_batch_size))
        if known is not None:
            return known
        predicted = self.predicted_pair(victim_key, other_key, device, micro_batch_size, other_micro_batch_size)
        seen = max(observed.slowdown_ratio, 0.0)
        promised = predicted.upper_ratio if observed.is_doubtful and predicted is not None else 0.0
        if observed.is_doubtful and predicted is not None and predicted.level is not Level.FALLBACK:
            # The predictor is told of it and has moved its answer; here it lowers no upper end.
            if predicted.in_domain and seen > predicted.upper_ratio:
                return replace(predicted, upper_ratio=seen, level=Level.OBSERVED, in_domain=False, times_measured=0)
            return replace(predicted, upper_ratio=max(predicted.upper_ratio, seen))
        observed.answers[micro_batch_size, other_micro_batch_size] = answer = PairPrediction(
            victim_key=victim_key,
            other_key=other_key,
            device=device_of(device),
            slowdown_ratio=seen,
            upper_ratio=max(seen, promised),
            micro_batch_size=micro_batch_size,
            other_micro_batch_size=other_micro_batch_size,
            level=Level.OBSERVED,
            in_domain=not observed.is_doubtful,
            model_version=predicted.model_version if predicted is not None else "",
            times_measured=0 if observed.is_doubtful else observed.windows,
            sharing=self.way_at(device),
        )
        return answer

    def predicted_pair(
        self,
        victim_key: str,
        other_key: str,
        device: str,
        micro_batch_size: int = 0,
        other_micro_batch_size: int = 0,
    ) -> PairPrediction | None:
        """Return what the predictor answered about a pair, or None: these micro-batches before any."""
        return at_sizes(
            self._pairs.get(victim_key, {}).get((other_key, self._place(device))),
            micro_batch_size,
            other_micro_batch_size,
        )

    def has_pair(self, victim_key: str, other_key: str, device: str) -> bool:
        """Say whether anything is known of a pair."""
        pair = other_key, self._place(device)
        if pair in self._observed.get(victim_key, _NO_PAIRS):
            return True
        return at_sizes(self._pairs.get(victim_key, _NO_PAIRS).get(pair), 0, 0) is not None

    def has_sound(self, victim_key: str, other_key: str, device: str) -> bool:
        """Say whether a pair was measured here while no other job used the GPU."""
        observed = self._observed.get(victim_key, {}).get((other_key, self._place(device)))
        return observed is not None and not observed.is_doubtful

    def put_pair(self, pair: PairPrediction) -> None:
        """Store an answer about a pair; both directions of a question arrive as two of these."""
        self.changes.note(pair.victim_key, pair.other_key)
        place = pair.other_key, place_name(pair.device, pair.sharing)
        observed = self._observed.get(pair.victim_key, {}).get(place)
        if observed is not None:
            observed.answers.clear()
        by_pair = self._pairs.setdefault(pair.victim_key, {})
        by_sizes = by_pair.setdefault(place, {})
        by_sizes[pair.micro_batch_size, pair.other_micro_batch_size] = pair
        self._victims_of.setdefault(pair.other_key, {})[pair.victim_key] = None

    def replace_pair(self, pair: PairPrediction) -> None:
        """Store an answer in the place of everything that was answered about the pair, at whatever micro-batches."""
        self._pairs.get(pair.victim_key, {}).pop((pair.other_key, place_name(pair.device, pair.sharing)), None)
        self.put_pair(pair)

    def observe_pair(
        self,
        victim_key: str,
        other_key: str,
        device: str,
        slowdown_ratio: float,
        windows: int = 1,
        *,
        is_doubtful: bool = False,
    ) -> float | None:
        """Fold measured windows into the average of their pair; return by how much it moved, None for the first."""
        return self._observe(
            victim_key, other_key, self._place(device), slowdown_ratio, windows, is_doubtful=is_doubtful
        )

    def _observe(
        self, victim_key: str, other_key: str, place: str, slowdown_ratio: float, windows: int, *, is_doubtful: bool
    ) -> float | None:
        observed = self._observed.setdefault(victim_key, {})
        past = observed.get((other_key, place))
        present = with_windows(past, slowdown_ratio, windows, is_doubtful=is_doubtful)
        observed[other_key, place] = present
        self._victims_of.setdefault(other_key, {})[victim_key] = None
        moved_ratio = abs(present.slowdown_ratio - past.slowdown_ratio) if past is not None else None
        is_sounder = past is not None and past.is_doubtful and not present.is_doubtful
        is_news = moved_ratio is None or moved_ratio >= MOVED_RATIO_MIN or is_sounder
        self.changes.note(victim_key, other_key, is_news=is_news)
        return moved_ratio

    def observed_among(self, keys: Sequence[str], device: str) -> tuple[tuple[str, str, float], ...]:
        """Return (victim key, other key, slowdown) of the measured pairs of some keys; bounded."""
        named, place = frozenset(keys), self._place(device)
        found = (
            (victim, other, observed.slowdown_ratio)
            for victim in keys
            for (other, where), observed in self._observed.get(victim, {}).items()
            if where == place and other in named
        )
        return tuple(islice(found, OBSERVED_PER_QUESTION_MAX))

    def doubted_among(self, keys: Sequence[str], device: str) -> frozenset[tuple[str, str]]:
        """Return those of `observed_among` that were measured only while others used the device."""
        named, place = self.observed_among(keys, device), self._place(device)
        return frozenset(
            (victim, other) for victim, other, _ in named if self._observed[victim][other, place].is_doubtful
        )

    def sound_pairs(self, device: str) -> Iterator[tuple[str, str, float]]:
        """Yield (victim key, other key, slowdown) of the pairs measured on a device type without doubt; bounded."""
        places = {self._place(name) for name in self.places(device)}
        found = (
            (victim, other, observed.slowdown_ratio)
            for victim, pairs in self._observed.items()
            for (other, where), observed in pairs.items()
            if where in places and not observed.is_doubtful
        )
        return islice(found, OBSERVED_PER_QUESTION_MAX)

    def note_broken_trial(
        self, victim_key: str, other_key: str, device: str, slowdown_ratio: float, *, at_ms: int
    ) -> None:
        """Remember that a pair broke a consent: what the trial measured is what is known of it."""
        place = self._place(device)
        windows = self._observed.get(victim_key, {}).get((other_key, place), ObservedSlowdown(slowdown_ratio=0.0))
        observed = ObservedSlowdown(slowdown_ratio=slowdown_ratio, windows=windows.windows)
        self._observed.setdefault(victim_key, {})[other_key, place] = observed
        self._victims_of.setdefault(other_key, {})[victim_key] = None
        self._broken_trials.pop((victim_key, other_key, place), None)
        self._broken_trials[victim_key, other_key, place] = at_ms
        self.changes.note(victim_key, other_key)

    def forget_broken_trials(self, before_ms: int) -> bool:
        """Forget pairs whose trial broke before an instant, oldest first; they may be tried again."""
        has_forgotten = False
        while self._broken_trials and (oldest := next(iter(self._broken_trials.items())))[1] < before_ms:
            victim, other, place = oldest[0]
            del self._broken_trials[oldest[0]]
            self._observed.get(victim, {}).pop((other, place), None)
            self.changes.note(victim, other)
            has_forgotten = True
        return has_forgotten

    def forget_pairs(self, key: str) -> None:
        """Drop everything about the pairs of a key."""
        for pair in [pair for pair in self._broken_trials if key in pair[:2]]:
            del self._broken_trials[pair]
        for victim in self._victims_of.pop(key, {}):
            for pairs in (self._pairs.get(victim, {}), self._observed.get(victim, {})):
                for pair_key in [pair_key for pair_key in pairs if pair_key[0] == key]:
                    del pairs[pair_key]
        for other, _ in [*self._pairs.pop(key, {}), *self._observed.pop(key, {})]:
            self._victims_of.get(other, {}).pop(key, None)
