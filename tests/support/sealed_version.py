"""A version of models with one target, sealed as a retraining seals it."""

from __future__ import annotations

from predictor_service.features.job_features import FEATURE_VERSION
from predictor_service.registry.manifest import LEARNING_VERSION, Manifest, TargetRecord, seal


def sealed(record: TargetRecord) -> Manifest:
    """Return the manifest of a version that knows one target of the stand-in."""
    return seal(
        Manifest(
            version="",
            seed=3,
            feature_version=FEATURE_VERSION,
            learning_version=LEARNING_VERSION,
            fingerprint="",
            datasets={},
            targets={"cpu-standin": {record.target: record}},
            skipped=(),
        )
    )
