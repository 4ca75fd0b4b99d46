"""A stored version judged like any other method; it was trained before, so fitting it changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from predictor_service.errors import TrainingDataError
from predictor_service.features.devices import find_device_type
from predictor_service.features.job_features import FEATURES
from predictor_service.features.pair_features import SoloFigures, build_pair_features, fair_share_slowdowns
from predictor_service.learning.problem import ALL_DEVICES, CandidateResult, FloatArray, Forecast, JobFacts, Problem
from predictor_service.registry.served_version import ServedTarget, ServedVersion
from predictor_service.selection.targets import MEMORY, SLOWDOWN, SM_ACTIVITY, STEP, UTILIZATION, Target

_ANCHORS: Final[Mapping[str, Callable[[JobFacts], float]]] = {
    UTILIZATION.name: lambda job: 1.0 - job.input_wait_ratio,
    SM_ACTIVITY.name: lambda job: 1.0 - job.input_wait_ratio,
    MEMORY.name: lambda job: job.graph["analytical_memory_bytes"],
    STEP.name: lambda job: job.graph["roofline_ms"],
}

_Asked = tuple[np.ndarray[tuple[int, int], np.dtype[np.float32]], FloatArray, FloatArray | None]
"""Columns, anchor, and how strange each row is where widths follow it."""


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A method, and what it has learned, in one.

    Args:
        version: Loaded.
        target: What is predicted.
        device: Device type; its models answer.

    Raises:
        TrainingDataError: The version has no model of this target and device type.
    """

    version: ServedVersion
    target: Target
    device: str

    def __post_init__(self) -> None:
        if self._served is None:
            known = sorted(
                f"{target} on {device}" for device, targets in self.version.devices.items() for target in targets
            )
            raise TrainingDataError(
                f"version {self.version.version} has no model of {self.target.name} on {self.device}",
                remedy=f"it has: {', '.join(known)}; or judge a new one with --model fresh",
            )

    @property
    def name(self) -> str:
        """Name of the version."""
        return f"version {self.version.version}"

    @property
    def selected(self) -> str:
        """The candidate that was chosen when it was trained."""
        return self._model.record.winner

    @property
    def candidates(self) -> Sequence[CandidateResult]:
        """The scored table of its training."""
        table = self._model.record.candidates
        return [CandidateResult(name=line.name, inner_mae=line.error_mean_unit) for line in table]

    def fit(self, problem: Problem, seed: int) -> StoredModel:
        """Returns itself."""
        return self

    def predict(self, problem: Problem) -> Forecast:
        """Predicts rows for which `refuse` has no reason."""
        columns, anchor, near = self._pairs(problem) if self.target is SLOWDOWN else self._solo(problem)
        bounded = self._model.predict_bounded(columns, anchor, 0.9, strangeness=near)
        return Forecast(
            value=bounded.value,
            lower_90=bounded.lower,
            upper_90=bounded.upper,
            upper_99=bounded.upper_99,
            in_domain=self._model.contains(columns),
        )

    def refuse(self, job: JobFacts, others: Sequence[JobFacts]) -> str:
        """Why a row cannot be answered; empty when it can."""
        if self.target is not SLOWDOWN:
            return "" if "roofline_ms" in job.graph else "without its graph, or of a device type without peaks"
        figures = [(each.solo.step_ms, each.solo.utilization_ratio, each.solo.memory_bytes) for each in (job, *others)]
        if any(None in known for known in figures):
            return "a job's step time, utilization or memory alone is not known"
        return "" if len(others) == 1 else "more than two jobs"

    @property
    def _served(self) -> ServedTarget | None:
        return self.version.devices.get(self.device, {}).get(self.target.name)

    @property
    def _model(self) -> ServedTarget:
        return self.version.devices[self.device][self.target.name]

    def _solo(self, problem: Problem) -> _Asked:
        named = np.array([[job.graph[feature.name] for feature in FEATURES] for job in problem.jobs])
        vectors = named.reshape(len(problem), len(FEATURES))
        anchor = np.array([_ANCHORS[self.target.name](job) for job in problem.jobs])
        return self._model.select(vectors), anchor, self._model.strangeness(vectors)

    def _pairs(self, problem: Problem) -> _Asked:
        jobs = [*problem.jobs, *(others[0] for others in problem.others)]
        figures = SoloFigures(
            utilization_ratio=np.array([job.solo.utilization_ratio for job in jobs], dtype=np.float64),
            step_ms=np.array([job.solo.step_ms for job in jobs], dtype=np.float64),
            memory_bytes=np.array([job.solo.memory_bytes for job in jobs], dtype=np.float64),
            input_wait_ratio=np.array([job.input_wait_ratio for job in jobs]),
        )
        device = find_device_type(self.device)
        victim = np.arange(len(problem))
        other = victim + len(problem)
        memory_bytes = device.memory_bytes if device else int(figures.memory_bytes.max())
        columns = build_pair_features(figures, victim, other, memory_bytes)
        return columns, fair_share_slowdowns(figures, victim, other), None


def device_of(version: ServedVersion, device: str) -> str:
    """The name under which a version keeps a device type; the one asked for when it has none."""
    if device == ALL_DEVICES and len(version.devices) == 1:
        return next(iter(version.devices))
    found = find_device_type(device)
    return found.name if found else device
