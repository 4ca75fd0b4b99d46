"""What is predicted and observed, by key: equal jobs share it.

Bounded: of the keys that no living job uses, the least recently used leave first, with everything known of them.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import islice
from types import MappingProxyType

from cotenant.device_sharing import DeviceSharing
from scheduler_service.core.cluster_view.interference_curves import INTERVAL_MS, InterferenceCurve, fit_curve
from scheduler_service.core.cluster_view.shared_ways import device_of, place_name
from scheduler_service.core.predictions.larger_peaks import LargerPeaks
from scheduler_service.core.predictions.measured_alone import MeasuredAlone, with_measured
from scheduler_service.core.predictions.measured_averages import SoloStep
from scheduler_service.core.predictions.measured_speeds import MeasuredSpeeds, SpeedFit, agrees
from scheduler_service.core.predictions.pair_store import PairStore
from scheduler_service.core.predictions.stored_predictions import PairRefresh, StoredPredictions
from scheduler_service.core.predictions.task_speeds import Tasks, TaskSpeedFit
from scheduler_service.core.records import JobPrediction, MemoryTriple

LOOKS_PER_CALL_MAX = 16
"""Keys looked at while making room, so that the cost of a submission stays bounded."""


class PredictionStore(PairStore):
    """Predictions by key and device, overridden by what was observed; a `Predictions` for policies.

    Args:
        keys_max: Keys about which pairs are kept.

    Attributes:
        speeds: Step times measured alone, and curves fitted to them.
        larger_peaks: About what the predictor is to be asked again.
    """

    def __init__(self, *, keys_max: int = 2_000) -> None:
        super().__init__()
        self.keys_max = keys_max
        self._recent: dict[str, None] = {}
        self._jobs: dict[str, dict[str, JobPrediction]] = {}
        self._predicted: dict[str, dict[str, JobPrediction]] = {}
        self._memory_states: dict[str, dict[str, MemoryTriple]] = {}
        self._alone: dict[str, dict[tuple[str, int], MeasuredAlone]] = {}
        self._measured_alone: set[tuple[str, str]] = set()
        self._failures: dict[str, dict[str, str]] = {}
        self._outstanding: dict[str, dict[str, None]] = {}
        self._outstanding_pairs: dict[tuple[str, str], None] = {}
        self.speeds = MeasuredSpeeds()
        self.larger_peaks = LargerPeaks()
        self._unpredictable: dict[str, str] = {}
        self.refreshes: dict[str, PairRefresh] = {}
        self.curves: dict[str, InterferenceCurve] = {}

    @property
    def measured_alone(self) -> AbstractSet[tuple[str, str]]:
        """Keys and device types of which some job was measured alone on one GPU; in no order."""
        return self._measured_alone

    def job(self, key: str, device: str) -> JobPrediction | None:
        """Return what is known of a key on a device type: measured alone where no prediction is reliable; or None."""
        by_device = self._jobs.get(key)
        return by_device.get(device) if by_device is not None else None

    def solo_step_ms(
        self, key: str, device: str, *, gpus: int, micro_batch_size: int, servers: int = 0
    ) -> float | None:
        """Return the measured step time of a key alone, with so many parameter servers, or None."""
        solo = self.speeds.solo(key, device, (gpus, micro_batch_size), servers)
        return solo.step_ms if solo is not None else None

    def sound_solo_step_ms(
        self, key: str, device: str, *, gpus: int, micro_batch_size: int, servers: int = 0
    ) -> float | None:
        """Return the same, or None where others used the GPUs all the time."""
        solo = self.speeds.solo(key, device, (gpus, micro_batch_size), servers)
        return solo.step_ms if solo is not None and not solo.is_doubtful else None

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

    @property
    def awaits_answers(self) -> bool:
        """Whether any question is not yet answered."""
        return bool(self._outstanding or self._outstanding_pairs)

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
        self._measured_alone.difference_update([(key, device) for device in self._jobs.get(key, ())])
        tables = self._recent, self._jobs, self._predicted, self._alone, self._failures, self._outstanding
        self._memory_states.pop(key, None)
        for table in (*tables, self._unpredictable):
            table.pop(key, None)
        self.speeds.forget(key)
        self.larger_peaks.forget(key)
        self.forget_pairs(key)
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
        states = self._memory_states.get(key, {}).get(device)
        if told is not None and states is not None:
            told = replace(told, memory_triple=states)
        known = self.speeds.known(key, device, told)
        if known is not None and known != self.job(key, device):
            self._jobs.setdefault(key, {})[device] = known
            (self._measured_alone.add if known.measured_micro_batch_sizes else self._measured_alone.discard)(
                (key, device)
            )
            self.changes.note(key)

    def put_failure(self, key: str, device: str, code: str) -> None:
        """Store that a question about a key failed."""
        self._answered(key, device)
        self._failures.setdefault(key, {})[device] = code
        self.larger_peaks.forget_question(key, device)
        if not self._jobs.get(key):
            self._unpredictable[key] = code

    def answer_pairs(self, key: str, device: str, sharing: DeviceSharing) -> None:
        """Note that the question about the pairs of a key was answered, well or badly."""
        name = place_name(device, sharing) if device in self._mixed else device
        self._outstanding_pairs.pop((key, name), None)

    def forget_questions(self, device: str) -> None:
        """Await no answer any more about pairs on a device type: it is shared in other ways now."""
        for question in [question for question in self._outstanding_pairs if device_of(question[1]) == device]:
            del self._outstanding_pairs[question]

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
        servers: int = 0,
    ) -> bool:
        """Add one window measured alone; what is known of the key follows once it says something else.

        Returns:
            Whether it is the first sound one on so many GPUs, with so many parameter servers.
        """
        shape, before = (gpus, micro_batch_size), self.job(key, device)
        solo = self.speeds.observe(
            key, device, shape, steps=steps, window_ms=window_ms, is_doubtful=is_doubtful, servers=servers
        )
        if servers:
            return self._observe_tasks(key, device, (gpus, servers), solo)
        if before is None or solo.is_doubtful or not self.speeds.is_used:
            return False
        is_new = gpus not in before.measured_gpus
        if is_new or not agrees(solo.step_ms, before.step_ms.get(shape, 0.0)):
            self._serve(key, device)
        return is_new

    def _observe_tasks(self, key: str, device: str, tasks: Tasks, solo: SoloStep) -> bool:
        """Let a window of a job with parameter servers say what is known; its numbers may be all that is."""
        if solo.is_doubtful or not self.speeds.is_used:
            return False
        before = self.job(key, device)
        is_new = before is None or tasks not in before.measured_tasks
        if before is None or is_new or not agrees(solo.step_ms, before.task_step_ms.get(tasks, 0.0)):
            self._serve(key, device)
        return is_new

    def put_task_speed_fit(self, key: str, device: str, fit: TaskSpeedFit) -> None:
        """Keep a curve over numbers of workers and parameter servers, or the question for one."""
        self.speeds.put_task_fit(key, device, fit)
        self._serve(key, device)

    def put_speed_fit(self, key: str, device: str, fit: SpeedFit) -> None:
        """Keep a curve over numbers of GPUs, or the question for one."""
        self.speeds.put_fit(key, device, fit)
        self._serve(key, device)

    def fit_curve(self, device: str, *, at_ms: int) -> None:
        """Fit Horus' curve of a device type to the pairs measured there, once a minute at most."""
        before = self.curves.get(device)
        if not self.speeds.is_used or (before is not None and at_ms < before.fitted_at_ms + INTERVAL_MS):
            return
        points = (
            (one.utilization_ratio + two.utilization_ratio, slowdown_ratio)
            for victim, other, slowdown_ratio in self.sound_pairs(device)
            if (one := self.job(victim, device)) is not None and (two := self.job(other, device)) is not None
        )
        after = fit_curve(points, before, at_ms=at_ms)
        if after is not None:
            # A look counts as well: without a change the next one is as far away.
            self.curves[device] = replace(after, fitted_at_ms=at_ms)

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
                pair for pairs in self._pairs.values() for by_sizes in pairs.values() for pair in by_sizes.values()
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
            task_speeds=self.speeds.stored_tasks(),
            task_speed_fits=self.speeds.stored_task_fits(),
            curves=dict(self.curves),
            larger_peaks=tuple(self.larger_peaks.stored()),
            alone=tuple((key, *shape, one) for key, shapes in self._alone.items() for shape, one in shapes.items()),
            broken_trials=tuple((*pair, at_ms) for pair, at_ms in self._broken_trials.items()),
            memory_states=tuple(
                (key, device, one) for key, devices in self._memory_states.items() for device, one in devices.items()
            ),
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
        for (victim, other, place, ratio), count in zip(stored.observed, windows, strict=True):
            is_doubtful = (victim, other, place) in doubted
            self._observe(victim, other, place, ratio, count, is_doubtful=is_doubtful)
        self.refreshes, self.curves = dict(stored.refreshes), dict(stored.curves)
        self._outstanding_pairs = dict.fromkeys(stored.outstanding_pairs)
        self.larger_peaks.load(stored.larger_peaks)
        for key, device in self.speeds.load(stored.solo, stored.speed_fits):
            self._serve(key, device)
        for key, device in self.speeds.load_tasks(stored.task_speeds, stored.task_speed_fits):
            self._serve(key, device)
        for key, device, micro_batch_size, measured in stored.alone:
            self._alone.setdefault(key, {})[device, micro_batch_size] = measured
            self._serve(key, device)
        for key, device, states in stored.memory_states:
            self._memory_states.setdefault(key, {})[device] = states
            self._serve(key, device)
        self._broken_trials = {(victim, other, device): at_ms for victim, other, device, at_ms in stored.broken_trials}

    def observe_alone(
        self,
        key: str,
        device: str,
        *,
        micro_batch_size: int,
        memory_peak_bytes: int,
        utilization_ratio: float | None,
        servers: int = 0,
    ) -> None:
        """Take in one sound window of a key alone on one GPU; its step time is stored already."""
        by_shape = self._alone.setdefault(key, {})
        past = by_shape.get((device, micro_batch_size)) or MeasuredAlone()
        if past.counts_only(memory_peak_bytes):
            by_shape[device, micro_batch_size] = past.changed(windows=past.windows + 1)
            return
        step_ms = self.sound_solo_step_ms(key, device, gpus=1, micro_batch_size=micro_batch_size, servers=servers)
        present = past.joined_by(memory_peak_bytes, utilization_ratio, step_ms or past.step_ms)
        by_shape[device, micro_batch_size] = present
        if present != past.changed(windows=present.windows) or present.is_repeated != past.is_repeated:
            self._serve(key, device)

    def observe_memory_states(self, key: str, device: str, states: MemoryTriple) -> None:
        """Keep what was measured of the memory of a key that releases it; it takes the place of what was predicted."""
        if self.knows(key):
            self._memory_states.setdefault(key, {})[device] = states
            self._serve(key, device)

    def raise_peak(self, key: str, device: str, *, micro_batch_size: int, memory_peak_bytes: int) -> None:
        """Note a larger peak of a key that was measured alone, seen while it shares."""
        by_shape = self._alone.get(key, {})
        past = by_shape.get((device, micro_batch_size))
        if past is not None and memory_peak_bytes > past.memory_peak_bytes > 0:
            by_shape[device, micro_batch_size] = past.changed(memory_peak_bytes=memory_peak_bytes)
            self._serve(key, device)
