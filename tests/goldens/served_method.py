"""What a training serves, as a method that can be scored; the rows are those of `cotenant evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from predictor_service.evaluation.stored_model import _ANCHORS, StoredModel
from predictor_service.features.devices import find_device_type
from predictor_service.features.job_features import FEATURES
from predictor_service.features.pair_features import SoloFigures, build_pair_features, fair_share_slowdowns
from predictor_service.learning.problem import CandidateResult, Forecast, Problem
from predictor_service.registry.manifest import Manifest
from predictor_service.registry.onnx_model import OnnxModel
from predictor_service.registry.served_version import ServedTarget, ServedVersion
from predictor_service.regressors.interface import FeatureArray, FloatArray
from predictor_service.retraining.fitting import FittingTask, fit_target
from predictor_service.selection.targets import SLOWDOWN, Target


@dataclass(frozen=True, slots=True)
class ServedMethod:
    """Fits as `cotenant retrain` does."""

    name: str = "served"

    def fit(self, problem: Problem, seed: int) -> FittedServed:
        """Learns from all rows of a problem; see `problem.Method`."""
        target = problem.target
        features = None
        if target is SLOWDOWN:
            columns, anchor = _pairs(problem)
        else:
            features = np.array([[job.graph[feature.name] for feature in FEATURES] for job in problem.jobs])
            names = [feature.name for feature in FEATURES]
            columns = features[:, [names.index(name) for name in target.columns]].astype(np.float32)
            anchor = np.array([_ANCHORS[target.name](job) for job in problem.jobs])
        fitted = fit_target(
            FittingTask(
                target=target,
                device=problem.device,
                columns=columns,
                measured=problem.measured,
                anchor=anchor,
                groups=problem.groups("family"),
                seed=seed,
                features=features,
            )
        )
        models = {name: OnnxModel(content) for name, content in fitted.files.items()}
        record = fitted.record
        served = ServedTarget(
            record, models[record.file_name], models.get(record.spread.file_name) if record.spread else None
        )
        return FittedServed(served, problem.target, problem.device)


@dataclass(frozen=True, slots=True)
class FittedServed:
    """One target that was fitted."""

    served: ServedTarget
    target: Target
    device: str

    @property
    def selected(self) -> str:
        """The winner."""
        return self.served.record.winner

    @property
    def candidates(self) -> Sequence[CandidateResult]:
        """The scored table."""
        table = self.served.record.candidates
        return [CandidateResult(name=line.name, inner_mae=line.error_mean_unit) for line in table]

    def predict(self, problem: Problem) -> Forecast:
        """Answers as the stored version would."""
        devices = {self.device: {self.target.name: self.served}}
        return StoredModel(ServedVersion(manifest=_NO_MANIFEST, devices=devices), self.target, self.device).predict(
            problem
        )


_NO_MANIFEST = Manifest(
    version="", seed=0, feature_version=0, learning_version=0, fingerprint="", datasets={}, targets={}, skipped=()
)


def _pairs(problem: Problem) -> tuple[FeatureArray, FloatArray]:
    """Columns and anchor of rows of two jobs that were both measured alone."""
    jobs = [*problem.jobs, *(others[0] for others in problem.others)]
    figures = SoloFigures(
        utilization_ratio=np.array([job.solo.utilization_ratio for job in jobs], dtype=np.float64),
        step_ms=np.array([job.solo.step_ms for job in jobs], dtype=np.float64),
        memory_bytes=np.array([job.solo.memory_bytes for job in jobs], dtype=np.float64),
        input_wait_ratio=np.array([job.input_wait_ratio for job in jobs]),
    )
    device = find_device_type(problem.device)
    assert device is not None
    victim, other = np.arange(len(problem)), np.arange(len(problem)) + len(problem)
    columns = build_pair_features(figures, victim, other, device.memory_bytes)
    return columns, fair_share_slowdowns(figures, victim, other)
