"""What ranges of step times hold where more is unknown than a device type, and what wider ones with anchors would cost.

`python -m benchmarks.cross_device_ranges` prints JSON; three CPU minutes. Beside `benchmarks.cross_device`:

    set_left_out     every set of the public ones left out in turn, with all of its devices, networks and scripts: a
                     stranger's job on a stranger's machine. By device type: rows, MAPE, coverage of the 90 % range,
                     median upper/lower
    learned_reaches  with three anchors of a device type: how far ranges would reach below and above (logarithms,
                     combined with the anchors' disagreement) so that 19 of 20 rows of the other types are within either
                     end, every type as heavy as any other; what they hold of the type left out, and of all types
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from benchmarks.cross_device import CONFIDENCE, anchor_places, scale_by
from cotenant.job_settings import PRECISIONS
from predictor_service.cross_device.step_model import CrossDeviceStep
from predictor_service.inference.records import Estimate, Level
from predictor_service.learning.cross_device_fit import fit_step_model
from predictor_service.learning.cross_device_rows import (
    SETS,
    StepRow,
    read_step_rows,
    rows_of_common_networks,
    thin_rows,
    work_of_rows,
)
from predictor_service.settings import default_datasets_dir

FloatArray = npt.NDArray[np.float64]

_SIDE: Final = 0.5 + CONFIDENCE / 2


def main() -> dict[str, Any]:
    """Judge the public sets that come with the program."""
    every = read_step_rows(default_datasets_dir() / "public")
    rows = thin_rows(every)
    with threadpool_limits(1):  # small matrices: more threads only wait for each other
        return {
            "set_left_out": {name: judge_set(rows, every, name) for name in SETS},
            "learned_reaches": judge_reaches(rows, every),
        }


def judge_set(rows: Sequence[StepRow], every: Sequence[StepRow], name: str) -> dict[str, dict[str, Any]]:
    """What the model of the other sets says of one, by device type."""
    sys.stderr.write(f"{name}\n")
    model = _fit(rows, every, lambda row: row.set_name != name)
    asked = [row for row in rows if row.set_name == name and row.kind.precision in PRECISIONS]
    found = {}
    for device in sorted({row.device for row in asked}):
        records = [(row, ask(model, row)) for row in asked if row.device == device]
        found[device] = {
            "rows": len(records),
            "mape": round(float(np.mean([abs(said.value / row.step_ms - 1) for row, said in records])), 3),
            "coverage": round(float(np.mean([said.lower <= row.step_ms <= said.upper for row, said in records])), 3),
            "upper_per_lower": round(float(np.median([said.upper / said.lower for _, said in records])), 2),
        }
    return found


@dataclass(frozen=True, eq=False)
class Anchored:
    """Rows of a device type once three of them scaled the others.

    Attributes:
        off: ln(measured / said), shape (rows,).
        disagreement: How far the anchors' disagreement alone reaches at the confidence, a logarithm.
    """

    off: FloatArray
    disagreement: float

    def held(self, below: float, above: float) -> FloatArray:
        """Which rows are in a range that reaches so far, 1 or 0, shape (rows,)."""
        lower, upper = -math.hypot(below, self.disagreement), math.hypot(above, self.disagreement)
        return np.asarray((lower <= self.off) & (self.off <= upper), dtype=np.float64)


def judge_reaches(rows: Sequence[StepRow], every: Sequence[StepRow]) -> dict[str, Any]:
    """Reaches that the other types teach, and what they hold of the type left out."""
    anchored = {}
    for device in sorted({row.device for row in rows}):
        sys.stderr.write(f"{device}\n")
        model = fit_without(device, rows, every, with_widths=False)
        anchored[device] = scale_rows([(row, ask(model, row)) for row in rows if row.device == device])
    found, held = {}, []
    for device, one in anchored.items():
        others = [other for name, other in anchored.items() if name != device]
        below, above = (learn_reach([side * other.off for other in others], others) for side in (-1.0, 1.0))
        held.append(float(one.held(below, above).mean()))
        reach = math.hypot(below, one.disagreement) + math.hypot(above, one.disagreement)
        found[device] = {
            "below": round(below, 3),
            "above": round(above, 3),
            "coverage": round(held[-1], 3),
            "upper_per_lower": round(math.exp(reach), 2),
        }
    means = {"coverage": round(float(np.mean(held)), 3), "worst_coverage": round(min(held), 3)}
    ratio = float(np.mean([each["upper_per_lower"] for each in found.values()]))
    return {"by_device": found, **means, "upper_per_lower": round(ratio, 2)}


def fit_without(
    device: str, rows: Sequence[StepRow], every: Sequence[StepRow], *, with_widths: bool = True
) -> CrossDeviceStep:
    """The model of all other device types."""
    return _fit(rows, every, partial(_is_other_device, device), with_widths=with_widths)


def _is_other_device(device: str, row: StepRow) -> bool:
    return row.device != device


def scale_rows(records: Sequence[tuple[StepRow, Estimate]]) -> Anchored:
    """Scales the rows of a type by three of them, as a calibration does."""
    places = anchor_places([row for row, _ in records], [said.value for _, said in records])
    scale = scale_by([records[place] for place in places])
    left = [(row, said) for place, (row, said) in enumerate(records) if place not in places]
    left = [(row, said) for row, said in left if row.kind.precision in PRECISIONS]
    return Anchored(
        off=np.log([row.step_ms / (scale.step_ratio * said.value) for row, said in left]),
        disagreement=NormalDist().inv_cdf(_SIDE) * scale.step_deviation,
    )


def learn_reach(off: Sequence[FloatArray], devices: Sequence[Anchored]) -> float:
    """The least reach to one side that holds the rows of all types, half a type more than there are beyond all."""
    needed = [
        np.sqrt(np.maximum(np.maximum(each, 0.0) ** 2 - device.disagreement**2, 0.0))
        for each, device in zip(off, devices, strict=True)
    ]
    weights = np.concatenate([np.full(len(each), 1 / len(each)) for each in needed])
    values = np.concatenate(needed)
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / (len(needed) + 0.5)
    return float(values[order][min(int(np.searchsorted(reached, _SIDE)), len(values) - 1)])


def _fit(
    rows: Sequence[StepRow],
    every: Sequence[StepRow],
    teaches: Callable[[StepRow], bool],
    *,
    with_widths: bool = True,
) -> CrossDeviceStep:
    networks = rows_of_common_networks(row for row in every if teaches(row))
    return fit_step_model([row for row in rows if teaches(row)], networks=networks, with_widths=with_widths)


def ask(model: CrossDeviceStep, row: StepRow) -> Estimate:
    """What a model says of a row."""
    found = model.estimate(work_of_rows([row]), row.kind, CONFIDENCE)
    value, lower, upper = (float(each[0]) for each in (found.value, found.lower, found.upper))
    return Estimate(value, lower, upper, CONFIDENCE, Level.FALLBACK, False)


if __name__ == "__main__":
    print(json.dumps(main(), indent=2))
