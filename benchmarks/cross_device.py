"""Step time on device types of which nothing was measured: every type left out, its rows judged by the others' model.

`python -m benchmarks.cross_device` prints JSON. For each device type of the public sets the model that the program
serves (`predictor_service/cross_device`) is fitted again without any row of that type, its ranges included: they come
from the remaining types, left out one by one in turn. Then it is asked what the predictor asks it. Nothing states the
machine or the set of a row. What cannot be asked for is apart: double precision (`fp64`).

    by_device    MAPE, coverage of the 90 % range, median upper/lower, MAPE with three rows of the device as anchors
    torchvision  the same of its rows by precision, mean over its device types
    baselines    the row of the nearest known card that runs the same network, batch, mode and precision, scaled by the
                 ratio of the peaks or of the bandwidths; compared on the rows that have one
    spread       how far networks are apart on a device that the model has not seen: deviation of ln(measured / said),
                 and degrees of freedom of the scaled inverse chi-squared distribution of its square over device types;
                 beside each the least and the most when a type is left out
    miso         slices of an A100 (TensorFlow), of which no set teaches anything, judged by the model of all sets; with
                 the error of a step's ratio to that of the same job on the largest slice (`of_whole`), and shares of
                 the squared logarithmic error: of the set, of a network on all slices, of a slice on all networks

Anchors are three rows, chosen by their expected time and never judged; they scale estimates as a calibration of the
device does (`inference/calibrated_estimator.py`); of the spread that `features/device_scale.py` has, two numbers, every
type taught a thirteenth. Bars are those of the issue that asked for the model; a bar that is missed is printed as such.
Two CPU minutes.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import digamma, polygamma
from threadpoolctl import threadpool_limits

from cotenant.device_calibration import Anchor, DeviceCalibration
from cotenant.job_settings import PRECISIONS
from predictor_service.cross_device.step_model import CrossDeviceStep, load_step_model
from predictor_service.features.device_scale import AnchorFigures, DeviceScale, scale_of
from predictor_service.features.devices import DeviceType
from predictor_service.inference.calibrated_estimator import CalibratedEstimator
from predictor_service.inference.job_estimator import JobEstimator
from predictor_service.inference.records import Estimate, Level
from predictor_service.learning.cross_device_fit import fit_step_model
from predictor_service.learning.cross_device_rows import (
    StepRow,
    read_step_rows,
    rows_of_common_networks,
    thin_rows,
    work_of_rows,
)
from predictor_service.settings import default_datasets_dir

FloatArray = npt.NDArray[np.float64]

CONFIDENCE: Final = 0.9
ANCHORS: Final = 3
TORCHVISION: Final = "torchvision_bench"
_WHOLE_SLICE: Final = "MIG 7g.40gb"
_BASELINES: Final[Mapping[str, Callable[[DeviceType, str], float]]] = {
    "peak": lambda device, precision: device.peak(device.convolution_precision(precision)),
    "bandwidth": lambda device, precision: device.memory_bytes_per_s,
}


def main() -> dict[str, Any]:
    """Judge every device type of the public sets that come with the program."""
    root = default_datasets_dir() / "public"
    every = read_step_rows(root)
    rows = thin_rows(every)
    judged = {}
    for device in sorted({row.device for row in rows}):
        sys.stderr.write(f"{device}\n")
        with threadpool_limits(1):  # small matrices: more threads only wait for each other
            judged[device] = judge(rows, device, every)
    by_device = {device: {**_figures(one), **_anchored(one)} for device, one in judged.items()}
    report: dict[str, Any] = {
        "rows": len(rows),
        "by_device": by_device,
        "torchvision": _torchvision(judged),
        "spread": spread_over_devices([_deviation(one) for one in judged.values()]),
        "fp64": _double_precision(judged),
        "miso": _miso(root),
    }
    return {**report, "bars": _bars(by_device, report)}


def judge(rows: Sequence[StepRow], device: str, every: Sequence[StepRow]) -> list[dict[str, Any]]:
    """Asks the model of all other types for every row of one; one record for each.

    Args:
        rows: Those that teach and are judged.
        device: The type left out.
        every: All rows of the sets, among which a baseline looks for the same job.
    """
    others = _by_job([row for row in every if row.device != device])
    known, left_out = ([row for row in rows if (row.device == device) is same] for same in (False, True))
    model = fit_step_model(known, networks=rows_of_common_networks(row for row in every if row.device != device))
    asked = [_ask(model, row) for row in left_out]
    anchors = anchor_places(left_out, [each.value for each in asked])
    calibrated = _calibrate([(left_out[place], asked[place]) for place in anchors])
    return [
        {
            "row": row,
            "measured": row.step_ms,
            "plain": estimate,
            "anchored": None if place in anchors else calibrated(estimate),
            **{name: _scale_nearest(others.get(_job_of(row), ()), row, rate) for name, rate in _BASELINES.items()},
        }
        for place, (row, estimate) in enumerate(zip(left_out, asked, strict=True))
    ]


def anchor_places(rows: Sequence[StepRow], expected_ms: Sequence[float]) -> list[int]:
    """Which rows are anchors: at a sixth, the middle and five sixths of the expected times that a job can ask for."""
    order = [place for place in np.argsort(expected_ms, kind="stable") if rows[place].kind.precision in PRECISIONS]
    return [int(order[len(order) * part // (2 * ANCHORS)]) for part in range(1, 2 * ANCHORS, 2)]


def _ask(model: CrossDeviceStep, row: StepRow) -> Estimate:
    found = model.estimate(work_of_rows([row]), row.kind, CONFIDENCE)
    value, lower, upper = (float(each[0]) for each in (found.value, found.lower, found.upper))
    return Estimate(value, lower, upper, CONFIDENCE, Level.FALLBACK, False)


@dataclass(frozen=True)
class Answer:
    """Stands where the estimator of a job stands; it was asked already."""

    estimate: Estimate

    def step(self, batch: int) -> Estimate:
        """The estimate."""
        return self.estimate


def _calibrate(anchors: Sequence[tuple[StepRow, Estimate]]) -> Callable[[Estimate], Estimate]:
    """What the predictor makes of estimates where a calibration holds these anchors."""
    scale = scale_by(anchors)

    def calibrated(estimate: Estimate) -> Estimate:
        return CalibratedEstimator(cast(JobEstimator, Answer(estimate)), scale, 0.0).step(1)

    return calibrated


def scale_by(anchors: Sequence[tuple[StepRow, Estimate]]) -> DeviceScale:
    """The scale that a calibration with these rows as anchors implies, and what a model says of each."""
    figures = {
        str(place): AnchorFigures(step_ms=each.value, memory_bytes=1.0) for place, (_, each) in enumerate(anchors)
    }
    measured = tuple(
        Anchor(network=str(place), graph_sha256="", batch_size=row.batch, step_ms=row.step_ms, memory_peak_bytes=1)
        for place, (row, _) in enumerate(anchors)
    )
    scale = scale_of(calibration_by(anchors[0][0].device, measured), lambda reference: figures[reference.network])
    assert scale is not None
    return scale


def calibration_by(device: str, anchors: Sequence[Anchor]) -> DeviceCalibration:
    """What a calibration says by its networks alone; its rates stand for nothing."""
    return DeviceCalibration(
        device=device,
        measured_at_ms=1,
        context_bytes=0,
        workspace_bytes=0,
        copy_bytes_per_s=1.0,
        launch_ms=1.0,
        host_steps_per_s=1.0,
        anchors=tuple(anchors),
    )


def _job_of(row: StepRow) -> tuple[object, ...]:
    return row.set_name, row.architecture, row.batch, row.kind.precision, row.kind.is_training, *_side_of(row)


def _side_of(row: StepRow) -> tuple[float, float]:
    """Distinguishes sizes of the image, which a name does not."""
    return row.facts.get("forward_macs_per_sample", 0.0), row.facts.get("input_bytes_per_sample", 0.0)


def _by_job(rows: Sequence[StepRow]) -> dict[tuple[object, ...], list[StepRow]]:
    found: dict[tuple[object, ...], list[StepRow]] = {}
    for row in rows:
        found.setdefault(_job_of(row), []).append(row)
    return found


def _scale_nearest(same: Sequence[StepRow], row: StepRow, rate: Callable[[DeviceType, str], float]) -> float | None:
    """The same job on the card whose rate is nearest, scaled; None where no other card ran it."""
    if not same:
        return None
    precision, here = row.kind.precision, rate(row.kind.device, row.kind.precision)
    nearest = min(same, key=lambda other: abs(np.log(rate(other.kind.device, precision) / here)))
    return nearest.step_ms * rate(nearest.kind.device, precision) / here


def _mape(records: Sequence[Mapping[str, Any]], name: str) -> float:
    values = [record[name].value if isinstance(record[name], Estimate) else record[name] for record in records]
    return float(np.mean([abs(value / record["measured"] - 1) for value, record in zip(values, records, strict=True)]))


def _servable(records: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [record for record in records if record["row"].kind.precision in PRECISIONS]


def _covered(records: Sequence[Mapping[str, Any]], name: str) -> list[bool]:
    return [record[name].lower <= record["measured"] <= record[name].upper for record in records]


def _figures(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    asked = _servable(records)
    figures: dict[str, Any] = {
        "sets": sorted({record["row"].set_name for record in records}),
        "rows": len(asked),
        "mape": round(_mape(asked, "plain"), 3),
        "coverage": round(float(np.mean(_covered(asked, "plain"))), 3),
        "upper_per_lower": round(
            float(np.median([record["plain"].upper / record["plain"].lower for record in asked])), 2
        ),
    }
    comparable = [record for record in asked if record["peak"] is not None]
    if comparable:
        baselines = {name: round(_mape(comparable, name), 3) for name in _BASELINES}
        own = _mape(comparable, "plain")
        figures["baselines"] = {
            "rows": len(comparable),
            **baselines,
            "model": round(own, 3),
            "model_per_better": round(own / max(min(baselines.values()), 1e-9), 2),
        }
    return figures


def _anchored(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    rest = [record for record in _servable(records) if record["anchored"] is not None]
    return {
        "anchored_mape": round(_mape(rest, "anchored"), 3),
        "anchored_coverage": round(float(np.mean(_covered(rest, "anchored"))), 3),
        "anchored_upper_per_lower": round(
            float(np.median([record["anchored"].upper / record["anchored"].lower for record in rest])), 2
        ),
    }


def _deviation(records: Sequence[Mapping[str, Any]]) -> float:
    logs = [math.log(record["measured"] / record["plain"].value) for record in _servable(records)]
    return float(np.std(logs, ddof=1))


def spread_over_devices(deviations: Sequence[float]) -> dict[str, Any]:
    """The prior of a device's deviation, and what becomes of it when each device is left out.

    Args:
        deviations: Of ln(step time) between networks, of each device; three or more that are not all the same.
    """
    rest = [_prior([*deviations[:place], *deviations[place + 1 :]]) for place in range(len(deviations))]
    figures = zip(("degrees", "deviation"), _prior(deviations), *rest, strict=True)
    return {
        name: {"all": round(all_, 3), "one_left_out": [round(min(others), 3), round(max(others), 3)]}
        for name, all_, *others in figures
    }


def _prior(deviations: Sequence[float]) -> tuple[float, float]:
    """Degrees and deviation of the scaled inverse chi-squared distribution with these variances' mean and spread of ln.

    Source:
        ln of such a variance has the mean ln(degrees / 2) - digamma(degrees / 2) + ln(scale) and the variance
        trigamma(degrees / 2), which are those of an inverse gamma distribution.
    """
    logs = 2 * np.log(deviations)
    half = float(brentq(lambda degrees: polygamma(1, degrees) - logs.var(ddof=1), 1e-3, 1e6))
    return 2 * half, math.exp((logs.mean() - math.log(half) + float(digamma(half))) / 2)


def _torchvision(judged: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Mean over its device types."""
    cells: dict[str, list[float]] = {}
    for records in judged.values():
        for precision in ("fp32", "fp16"):
            for mode, is_training in (("train", True), ("infer", False)):
                chosen = [
                    record
                    for record in records
                    if record["row"].set_name == TORCHVISION
                    and (record["row"].kind.precision, record["row"].kind.is_training) == (precision, is_training)
                ]
                if chosen:
                    cells.setdefault(f"{precision}_{mode}", []).append(_mape(chosen, "plain"))
                    cells.setdefault(precision, []).append(_mape(chosen, "plain"))
    return {name: round(float(np.mean(values)), 3) for name, values in sorted(cells.items())}


def _double_precision(judged: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, float]:
    found = {}
    for device, records in judged.items():
        chosen = [record for record in records if record["row"].kind.precision not in PRECISIONS]
        if chosen:
            found[device] = round(_mape(chosen, "plain"), 3)
    return found


def _miso(root: Path) -> dict[str, Any]:
    """Slices of an A100 by the committed model, which no row of MISO taught."""
    model, rows = load_step_model(), read_step_rows(root, ["miso"])
    every: list[dict[str, Any]] = [{"row": row, "measured": row.step_ms, "plain": _ask(model, row)} for row in rows]
    whole = {_place_of(each["row"]): each for each in every if each["row"].device.endswith(_WHOLE_SLICE)}
    found = {}
    for device in sorted({each["row"].device for each in every}):
        records = [each for each in every if each["row"].device == device]
        both = [(each, whole[_place_of(each["row"])]) for each in records if _place_of(each["row"]) in whole]
        ratios = [
            each["plain"].value / of_whole["plain"].value / (each["measured"] / of_whole["measured"])
            for each, of_whole in both
        ]
        found[device] = {
            "rows": len(records),
            "mape": round(_mape(records, "plain"), 3),
            "median_ape": round(
                float(np.median([abs(each["plain"].value / each["measured"] - 1) for each in records])), 3
            ),
            "coverage": round(float(np.mean(_covered(records, "plain"))), 3),
            "upper_per_lower": round(
                float(np.median([each["plain"].upper / each["plain"].lower for each in records])), 2
            ),
            "of_whole_median_ape": round(float(np.median(np.abs(np.array(ratios) - 1))), 3),
        }
    return {**found, "error_shares": _error_shares(every)}


def _place_of(row: StepRow) -> tuple[str, int]:
    return row.architecture, row.batch


def _error_shares(records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Shares of the mean square of ln(measured / said): of the set, of networks, of slices within them, the rest."""
    left = np.log([record["measured"] / record["plain"].value for record in records])
    total, shares = float((left**2).mean()), {}
    groups = {
        "set": ["" for _ in records],
        "network": [record["row"].architecture for record in records],
        "slice": [record["row"].device for record in records],
    }
    for name, keys in groups.items():
        places = np.unique(keys, return_inverse=True)[1]
        means = (np.bincount(places, weights=left) / np.bincount(places))[places]
        shares[name] = round(float((means**2).mean()) / total, 3)
        left = left - means
    return {**shares, "rest": round(float((left**2).mean()) / total, 3)}


def _bars(by_device: Mapping[str, Any], report: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What was asked for, beside what was reached."""
    every = list(by_device.values())
    rows = [each["rows"] for each in every]
    ratios = [each["baselines"]["model_per_better"] for each in every if "baselines" in each]
    mapes = [each["mape"] for each in every]
    torchvision = [each for each in every if TORCHVISION in each["sets"]]

    def at_most(figure: float, bar: float) -> dict[str, Any]:
        return {"figure": round(figure, 3), "bar": f"<= {bar:g}", "met": bool(figure <= bar)}

    def at_least(figure: float, bar: float) -> dict[str, Any]:
        return {"figure": round(figure, 3), "bar": f">= {bar:g}", "met": bool(figure >= bar)}

    return {
        "torchvision_fp32_mape": at_most(report["torchvision"]["fp32"], 0.22),
        "torchvision_fp16_mape": at_most(report["torchvision"]["fp16"], 0.22),
        "macro_mape": at_most(float(np.mean(mapes)), 0.4),
        "worst_device_mape": at_most(max(mapes), 1.0),
        "pooled_coverage": at_least(float(np.average([each["coverage"] for each in every], weights=rows)), 0.85),
        "worst_device_coverage": at_least(min(each["coverage"] for each in every), 0.65),
        "worst_per_better_baseline": at_most(max(ratios), 1.1),
        "mean_per_better_baseline": at_most(float(np.exp(np.mean(np.log(ratios)))), 1.0),
        "torchvision_upper_per_lower": at_most(float(np.median([each["upper_per_lower"] for each in torchvision])), 4),
        "upper_per_lower": at_most(float(np.median([each["upper_per_lower"] for each in every])), 8),
        "anchored_macro_mape": at_most(float(np.mean([each["anchored_mape"] for each in every])), 0.25),
    }


if __name__ == "__main__":
    print(json.dumps(main(), indent=2))
