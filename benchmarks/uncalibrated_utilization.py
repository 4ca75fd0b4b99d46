"""The law of utilization for devices without measurements, and what it is worth.

`python -m benchmarks.uncalibrated_utilization` prints JSON: the constants that are committed in
`predictor_service/features/uncalibrated_utilization.py`, learned from all campaigns, and the mean absolute error on
each campaign by constants that it did NOT teach, beside two means: of the campaigns that taught, and of the judged one
(which is unknown in advance). `gpumemnet_to_miso` and back teach with one set only.

Campaigns: GPUMemNet's CNNs and MLPs, MISO on an A100, Alnair on what is taken for a P100; each weighs the same. A row
whose table has no traffic gets that of the networks that have it: `TRAFFIC_PER_SAVED_BYTE` times what backward keeps.
Needs COTENANT_SHARED_DATA. A quarter of a CPU minute.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from cotenant.profile_schema import SoloRow
from predictor_service.features.devices import DEVICE_TYPES, DeviceType, find_device_type
from predictor_service.features.graphs.batch_figures import figures_at
from predictor_service.features.job_features import optimizer_ms
from predictor_service.features.job_settings import OPTIMIZER_SLOTS
from predictor_service.features.uncalibrated_utilization import busy_ms
from predictor_service.importers.alnair import import_alnair
from predictor_service.importers.gpumemnet import import_gpumemnet
from predictor_service.importers.miso import import_miso

FloatArray = npt.NDArray[np.float64]

TRAFFIC_PER_SAVED_BYTE: Final = 3.2
"""Median over the networks of datasets/zoo_features when the law was learned; 3.35 since attention counts as fused."""
GPUMEMNET: Final = ("cnn", "mlp")
_UNNAMED: Final = "Tesla P100-PCIE-16GB"
"""Alnair does not name its card; the runs of the same authors elsewhere are on a P100."""
_OUTLIER: Final = 0.1
_TAIL: Final = 0.05
_SHARE_MIN: Final = 0.01
_DIGITS: Final = 2
_WEIGHT_BYTES: Final = 4

Campaigns = Mapping[str, tuple[FloatArray, FloatArray]]
"""Logarithm of busy milliseconds and measured utilization of every row, by campaign."""


def main() -> dict[str, Any]:
    """Learns and judges."""
    root = os.environ.get("COTENANT_SHARED_DATA", "")
    if not root:
        return {"skipped": "COTENANT_SHARED_DATA is not set"}
    campaigns = read_campaigns(Path(root))
    gpumemnet = {name: campaigns[name] for name in GPUMEMNET}
    return {
        "constants": learn(campaigns),
        "campaign_left_out": {name: judge(without(campaigns, name), campaigns[name]) for name in campaigns},
        "gpumemnet_to_miso": judge(gpumemnet, campaigns["miso"]),
        "miso_to_gpumemnet": {name: judge({"miso": campaigns["miso"]}, rows) for name, rows in gpumemnet.items()},
    }


def read_campaigns(root: Path) -> Campaigns:
    """Rows whose utilization and graph are known."""
    gpumemnet = import_gpumemnet(root / "gpumemnet").solo
    rows: dict[str, Sequence[SoloRow]] = {
        **{name: [row for row in gpumemnet if row.campaign == name] for name in GPUMEMNET},
        "miso": import_miso(root / "miso").solo,
        "alnair": import_alnair(root / "alnair").solo,
    }
    return {name: _arrays(each) for name, each in rows.items()}


def _arrays(rows: Sequence[SoloRow]) -> tuple[FloatArray, FloatArray]:
    known = [
        (np.log(busy), row.utilization_ratio)
        for row in rows
        if row.utilization_ratio is not None and row.status == "ok"
        for busy in [busy_of(row)]
        if busy is not None
    ]
    return np.array([busy for busy, _ in known]), np.array([share for _, share in known])


def busy_of(row: SoloRow) -> float | None:
    """Milliseconds that a row's step keeps its device busy at the peaks; None where its graph is not known."""
    facts = {
        name.removeprefix("graph."): value
        for name, value in json.loads(row.features_json or "{}").items()
        if name.startswith("graph.") and value is not None
    }
    if not facts.get("forward_macs_per_sample"):
        return None
    figures = figures_at(facts, row.sub_batch or row.batch)
    traffic = figures.get("traffic_bytes", TRAFFIC_PER_SAVED_BYTE * figures["saved_for_backward_bytes"])
    device: DeviceType = find_device_type(row.device) or DEVICE_TYPES[_UNNAMED]
    flops, training = 2.0 * figures["forward_macs"], row.mode == "train"
    slots = OPTIMIZER_SLOTS.get(row.optimizer, OPTIMIZER_SLOTS["adam"])
    update_ms = optimizer_ms(_WEIGHT_BYTES * figures["parameters"], slots, device) if training else 0.0
    return busy_ms(flops, traffic, device, row.precision, training=training, optimizer_ms=update_ms)


def learn(campaigns: Campaigns) -> dict[str, float]:
    """Constants by the names of `UtilizationLaw`; the range is made of errors on campaigns that did not teach."""
    level, slope = fit(campaigns)
    below, above = unseen_range(campaigns)
    constants = {"level": level, "slope": slope, "below": below, "above": above}
    return {name: round(value, _DIGITS) for name, value in constants.items()}


def unseen_range(campaigns: Campaigns) -> tuple[float, float]:
    """How far off the logit one row of twenty is, either way, where its campaign is left out; each weighs the same."""
    apart = [
        _logit(measured) - logits(fit(without(campaigns, name)), busy) for name, (busy, measured) in campaigns.items()
    ]
    weights = np.concatenate([np.full(len(errors), 1.0 / len(errors)) for errors in apart])
    errors = np.concatenate(apart)
    order = np.argsort(errors)
    reached = np.cumsum(weights[order]) / weights.sum()
    low, high = (float(errors[order][np.searchsorted(reached, share)]) for share in (_TAIL, 1.0 - _TAIL))
    return max(0.0, -low), max(0.0, high)


def fit(campaigns: Campaigns) -> tuple[float, float]:
    """Level and slope of the least error of the utilization itself, robustly; the slope is at least 0."""
    busy = np.concatenate([rows[0] for rows in campaigns.values()])
    measured = np.concatenate([rows[1] for rows in campaigns.values()])
    weights = np.concatenate([np.full(len(rows[1]), len(rows[1]) ** -0.5) for rows in campaigns.values()])
    found = least_squares(
        lambda law: weights * (_share(law[0] + law[1] * busy) - measured),
        np.array([0.0, 0.3]),
        bounds=([-10.0, 0.0], [10.0, 3.0]),
        loss="soft_l1",
        f_scale=_OUTLIER,
    ).x
    return float(found[0]), float(found[1])


def logits(law: tuple[float, float], busy: FloatArray) -> FloatArray:
    """What a law expects."""
    return np.asarray(law[0] + law[1] * busy)


def without(campaigns: Campaigns, name: str) -> Campaigns:
    """All campaigns but one."""
    return {other: rows for other, rows in campaigns.items() if other != name}


def judge(taught: Campaigns, judged: tuple[FloatArray, FloatArray]) -> dict[str, float]:
    """Mean absolute error of a campaign that did not teach, beside those of two means."""
    busy, measured = judged
    taught_mean = float(np.mean([rows[1].mean() for rows in taught.values()]))
    expected = logits(fit(taught), busy)
    covered: dict[str, float] = {}
    if len(taught) > 1:
        below, above = unseen_range(taught)
        error = _logit(measured) - expected
        covered["inside_range"] = _rounded((error >= -below) & (error <= above))
    return {
        "rows": len(measured),
        **covered,
        "mae": _rounded(np.abs(_share(expected) - measured)),
        "mae_of_training_mean": _rounded(np.abs(taught_mean - measured)),
        "mae_of_own_mean": _rounded(np.abs(measured.mean() - measured)),
    }


def _share(logit: FloatArray) -> FloatArray:
    return np.asarray(1.0 / (1.0 + np.exp(-logit)))


def _logit(share: FloatArray) -> FloatArray:
    clipped = np.clip(share, _SHARE_MIN, 1.0 - _SHARE_MIN)
    return np.asarray(np.log(clipped / (1.0 - clipped)))


def _rounded(errors: npt.NDArray[np.float64] | npt.NDArray[np.bool_]) -> float:
    return round(float(errors.mean()), 3)


if __name__ == "__main__":
    print(json.dumps(main(), indent=1))
