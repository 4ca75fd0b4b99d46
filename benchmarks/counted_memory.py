"""How far counted memory is from measured memory of timm models on an A100: `python -m benchmarks.counted_memory`.

The count is `graph.counted_memory_bytes`, found without a GPU (datasets/timm_features). A scale and an offset are
fitted to half of the models and judged on the other half, in both directions, next to the same fit to the FakeTensor
estimate that the set publishes. The fit is by absolute relative error, because some runs that the set calls clean had
crashed. Needs COTENANT_SHARED_DATA; without it the figures are absent and said so.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from cotenant.profile_schema import SoloRow
from predictor_service.importers.gpumemnet import import_gpumemnet
from predictor_service.importers.imported_set import MEBIBYTE

FloatArray = npt.NDArray[np.float64]


def main() -> dict[str, object]:
    """Returns errors of both estimates as shares of the measured memory, and how many models have features."""
    root = os.environ.get("COTENANT_SHARED_DATA", "")
    if not root:
        return {"skipped": "COTENANT_SHARED_DATA is not set"}
    rows = [row for row in import_gpumemnet(Path(root, "gpumemnet")).solo if row.campaign == "timm"]
    clean = [row for row in rows if row.status == "ok"]
    counted = [row for row in clean if "graph.counted_memory_bytes" in features(row)]
    measured = np.array([float(row.memory_peak_bytes or 0) for row in counted])
    half = np.array([int(hashlib.sha256(row.architecture.encode()).hexdigest(), 16) % 2 for row in counted])
    count = np.array([features(row)["graph.counted_memory_bytes"] for row in counted])
    fake = np.array([features(row)["set.faketensor_step_mib"] * MEBIBYTE for row in counted])
    return {
        "models": len({row.architecture for row in rows}),
        "models_with_features": len({row.architecture for row in rows if "graph.parameters" in features(row)}),
        "rows": len(counted),
        "counted": errors(count, measured, half),
        "fake_tensor": errors(fake, measured, half),
    }


def features(row: SoloRow) -> dict[str, float]:
    """The features of a row by name."""
    return dict(json.loads(row.features_json or "{}"))


def errors(estimate: FloatArray, measured: FloatArray, half: npt.NDArray[np.int_]) -> dict[str, float]:
    """Relative errors on the half of the models that the scale and offset were not fitted to."""
    predicted = np.zeros_like(measured)
    columns = np.column_stack([estimate, np.full_like(estimate, float(1 << 30))])
    for side in (0, 1):
        learned, judged = half != side, half == side
        predicted[judged] = columns[judged] @ least_absolute(columns[learned] / measured[learned, None])
    relative = np.abs(predicted / measured - 1)
    return {"median_error_ratio": round(float(np.median(relative)), 4), "mape_ratio": round(float(relative.mean()), 4)}


def least_absolute(relative: FloatArray) -> FloatArray:
    """Coefficients of at least 0 whose sums are nearest to 1 in absolute terms, by reweighted least squares."""
    weights = np.ones(len(relative))
    for _ in range(30):
        line, _ = nnls(relative * weights[:, None], weights)
        weights = np.sqrt(1 / np.maximum(np.abs(relative @ line - 1), 1e-3))
    return np.asarray(line)


if __name__ == "__main__":
    print(json.dumps(main(), indent=2))
