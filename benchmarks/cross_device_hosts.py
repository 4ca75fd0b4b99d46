"""What a second ratio would do to calibrated steps: one for the device and its host together, one for the host alone.

`python -m benchmarks.cross_device_hosts` prints JSON; a CPU minute. The model of all types joins time of the device and
time of the host, and its fit gives every measured machine a speed and a host of its own; a calibration gives the device
at hand one ratio. Here three anchors tell both, as the most likely pair of

    ln(measured / said) = speed + ln(step with the host so many times as slow / step) + deviation

where speed and host are normal as they are over the machines of public sets (deviations 0.19 and 0.7), and deviations
have the variance's prior of `features/device_scale.py`. Every device type is left out; anchors are drawn twenty-five
times near a sixth, the middle and five sixths of the expected times of training rows in fp32, or in half precision
where there are none. MISO's slices are judged by the model of all sets.

    by_device       median share of the host in anchors' steps, and of each way the mean of |ln(measured / answered)| of
                    rows in the anchors' precision and in half precision, coverage and median upper/lower of the former
    mean, slices    over types, and over MISO's slices

Ways: `uncalibrated`; `one_ratio`, that is served; `speed_only`, the same law without a host; `both`.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from benchmarks.cross_device import CONFIDENCE, scale_by
from benchmarks.cross_device_ranges import ask, fit_without
from predictor_service.cross_device.step_model import CrossDeviceStep, load_step_model
from predictor_service.cross_device.step_physics import step_parts, terms_of
from predictor_service.features.device_scale import DEVIATION_DEGREES, DEVIATION_SEEN
from predictor_service.inference.records import Estimate
from predictor_service.learning.cross_device_rows import StepRow, read_step_rows, thin_rows, work_of_rows
from predictor_service.settings import default_datasets_dir

FloatArray = npt.NDArray[np.float64]

_HALF: Final = ("fp16", "bf16")
_DRAWS: Final = 25
_PLACES: Final = (1, 3, 5)
_SPEED_DEVIATION: Final = 0.19
_HOST_DEVIATION: Final = 0.7
_NO_HOST: Final = 1e-3
_BETWEEN_NETWORKS: Final = 0.25
"""As `CalibratedEstimator` limits a range that is about devices."""
_REACH: Final = statistics.NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
SPEEDS, HOSTS = np.meshgrid(np.linspace(-1, 1, 41), np.linspace(-2, 2, 41), indexing="ij")


class Parted(NamedTuple):
    """A row and what is said of it.

    Attributes:
        row: The row.
        said: The estimate.
        host_share: Of the step's time, were device and host to take turns.
        by_host: ln(step with a host so many times as slow / step), at each of `HOSTS`.
    """

    row: StepRow
    said: Estimate
    host_share: float
    by_host: FloatArray

    @property
    def off(self) -> float:
        """ln(measured / said)."""
        return math.log(self.row.step_ms / self.said.value)


class Answered(NamedTuple):
    """By how much each of a type's answers is moved, logarithms at the place of `SPEEDS`, and their deviation."""

    place: tuple[int, int] | None
    shift: float
    deviation: float

    def move(self, record: Parted) -> float:
        """ln(answered / said)."""
        return self.shift + (float(record.by_host[self.place]) if self.place else 0.0)

    def holds(self, record: Parted) -> tuple[bool, float]:
        """Whether the range holds a row, and the logarithm of its upper end over its lower one."""
        noise = _REACH * self.deviation
        limit = _REACH * _BETWEEN_NETWORKS if noise else math.inf
        below = math.hypot(min(limit, math.log(record.said.value / record.said.lower)), noise)
        above = math.hypot(min(limit, math.log(record.said.upper / record.said.value)), noise)
        return -below <= record.off - self.move(record) <= above, below + above


def main() -> dict[str, Any]:
    """Judge the public sets that come with the program."""
    with threadpool_limits(1):  # small matrices: more threads only wait for each other
        found = {device: judge(records) for device, records in _records()}
    slices = {device: each for device, each in found.items() if " MIG " in device}
    whole = {device: each for device, each in found.items() if device not in slices}
    return {"by_device": found, "mean": _mean([*whole.values()]), "slices": _mean([*slices.values()])}


def _records() -> Iterator[tuple[str, list[Parted]]]:
    root = default_datasets_dir() / "public"
    every, slices = read_step_rows(root), read_step_rows(root, ["miso"])
    rows, of_all = thin_rows(every), load_step_model()
    for device in sorted({row.device for row in (*rows, *slices)}):
        sys.stderr.write(f"{device}\n")
        chosen = [row for row in (*rows, *slices) if row.device == device]
        model = fit_without(device, rows, every) if chosen[0].set_name != "miso" else of_all
        yield device, [_part(model, row) for row in chosen if row.kind.precision in ("fp32", *_HALF)]


def _part(model: CrossDeviceStep, row: StepRow) -> Parted:
    terms = terms_of(work_of_rows([row]), [row.kind])
    usual = step_parts(terms, model.logs)
    axis = HOSTS[0]
    steps = np.array([float(step_parts(terms, model.logs, each).total_ms[0]) for each in axis])
    share = float((usual.host_ms / (usual.host_ms + usual.device_ms))[0])
    by_host = np.broadcast_to(np.log(steps / float(usual.total_ms[0])), HOSTS.shape)
    return Parted(row, ask(model, row), share, by_host)


def judge(records: Sequence[Parted]) -> dict[str, Any]:
    """Figures of one device type."""
    training = [each for each in records if each.row.kind.is_training] or records
    usual = [each for each in training if each.row.kind.precision == "fp32"] or training
    half = [each for each in training if each.row.kind.precision in _HALF]
    errors: dict[str, list[tuple[float, ...]]] = {}
    draws = random.Random(2)
    for _ in range(_DRAWS):
        anchors = _draw(usual, draws)
        left, left_half = (_without(each, anchors) for each in (usual, half))
        for name, way in ways(anchors).items():
            ranges = [way.holds(each) for each in left]
            figures = (
                _error(way, left),
                _error(way, left_half),
                statistics.fmean(held for held, _ in ranges),
                statistics.median(width for _, width in ranges),
            )
            errors.setdefault(name, []).append(figures)
    named = {name: _columns(each) for name, each in errors.items()}
    return {"host_share": round(statistics.median(each.host_share for each in usual), 2), **named}


def _draw(records: Sequence[Parted], draws: random.Random) -> list[Parted]:
    order = sorted(records, key=lambda each: each.said.value)
    places = [int(len(order) * (part + draws.uniform(-1, 1)) / 6) for part in _PLACES]
    return [order[min(place, len(order) - 1)] for place in places]


def _without(records: Sequence[Parted], anchors: Sequence[Parted]) -> list[Parted]:
    """Rows of other networks; of a set with few networks all but the anchors."""
    networks = {each.row.architecture for each in anchors}
    found = [each for each in records if each.row.architecture not in networks]
    return found or [each for each in records if all(each is not other for other in anchors)]


def ways(anchors: Sequence[Parted]) -> dict[str, Answered]:
    """How three anchors may move answers."""
    served = scale_by([(each.row, each.said) for each in anchors])
    return {
        "uncalibrated": Answered(None, 0.0, 0.0),
        "one_ratio": Answered(None, math.log(served.step_ratio), served.step_deviation),
        "speed_only": most_likely(anchors, _NO_HOST),
        "both": most_likely(anchors, _HOST_DEVIATION),
    }


def most_likely(anchors: Sequence[Parted], host_deviation: float) -> Answered:
    """Speed and host by anchors; the deviation is theirs about them, with a new network's share.

    Args:
        anchors: Two or more.
        host_deviation: Of hosts over machines, a logarithm.
    """
    count = len(anchors)
    squares = sum((each.off - SPEEDS - each.by_host) ** 2 for each in anchors)
    known = DEVIATION_DEGREES * DEVIATION_SEEN**2
    cost = (DEVIATION_DEGREES + count) * np.log(known + squares)
    cost = cost + (SPEEDS / _SPEED_DEVIATION) ** 2 + (HOSTS / host_deviation) ** 2
    row, column = (int(each) for each in np.unravel_index(int(np.argmin(cost)), cost.shape))
    variance = (known + float(np.asarray(squares)[row, column])) / (DEVIATION_DEGREES + count - 1)
    return Answered((row, column), float(SPEEDS[row, column]), math.sqrt(variance * (1 + 1 / count)))


def _error(way: Answered, records: Sequence[Parted]) -> float:
    return statistics.fmean(abs(each.off - way.move(each)) for each in records) if records else math.nan


def _columns(each: Sequence[tuple[float, ...]]) -> dict[str, float | None]:
    same, half, coverage, width = (statistics.fmean(column) for column in zip(*each, strict=True))
    return {
        "same": round(same, 3),
        "half": None if math.isnan(half) else round(half, 3),
        "coverage": round(coverage, 3),
        "upper_per_lower": round(math.exp(width), 2),
    }


def _mean(each: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for name in ("uncalibrated", "one_ratio", "speed_only", "both"):
        for figure in ("same", "half", "coverage", "upper_per_lower"):
            values = [one[name][figure] for one in each if one[name][figure] is not None]
            if values:
                found.setdefault(name, {})[figure] = round(statistics.fmean(values), 3)
    return found


if __name__ == "__main__":
    print(json.dumps(main(), indent=2))
