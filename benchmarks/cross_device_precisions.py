"""What anchors of one precision say of another: fp32 anchors of a device type left out, half precision judged.

`python -m benchmarks.cross_device_precisions` prints JSON; a CPU minute. Every type of the public sets that trained in
fp32 and in half precision is left out in turn. `apart_only` and `widened` are judged without what the type says of how
far precisions are apart, the others by the number that is served. Anchors are rows of training, drawn forty times; rows
of their networks are not judged where others are left.

    apart        by type: mean of ln(measured / said) in half precision less that in fp32
    deviation    root mean square of these, and the least and the most when a type is left out
    of_fp32      three fp32 anchors, half precision judged: MAPE, coverage of the 90 % range, median upper/lower; mean
                 over types, beside the least coverage of a type
    apart_only   the same with the deviation of the other types
    widened      the same, and no narrower than without anchors, as answers have it
    one, two, three     with so many anchors in half precision too, as `DeviceScale.at` joins both
    one_alone, ...      by these alone
"""

from __future__ import annotations

import json
import math
import random
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple, cast

from threadpoolctl import threadpool_limits

from benchmarks.cross_device import ANCHORS, Answer, calibration_by, scale_by
from benchmarks.cross_device_ranges import ask, fit_without
from cotenant.device_calibration import Anchor
from predictor_service.features.device_scale import AnchorFigures, DeviceScale, scale_of
from predictor_service.inference.calibrated_estimator import CalibratedEstimator
from predictor_service.inference.job_estimator import JobEstimator
from predictor_service.inference.records import Estimate
from predictor_service.learning.cross_device_rows import StepRow, read_step_rows, thin_rows
from predictor_service.settings import default_datasets_dir

_HALF: Final = ("fp16", "bf16")
_DRAWS: Final = 40
_COUNTS: Final = {1: "one", 2: "two", 3: "three"}
_Records = Sequence[tuple[StepRow, Estimate]]


class Trained(NamedTuple):
    """Rows of training on a device type, with what the model of the others says of each."""

    single: _Records
    half: _Records

    @property
    def apart(self) -> float:
        """By how much more the model is below half precision than below fp32, a logarithm."""
        return statistics.fmean(_logs(self.half)) - statistics.fmean(_logs(self.single))


def main() -> dict[str, Any]:
    """Judge the public sets that come with the program."""
    with threadpool_limits(1):  # small matrices: more threads only wait for each other
        types = dict(_trained_types())
    apart = {device: trained.apart for device, trained in types.items()}
    others = {device: _size([each for name, each in apart.items() if name != device]) for device in apart}
    found: dict[str, list[tuple[float, float, float]]] = {}
    for device, trained in types.items():
        for name, figures in judge(trained, others[device]).items():
            found.setdefault(name, []).append(figures)
    return {
        "apart": {device: round(each, 3) for device, each in apart.items()},
        "deviation": [
            round(each, 3) for each in (_size([*apart.values()]), min(others.values()), max(others.values()))
        ],
        **{name: _mean(each) for name, each in found.items()},
    }


def _trained_types() -> Iterator[tuple[str, Trained]]:
    every = read_step_rows(default_datasets_dir() / "public")
    rows = thin_rows(every)
    for device in sorted({row.device for row in rows}):
        chosen = [row for row in rows if row.device == device and row.kind.is_training]
        single, half = ([row for row in chosen if row.kind.precision in each] for each in (("fp32",), _HALF))
        if len(single) > ANCHORS and len(half) > ANCHORS:
            sys.stderr.write(f"{device}\n")
            asked = partial(ask, fit_without(device, rows, every))
            yield device, Trained([(row, asked(row)) for row in single], [(row, asked(row)) for row in half])


def judge(trained: Trained, deviation: float) -> dict[str, tuple[float, float, float]]:
    """MAPE, coverage and logarithm of upper/lower of half precision by each way to answer it, mean over draws.

    Args:
        trained: A device type.
        deviation: How far precisions are apart on the other types.
    """
    draws, found = random.Random(1), dict[str, list[tuple[float, float, float]]]()
    for _ in range(_DRAWS):
        single, half = (draws.sample(list(each), ANCHORS) for each in trained)
        networks = {row.architecture for row, _ in (*single, *half)}
        left = [each for each in trained.half if each[0].architecture not in networks] or trained.half
        for name, scale in _scales(single, half, deviation).items():
            found.setdefault(name, []).append(_judge_scale(left, scale))
    return {name: _columns(each) for name, each in found.items()}


def _scales(single: _Records, half: _Records, deviation: float) -> dict[str, DeviceScale]:
    scale = scale_by(single)
    apart = replace(scale, step_deviation=math.hypot(scale.step_deviation, deviation))
    found = {"of_fp32": scale, "apart_only": apart, "widened": replace(apart, is_precision_measured=False)}
    for count, name in _COUNTS.items():
        found[name], found[f"{name}_alone"] = join(single, half[:count]), scale_by(half[:count])
    return found


def join(single: _Records, half: _Records) -> DeviceScale:
    """The scale of half precision by a calibration with anchors of both."""
    records = [*(("fp32", *each) for each in single), *(("fp16", *each) for each in half)]
    anchors = [
        Anchor(
            network=str(place),
            graph_sha256="",
            batch_size=row.batch,
            step_ms=row.step_ms,
            memory_peak_bytes=1,
            precision=precision,
        )
        for place, (precision, row, _) in enumerate(records)
    ]
    scale = scale_of(
        calibration_by(single[0][0].device, anchors),
        lambda reference: AnchorFigures(step_ms=records[int(reference.network)][2].value, memory_bytes=1.0),
    )
    assert scale is not None
    return scale.at("fp16")


def _judge_scale(records: _Records, scale: DeviceScale) -> tuple[float, float, float]:
    said = [(row, CalibratedEstimator(cast(JobEstimator, Answer(plain)), scale, 0.0).step(1)) for row, plain in records]
    return (
        statistics.fmean(abs(each.value / row.step_ms - 1) for row, each in said),
        statistics.fmean(each.lower <= row.step_ms <= each.upper for row, each in said),
        statistics.median(math.log(each.upper / each.lower) for _, each in said),
    )


def _logs(records: _Records) -> list[float]:
    return [math.log(row.step_ms / said.value) for row, said in records]


def _size(values: Sequence[float]) -> float:
    return math.sqrt(statistics.fmean(value**2 for value in values))


def _columns(each: Sequence[tuple[float, float, float]]) -> tuple[float, float, float]:
    first, second, third = (statistics.fmean(column) for column in zip(*each, strict=True))
    return first, second, third


def _mean(each: Sequence[tuple[float, float, float]]) -> Mapping[str, float]:
    mape, coverage, log_ratio = _columns(each)
    return {
        "mape": round(mape, 3),
        "coverage": round(coverage, 3),
        "worst_coverage": round(min(held for _, held, _ in each), 3),
        "upper_per_lower": round(math.exp(log_ratio), 2),
    }


if __name__ == "__main__":
    print(json.dumps(main(), indent=2))
