"""What is predicted and observed, by key: equal jobs share it.

Bounded: of the keys that no living job uses, the least recently used leave first, with everything known of them.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from types import MappingProxyType

from scheduler_service.core.change_log import ChangeLog
from scheduler_service.core.measured_alone import MeasuredAlone, with_measured
from scheduler_service.core.measured_averages import ObservedSlowdown, with_windows
from scheduler_service.core.measured_speeds import MeasuredSpeeds, SpeedFit, agrees
from scheduler_service.core.records import JobPrediction, Level, PairPrediction
from scheduler_service.core.stored_predictions import PairRefresh, StoredPredictions

LOOKS_PER_CALL_MAX = 16
"""Keys looked at while making room, so that the cost of a submission stays bounded."""
OBSERVED_PER_QUESTION_MAX = 2_000
"""Measured pairs that travel with a question about pairs."""


class PredictionStore:
    """Predictions by key and device, overridden by what was observed; a `Predictions` for policies.

    Args:
        keys_max: Keys about which pairs are kept.

    Attributes:
        speeds: Step times measured alone, and curves fitted to them.
    """

    def __init__(self, *, keys_max: int = 2_000) -> None:
        self.keys_max = keys_max
        self._recent: dict[str, None] = {}
        self._jobs: dict[str, dict[str, JobPrediction]] = {}
        self._predicted: dict[str, dict[str, JobPrediction]] = {}
        self._alone: dict[str, dict[tuple[str, int], MeasuredAlone]] = {}
        self._broken_trials: dict[tuple[str, str, str], int] = {}
        self._failures: dict[str, dict[str, str]] = {}
        self._outstanding: dict[str, dict[str, None]] = {}
        self._pairs: dict[str, dict[tuple[str, str], dict[int, PairPrediction]]] = {}
        self._observed: dict[str, dict[tuple[str, str], ObservedSlowdown]] = {}
        self._victims_of: dict[str, dict[str, None]] = {}
        self._outstanding_pairs: dict[tuple[str, str], None] = {}
        self.speeds = MeasuredSpeeds()
        self._unpredictable: dict[str, str] = {}
        self.refreshes: dict[str, PairRefresh] = {}
        self.changes = ChangeLog()

    def job(self, key: str, device: str) -> JobPrediction | None:
        """Return what is known of a key on a device type: measured alone where no prediction is reliable; or None."""
        by_device = self._jobs.get(key)
        return by_device.get(device) if by_device is not None else None

    def pair(self, victim_key: str, other_key: str, device: str, micro_batch_size: int = 0) -> PairPrediction | None:
        """Return how much `other_key` slows `victim_key` down: observed before predicted, this size before any.

        What was measured while others used the GPU is no measurement of the pair: it raises a prediction's upper end,
        and answers, out of domain, where nothing else is known.
        """
        observed_co_located = self._observed.get(victim_key)
        observed = observed_co_located.get((other_key, device)) if observed_co_located is not None else None
        if observed is None:
            return self.predicted_pair(victim_key, other_key, device, micro_batch_size)
        known = observed.answers.get(micro_batch_size)
        if known is not None:
            return known
        predicted = self.predicted_pair(victim_key, other_key, device, micro_batch_size)
        seen = max(observed.slowdown_ratio, 0.0)
        promised = predicted.upper_ratio if observed.is_doubtful and predicted is not None else 0.0
        if observed.is_doubtful and predicted is not None and predicted.level is not Level.FALLBACK:
            # The predictor is told of it and has moved its answer; here it lowers no upper end.
            return replace(predicted, upper_ratio=max(predicted.upper_ratio, seen))
        observed.answers[micro_batch_size] = answer = PairPrediction(
            victim_key=victim_key,
            other_key=other_key,
            device=device,
            slowdown_ratio=seen,
            upper_ratio=max(seen, promised),
            micro_batch_size=micro_batch_size,
            level=Level.OBSERVED,
            in_domain=not observed.is_doubtful,
            model_version=predicted.model_version if predicted is not None else "",
            times_measured=0 if observed.is_doubtful else observed.windows,
        )
        return answer

    def predicted_pair(
        self, victim_key: str, other_key: str, device: str, micro_batch_size: int = 0
    ) -> PairPrediction | None:
        """Return what the predictor answered about a pair, or None: this micro-batch before any."""
        by_micro_batch_size = self._pairs.get(victim_key, {}).get((other_key, device), {})
        return by_micro_batch_size.get(micro_batch_size) or by_micro_batch_size.get(0)

    def has_pair(self, victim_key: str, other_key: str, device: str) -> bool:
        """Say whether anything is known of a pair."""
        return self.has_observed(victim_key, other_key, device) or (
            self.predicted_pair(victim_key, other_key, device) is not None
        )

    def has_observed(self, victim_key: str, other_key: str, device: str) -> bool:
        """Say whether a pair was measured here."""
        return (other_key, device) in self._observed.get(victim_key, {})

    def has_sound(self, victim_key: str, other_key: str, device: str) -> bool:
        """Say whether a pair was measured here while nobody else used the GPU."""
        observed = self._observed.get(victim_key, {}).get((other_key, device))
        return observed is not None and not observed.is_doubtful

    def solo_step_ms(self, key: str, device: str, *, gpus: int, micro_batch_size: int) -> float | None:
        """Return the measured step time of a key alone, or None."""
        return solo.step_ms if (solo := self.speeds.solo(key, device, (gpus, micro_batch_size))) is not None else None

    def sound_solo_step_ms(self, key: str, device: str, *, gpus: int, micro_batch_size: int) -> float | None:
        """Return the same, or None where others used the GPUs all the time."""
        return self.speeds.sound_step_ms(key, device).get((gpus, micro_batch_size))

    @property
    def unpredictable_keys(self) -> Mapping[str, str]:
        """Keys that no device has a prediction for, with the code of the newest failure."""
        return MappingProxyType(self._unpredictable)

    def failure(self, key: str, device: str) -> str:
        """Return the code of the failed question, or an empty string."""
        return self._failures.get(key, {}).get(device, "")

    def outstanding_devices(self, key: str) -> tuple[str, ...]:
        """Return the device types about which an answer is awaited."""
        return tuple(self._outstanding.get(key, ()))

    def outstanding_keys(self) -> tuple[str, ...]:
        """Return the keys about which any answer is awaited."""
        return tuple(self._outstanding)

    def outstanding_pairs(self) -> tuple[tuple[str, str], ...]:
        """Return the (key, device) questions about pairs that are not yet answered."""
        return tuple(self._outstanding_pairs)

    def awaits_pairs(self, key: str, device: str) -> bool:
        """Say whether a question about the pairs of a key is on its way."""
        return (key, device) in self._outstanding_pairs

    def knows(self, key: str) -> bool:
        """Say whether the key was used and not forgotten since."""
        return key in self._recent

    def use(self, key: str) -> None:
        """Note that a key was used now."""
        self._recent.pop(key, None)
        self._recent[key] = None

    def forget_unused(self, keys_in_use: Container[str]) -> None:
        """Drop the least recently used keys beyond the bound; keys in use stay and count as used now."""
        for key in list(islice(self._recent, LOOKS_PER_CALL_MAX)):
            if len(self._recent) <= self.keys_max:
                return
            if key in keys_in_use:
                self.use(key)
            else:
                self._forget(key)

    def _forget(self, key: str) -> None:
        self.changes.note(key)
        tables = self._recent, self._jobs, self._predicted, self._alone, self._failures, self._outstanding
        for table in (*tables, self._unpredictable):
            table.pop(key, None)
        self.speeds.forget(key)
        for pair in [pair for pair in self._broken_trials if key in pair[:2]]:
            del self._broken_trials[pair]
        for victim in self._victims_of.pop(key, {}):
            for pairs in (self._pairs.get(victim, {}), self._observed.get(victim, {})):
                for pair_key in [pair_key for pair_key in pairs if pair_key[0] == key]:
                    del pairs[pair_key]
        for other, _ in [*self._pairs.pop(key, {}), *self._observed.pop(key, {})]:
            self._victims_of.get(other, {}).pop(key, None)
        for question in [question for question in self._outstanding_pairs if question[0] == key]:
            del self._outstanding_pairs[question]

    def await_job(self, key: str, device: str) -> None:
        """Note that a question about a key is on its way."""
        self._outstanding.setdefault(key, {})[device] = None

    def await_pairs(self, key: str, device: str) -> None:
        """Note that a question about the pairs of a key is on its way."""
        self._outstanding_pairs[key, device] = None

    def _answered(self, key: str, device: str) -> None:
        devices = self._outstanding.get(key)
        if devices is not None:
            devices.pop(device, None)
            if not devices:
                del self._outstanding[key]

    def put_job(self, prediction: JobPrediction) -> None:
        """Store an answer about a key."""
        self._answered(prediction.key, prediction.device)
        self._failures.get(prediction.key, {}).pop(prediction.device, None)
        self._unpredictable.pop(prediction.key, None)
        self._predicted.setdefault(prediction.key, {})[prediction.device] = prediction
        self._serve(prediction.key, prediction.device)

    def _serve(self, key: str, device: str) -> None:
        """Keep what `job` returns: the prediction, or what was measured."""
        measured = {size: one for (where, size), one in self._alone.get(key, {}).items() if where == device}
        told = with_measured(key, device, self._predicted.get(key, {}).get(device), measured)
        known = self.speeds.known(key, device, told)
        if known is not None and known != self.job(key, device):
            self._jobs.setdefault(key, {})[device] = known
            self.changes.note(key)

    def put_failure(self, key: str, device: str, code: str) -> None:
        """Store that a question about a key failed."""
        self._answered(key, device)
        self._failures.setdefault(key, {})[device] = code
        if not self._jobs.get(key):
            self._unpredictable[key] = code

    def put_pair(self, pair: PairPrediction) -> None:
        """Store an answer about a pair; both directions of a question arrive as two of these."""
        self.changes.note(pair.victim_key, pair.other_key)
        observed = self._observed.get(pair.victim_key, {}).get((pair.other_key, pair.device))
        if observed is not None:
            observed.answers.clear()
        by_pair = self._pairs.setdefault(pair.victim_key, {})
        by_pair.setdefault((pair.other_key, pair.device), {})[pair.micro_batch_size] = pair
        self._victims_of.setdefault(pair.other_key, {})[pair.victim_key] = None

    def answer_pairs(self, key: str, device: str) -> None:
        """Note that the question about the pairs of a key was answered, well or badly."""
        self._outstanding_pairs.pop((key, device), None)

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
        self.changes.note(victim_key, other_key)
        observed = self._observed.setdefault(victim_key, {})
        past = observed.get((other_key, device))
        present = with_windows(past, slowdown_ratio, windows, is_doubtful=is_doubtful)
        observed[other_key, device] = present
        self._victims_of.setdefault(other_key, {})[victim_key] = None
        return abs(present.slowdown_ratio - past.slowdown_ratio) if past is not None else None

    def observed_among(self, keys: Sequence[str], device: str) -> tuple[tuple[str, str, float], ...]:
        """Return (victim key, other key, slowdown) of the measured pairs of some keys; bounded."""
        named = frozenset(keys)
        found = (
            (victim, other, observed.slowdown_ratio)
            for victim in keys
            for (other, device_of_pair), observed in self._observed.get(victim, {}).items()
            if device_of_pair == device and other in named
        )
        return tuple(islice(found, OBSERVED_PER_QUESTION_MAX))

    def doubted_among(self, keys: Sequence[str], device: str) -> frozenset[tuple[str, str]]:
        """Return those of `observed_among` that were measured only while others used the device."""
        named = self.observed_among(keys, device)
        return frozenset(
            (victim, other) for victim, other, _ in named if self._observed[victim][other, device].is_doubtful
        )

    def observe_solo(
        self,
        key: str,
        device: str,
        *,
        gpus: int,
        micro_batch_size: int,
        steps: int,
        window_ms: int,
        is_doubtful: bool = False,
    ) -> None:
        """Add one window measured alone; what is known of the key follows once it says something else."""
        shape = gpus, micro_batch_size
        solo = self.speeds.observe(key, device, shape, steps=steps, window_ms=window_ms, is_doubtful=is_doubtful)
        known = self.job(key, device)
        if known is not None and not solo.is_doubtful and not agrees(solo.step_ms, known.step_ms.get(shape, 0.0)):
            self._serve(key, device)

    def put_speed_fit(self, key: str, device: str, fit: SpeedFit) -> None:
        """Keep a curve over numbers of GPUs, or the question for one."""
        self.speeds.put_fit(key, device, fit)
        self._serve(key, device)

    def stored(self) -> StoredPredictions:
        """Return everything inside."""
        return StoredPredictions(
            recent=tuple(self._recent),
            jobs=tuple(prediction for devices in self._predicted.values() for prediction in devices.values()),
            failures=tuple(
                (key, device, code) for key, devices in self._failures.items() for device, code in devices.items()
            ),
            outstanding=tuple((key, device) for key, devices in self._outstanding.items() for device in devices),
            pairs=tuple(
                pair
                for pairs in self._pairs.values()
                for by_micro_batch_size in pairs.values()
                for pair in by_micro_batch_size.values()
            ),
            observed=tuple(
                (victim, other, device, observed.slowdown_ratio)
                for victim, pairs in self._observed.items()
                for (other, device), observed in pairs.items()
            ),
            observed_windows=tuple(
                observed.windows for pairs in self._observed.values() for observed in pairs.values()
            ),
            doubted=tuple(
                (victim, other, device)
                for victim, pairs in self._observed.items()
                for (other, device), observed in pairs.items()
                if observed.is_doubtful
            ),
            refreshes=dict(self.refreshes),
            outstanding_pairs=tuple(self._outstanding_pairs),
            solo=self.speeds.stored_solo(),
            speed_fits=self.speeds.stored_fits(),
            alone=tuple((key, *shape, one) for key, shapes in self._alone.items() for shape, one in shapes.items()),
            broken_trials=tuple((*pair, at_ms) for pair, at_ms in self._broken_trials.items()),
        )

    def load(self, stored: StoredPredictions) -> None:
        """Fill an empty store."""
        self._recent = dict.fromkeys(stored.recent)
        for prediction in stored.jobs:
            self.put_job(prediction)
        for key, device, code in stored.failures:
            self.put_failure(key, device, code)
        for key, device in stored.outstanding:
            self.await_job(key, device)
        for pair in stored.pairs:
            self.put_pair(pair)
        # Who wrote it before windows were counted has seen each pair at least once.
        windows = stored.observed_windows or (1,) * len(stored.observed)
        doubted = frozenset(stored.doubted)
        for (victim, other, device, ratio), count in zip(stored.observed, windows, strict=True):
            is_doubtful = (victim, other, device) in doubted
            self.observe_pair(victim, other, device, ratio, count, is_doubtful=is_doubtful)
        self.refreshes = dict(stored.refreshes)
        self._outstanding_pairs = dict.fromkeys(stored.outstanding_pairs)
        for key, device in self.speeds.load(stored.solo, stored.speed_fits):
            self._serve(key, device)
        for key, device, micro_batch_size, measured in stored.alone:
            self._alone.setdefault(key, {})[device, micro_batch_size] = measured
            self._serve(key, device)
        self._broken_trials = {(victim, other, device): at_ms for victim, other, device, at_ms in stored.broken_trials}

    def observe_alone(
        self, key: str, device: str, *, micro_batch_size: int, memory_peak_bytes: int, utilization_ratio: float | None
    ) -> None:
        """Take in one sound window of a key alone on one GPU; its step time is stored already."""
        by_shape = self._alone.setdefault(key, {})
        past = by_shape.get((device, micro_batch_size), MeasuredAlone())
        step_ms = self.sound_solo_step_ms(key, device, gpus=1, micro_batch_size=micro_batch_size)
        present = past.joined_by(memory_peak_bytes, utilization_ratio, step_ms or past.step_ms)
        by_shape[device, micro_batch_size] = present
        if present != replace(past, windows=present.windows):
            self._serve(key, device)

    def raise_peak(self, key: str, device: str, *, micro_batch_size: int, memory_peak_bytes: int) -> None:
        """Note a larger peak of a key that was measured alone, seen while it shares."""
        by_shape = self._alone.get(key, {})
        past = by_shape.get((device, micro_batch_size))
        if past is not None and memory_peak_bytes > past.memory_peak_bytes > 0:
            by_shape[device, micro_batch_size] = replace(past, memory_peak_bytes=memory_peak_bytes)
            self._serve(key, device)

    def note_broken_trial(
        self, victim_key: str, other_key: str, device: str, slowdown_ratio: float, *, at_ms: int
    ) -> None:
        """Remember that a pair broke a consent: what the trial measured is what is known of it."""
        windows = self._observed.get(victim_key, {}).get((other_key, device), ObservedSlowdown(slowdown_ratio=0.0))
        observed = ObservedSlowdown(slowdown_ratio=slowdown_ratio, windows=windows.windows)
        self._observed.setdefault(victim_key, {})[other_key, device] = observed
        self._victims_of.setdefault(other_key, {})[victim_key] = None
        self._broken_trials.pop((victim_key, other_key, device), None)
        self._broken_trials[victim_key, other_key, device] = at_ms
        self.changes.note(victim_key, other_key)

    def forget_broken_trials(self, before_ms: int) -> bool:
        """Forget pairs whose trial broke before an instant, oldest first; they may be tried again."""
        has_forgotten = False
        while self._broken_trials and (oldest := next(iter(self._broken_trials.items())))[1] < before_ms:
            victim, other, device = oldest[0]
            del self._broken_trials[oldest[0]]
            self._observed.get(victim, {}).pop((other, device), None)
            self.changes.note(victim, other)
            has_forgotten = True
        return has_forgotten
