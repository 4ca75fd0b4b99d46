"""A stored version judged like any other method; it was trained before, so fitting it changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from predictor_service.errors import TrainingDataError
from predictor_service.features.devices import find_device_type
from predictor_service.fitting.answers import describe_choice, forecast_known, list_results
from predictor_service.fitting.known_rows import why_unanswerable
from predictor_service.learning.learning_task import ALL_DEVICES, CandidateResult, Forecast, JobFacts, LearningTask
from predictor_service.registry.served_version import ServedTarget, ServedVersion
from predictor_service.selection.targets import Target


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
        return describe_choice(self._model.record)

    @property
    def candidates(self) -> Sequence[CandidateResult]:
        """The scored table of its training."""
        return list_results(self._model.record)

    def fit(self, learning_task: LearningTask, seed: int) -> StoredModel:
        """Returns itself."""
        return self

    def predict(self, learning_task: LearningTask) -> Forecast:
        """Predicts rows for which `refuse` has no reason."""
        return forecast_known(self._model, learning_task)

    def refuse(self, job: JobFacts, others: Sequence[JobFacts]) -> str:
        """Why a row cannot be answered; empty when it can."""
        return why_unanswerable(self.target, job, others)

    @property
    def _served(self) -> ServedTarget | None:
        return self.version.devices.get(self.device, {}).get(self.target.name)

    @property
    def _model(self) -> ServedTarget:
        return self.version.devices[self.device][self.target.name]


def device_of(version: ServedVersion, device: str) -> str:
    """The name under which a version keeps a device type; the one asked for when it has none."""
    if device == ALL_DEVICES and len(version.devices) == 1:
        return next(iter(version.devices))
    found = find_device_type(device)
    return found.name if found else device
