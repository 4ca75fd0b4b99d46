"""Share of a step in which the device is busy, with as few coefficients fitted as physics leaves open.

A device works while kernels run and waits while the host launches the next one or prepares the next input. Both sides
are sums of parts that follow from the graph and the batch; how fast host, loader and libraries really are is the same
for all jobs of a machine, so the coefficients of the parts are fitted to the training rows, all at least 0:

    share = ceiling * busy / (busy^p + host^p)^(1/p)

p is 1 where host and device take turns and large where they work at once. A network of few small layers is bound by
its host, one of many large layers by the device, and both follow from one set of coefficients.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from scipy.optimize import least_squares

from predictor_service.features.devices import find_device_type
from predictor_service.features.step_simulation import INPUT_BYTES_PER_MS, SAMPLE_HOST_MS, described_step_parts
from predictor_service.learning.learning_task import FloatArray, JobFacts

_BUSY_PARTS: Final = ("arithmetic", "traffic", "weights", "launches", "tiles")
_HOST_PARTS: Final = ("fixed", "launches", "samples", "input")
PARTS: Final = len(_BUSY_PARTS) + len(_HOST_PARTS)
"""Of a row of `share_parts`: busy parts first."""
_OVERLAPS: Final = (1.0, 2.0, 6.0)
"""Values of p that are compared."""
_ROWS_PER_COEFFICIENT: Final = 4
_ROWS_MAX: Final = 2_000
_LOG_RANGE: Final = 7.0
_LOWEST_CEILING_LOG: Final = -0.7
_OUTLIER: Final = 0.05
_PULL: Final = 0.02
"""Toward coefficients of 1: only the ratio of both sides is in the rows."""
_SHARE_MIN: Final = 0.005


def share_parts(job: JobFacts) -> FloatArray | None:
    """Milliseconds of every part, shape (`PARTS`,); None where the graph or the device's peaks are not known.

    Args:
        job: Its graph figures at its batch, as `batch_figures.figures_at` returns them.
    """
    device = find_device_type(job.device)
    if device is None:
        return None
    mode = job.labels.get("mode", "train")
    described = described_step_parts(job.graph, job.micro_batch_size, device, job.precision, mode)
    if described is None:
        return None
    known = {
        **described,
        "tiles": job.graph.get("simulated_tiled_products_ms", 0.0),
        "samples": job.micro_batch_size * SAMPLE_HOST_MS,
        "input": job.graph.get("input_bytes", 0.0) / INPUT_BYTES_PER_MS,
    }
    return np.array([known[name] for name in (*_BUSY_PARTS, *_HOST_PARTS)])


def read_shares(parts: FloatArray, coefficients: FloatArray) -> FloatArray:
    """The share of every row, above 0 and at most 1, shape (rows,).

    Args:
        parts: Shape (rows, `PARTS`).
        coefficients: As `fit_shares` returns them.
    """
    *scales, ceiling, overlap = coefficients
    scaled = parts * np.array(scales)
    busy = np.maximum(scaled[:, : len(_BUSY_PARTS)].sum(axis=1), 1e-12)
    host = scaled[:, len(_BUSY_PARTS) :].sum(axis=1)
    shares = ceiling / (1.0 + (host / busy) ** overlap) ** (1.0 / overlap)
    return np.asarray(np.clip(shares, _SHARE_MIN, 1.0))


def fit_shares(parts: FloatArray, measured: FloatArray) -> FloatArray | None:
    """Fits the coefficients, robustly, because some runs stalled.

    Args:
        parts: Of training rows, shape (rows, `PARTS`), finite.
        measured: Shares, shape (rows,).

    Returns:
        A factor of each part, the ceiling and p; None where there are too few rows.
    """
    if len(parts) < _ROWS_PER_COEFFICIENT * (PARTS + 1):
        return None
    step = -(-len(parts) // _ROWS_MAX)
    parts, measured = parts[::step], measured[::step]
    fits = [_fit(parts, measured, overlap) for overlap in _OVERLAPS]
    _, best = min(fits, key=lambda fit: fit[0])
    return best


def _fit(parts: FloatArray, measured: FloatArray, overlap: float) -> tuple[float, FloatArray]:
    """Cost and coefficients at one p."""

    def unpack(logs: FloatArray) -> FloatArray:
        return np.array([*np.exp(logs), overlap])

    def residuals(logs: FloatArray) -> FloatArray:
        return np.concatenate([read_shares(parts, unpack(logs)) - measured, _PULL * logs])

    start = np.array([0.0] * PARTS + [-0.02])
    highest = np.array([_LOG_RANGE] * PARTS + [0.0])
    lowest = np.array([-_LOG_RANGE] * PARTS + [_LOWEST_CEILING_LOG])
    fit = least_squares(
        residuals, start, bounds=(lowest, highest), loss="soft_l1", f_scale=_OUTLIER, max_nfev=60, method="trf"
    )
    return float(fit.cost), unpack(np.asarray(fit.x))
