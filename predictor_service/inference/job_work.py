"""What jobs share that differ in how long they wait for their input only.

The wait enters two features and scales the roofline; memory does not depend on it at all. A question whose wait was
never seen is therefore answered from what an earlier one with the same mode, precision, optimizer and offers found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final

from cotenant.job_settings import JobSettings
from predictor_service.cross_device.step_model import answers_for
from predictor_service.features.devices import DeviceType
from predictor_service.features.job_features import WorkTable, tabulate_work
from predictor_service.features.job_settings import OPTIMIZER_SLOTS
from predictor_service.features.operator_times import FloatArray, rates_of
from predictor_service.features.untaught_settings import name_untaught
from predictor_service.inference.bounded_curve import BoundedCurve
from predictor_service.inference.measured_graph import MeasuredGraph
from predictor_service.inference.unusual_features import UnusualFeatures
from predictor_service.registry.served_version import ServedTarget
from predictor_service.regressors.interface import FeatureArray
from predictor_service.selection.targets import MEMORY, Target

_NAMED_MAX: Final = 3


class JobWork:
    """Features, curves and verdicts that no input wait changes; safe for many threads.

    Args:
        graph: The graph.
        settings: How the jobs run; neither batch nor wait are looked at.
        device: What they run on.
        models: Trained targets of the device type; empty = none.
        measured_devices: Device types that any model was trained for.
        on_measured: The same job on a device type whose memory others measured; None = there is none.

    Attributes:
        curves: Those of targets that `is_the_same` holds for, by target.
        unusual: In what jobs are unlike the training rows, by target and grid point, whatever wait the model accepts.
        memory_spreads: How far errors of memory spread, by grid point, where the model does not see the wait.
    """

    def __init__(
        self,
        graph: MeasuredGraph,
        settings: JobSettings,
        device: DeviceType,
        models: Mapping[str, ServedTarget],
        measured_devices: Sequence[str] = (),
        *,
        on_measured: JobWork | None = None,
    ) -> None:
        self.graph = graph
        self.settings = settings
        self.device = device
        self._trained = models
        self._measured_devices = measured_devices
        self._on_measured = on_measured
        self.curves: dict[str, BoundedCurve] = {}
        self.unusual: dict[tuple[str, int], UnusualFeatures] = {}
        self.memory_spreads: dict[int, float] = {}
        self._kept: WorkTable | None = None
        self._unlike_all: dict[tuple[str | None, int, int], bool] = {}
        self._familiar: dict[str, bool | None] = {}
        self._network_novelty: dict[str, FloatArray | None] = {}
        self._columns: dict[str, tuple[FeatureArray, FloatArray]] = {}
        self._taught: dict[tuple[int, str], JobWork] = {}

    @cached_property
    def models(self) -> Mapping[str, ServedTarget]:
        """Trained targets of the device type that answer for this job."""
        trained = self._trained
        if not any(model.record.is_public for model in trained.values()):
            return trained
        return {name: model for name, model in trained.items() if not model.record.is_public or self._is_taught(model)}

    @property
    def memory_of_others(self) -> JobWork | None:
        """What answers for memory without a model of the device type: the job on one where such jobs were measured."""
        other = self._on_measured
        return other if other is not None and answers_for(self.device) and MEMORY.name in other.models else None

    def _is_taught(self, model: ServedTarget) -> bool:
        """Whether others measured such jobs: where they did not, what is known of all device types errs less.

        Memory is asked only about networks made of operators as measured ones; of times, few networks tell no others.
        """
        is_familiar = self.is_familiar(model)
        if self._asked_precision(model) not in model.record.precisions or not model.knows_mode(self.settings.mode):
            return False
        return bool(is_familiar) if model.target is MEMORY else is_familiar is not False

    def _asked_precision(self, model: ServedTarget) -> str:
        """The precision about which a model is asked: where a card has no units for the job's, it computes in fp32.

        The model of all types would answer else, whose card is another one: a T4 took a third of its time in bf16.
        """
        precision = self.settings.precision
        is_known = precision in model.record.precisions or self.device.has_units_for(precision)
        return precision if is_known or model.target is MEMORY or not model.record.is_public else "fp32"

    @cached_property
    def untaught(self) -> tuple[str, ...]:
        """Settings that no model sees, in words; empty where models see all."""
        return name_untaught(self.settings)

    @cached_property
    def unmeasured(self) -> tuple[str, ...]:
        """Why nothing that is said of the device without a model is in domain."""
        if self._trained:
            return (f"nothing was measured of such jobs on {self.device.name}", *self.untaught)
        measured = ", ".join(sorted(self._measured_devices)[:_NAMED_MAX]) or "none"
        return (f"device {self.device.name}, measured {measured}", *self.untaught)

    def as_taught(self, model: ServedTarget) -> JobWork:
        """The job with the precision and the optimizer that a model is asked about, see `ServedTarget.asked_slots`.

        A model says by what factor physics is off. If the factor depended on numbers per parameter that hardly any row
        had, an optimizer that keeps less could seem to need more.
        """
        slots, settings = model.asked_slots, self.settings
        if slots is None or settings.mode != "train":
            slots = OPTIMIZER_SLOTS[settings.optimizer]
        precision = self._asked_precision(model)
        if slots == OPTIMIZER_SLOTS[settings.optimizer] and precision == settings.precision:
            return self
        key = (slots, precision)
        kept = self._taught.get(key)
        if kept is None:
            optimizer = settings.optimizer
            if slots != OPTIMIZER_SLOTS[optimizer]:
                optimizer = next((name for name, numbers in OPTIMIZER_SLOTS.items() if numbers == slots), optimizer)
            taught = replace(settings, optimizer=optimizer, precision=precision)
            kept = self._taught[key] = JobWork(self.graph, taught, self.device, self._trained)
        return kept

    def table(self, points: int) -> WorkTable:
        """Features at the first points of `GRID`; further ones may follow."""
        kept = self._kept
        if kept is None or len(kept) < points:
            times = self.graph.times(points, rates_of(self.settings, self.device))
            kept = self._kept = tabulate_work(self.graph.table(points), self.settings, self.device, times)
        return kept

    def is_the_same(self, target: Target, points: int) -> bool:
        """Whether the curve of a target over the first points of `GRID` is the same whatever the wait."""
        if target is not MEMORY:  # all others are counted in, or limited by, the time that is spent waiting
            return False
        model, other = self.models.get(target.name), self.memory_of_others
        if model is None:
            return other is None or other.is_the_same(target, points)
        return not model.sees_wait and (model.nearness_sha256 is None or self.is_unlike_all(model, slice(0, points)))

    def is_unlike_all(self, model: ServedTarget, points: slice) -> bool:
        """Whether the kind of job alone is farther from all measured ones than novelty tells apart, at all points."""
        key = (model.nearness_sha256, points.start, points.stop)
        known = self._unlike_all.get(key)
        if known is None:
            known = self._unlike_all[key] = model.is_unlike_all(self.table(points.stop).values[points])
        return known

    def is_familiar(self, model: ServedTarget) -> bool | None:
        """Whether the network is like those of known families, whatever its settings; None where that is not known."""
        name = model.target.name
        if name not in self._familiar:
            found = model.is_familiar(self.table(1).values[:1])
            self._familiar[name] = None if found is None else bool(found[0])
        return self._familiar[name]

    def network_novelty(self, model: ServedTarget) -> FloatArray | None:
        """How unlike those of known families the network is, shape (1,); None where that is not known."""
        name = model.target.name
        if name not in self._network_novelty:
            self._network_novelty[name] = model.network_novelty(self.table(1).values[:1])
        return self._network_novelty[name]

    def columns(
        self, model: ServedTarget, points: slice, vectors: FloatArray, input_wait_ratio: float
    ) -> tuple[FeatureArray, FloatArray]:
        """What a target is asked with, and how far that is outside of what was trained.

        Args:
            model: Of the target.
            points: Consecutive points of `GRID`.
            vectors: Features of a job at the first points or more, shape (points, len(FEATURES)).
            input_wait_ratio: Of this job; all other features are those of every job.
        """
        kept = self._columns.get(model.target.name)
        if kept is None or len(kept[0]) < points.stop:
            columns = model.select(vectors)
            kept = self._columns[model.target.name] = (columns, model.excess_but_for_wait(columns))
        return model.with_wait(kept[0][points], kept[1][:, points], input_wait_ratio)
