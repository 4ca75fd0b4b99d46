"""Whether rows that are new may be learned from at all: repeated runs, and labels that contradict what is known.

Learning from a poisoned batch can make a version that is right about all old rows and wrong about everything else, so
comparing versions on old rows is not enough. A new row contradicts when what was measured lies more than 1.5 times the
half width of the 99 % interval from what the served version predicts, and by more than noise in any case: a factor of
1.5, or 0.15 of a share. A batch is refused when more than a tenth, and at least two, of the new rows of a target
contradict, or when one is off by a factor of more than 30, which no job is but a unit can be.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from predictor_service.features.devices import DeviceType, find_device_type
from predictor_service.fitting.answers import forecast_known
from predictor_service.fitting.known_rows import name_rows, read_known_rows
from predictor_service.learning.learning_task import FloatArray
from predictor_service.registry.device_change import DeviceChange
from predictor_service.registry.held_out import HeldOut, HeldOutRows
from predictor_service.registry.served_version import ServedTarget, ServedVersion
from predictor_service.retraining.collected_rows import NAME as COLLECTED
from predictor_service.retraining.datasets import Dataset
from predictor_service.retraining.gate import Objection
from predictor_service.retraining.learned_rows import select_rows
from predictor_service.selection.targets import MEMORY, STEP, TARGETS, Target

CONTRADICTION_WIDTHS: Final = 1.5
CONTRADICTION_LOG_MIN: Final = math.log(1.5)
CONTRADICTION_SHARE_MIN: Final = 0.15
CONTRADICTING_RATIO_MAX: Final = 0.1
CONTRADICTING_ROWS_MIN: Final = 2
IMPOSSIBLE_LOG: Final = math.log(30.0)
_UNITS: Final[Mapping[str, Mapping[float, str]]] = {
    STEP.name: {1e3: "microseconds given as milliseconds", 1e-3: "seconds given as milliseconds"},
    MEMORY.name: {
        float(1 << 10): "a size multiplied by 1024 once too often",
        1.0 / (1 << 10): "KiB given as bytes",
        1e-6: "MB or MiB given as bytes",
        1e-9: "GB or GiB given as bytes",
    },
}
_UNIT_TOLERANCE: Final = 1.6


@dataclass(frozen=True, slots=True)
class _NewRows:
    """New rows of one target: what is served of them, their analytical estimates, and what was measured."""

    target: Target
    model: ServedTarget
    predicted: FloatArray
    analytical_estimate: FloatArray
    measured: FloatArray


def find_repeated_runs(datasets: Iterable[Dataset]) -> list[str]:
    """Returns one sentence for every kind of repetition; copied rows would count twice."""
    solo, pairs = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
    room: dict[tuple[str, ...], int] = {}
    for dataset in datasets:
        for row in dataset.solo:
            solo[row.campaign, row.device, row.run_id] += 1
        for pair in dataset.pairs:
            jobs = (pair.victim_job_key, *pair.other_job_keys)
            key = (pair.campaign, pair.device, pair.run_id, str(pair.repeat), pair.victim_job_key)
            pairs[key] += 1
            room[key] = jobs.count(pair.victim_job_key)  # a job co-located with a copy of itself is a victim twice
    repeated = [key for key, count in solo.items() if count > 1]
    repeated_pairs = [key for key, count in pairs.items() if count > room[key]]
    return [
        f"{len(keys)} {kind} appear more than once, e.g. run {keys[0][2]} of campaign {keys[0][0]}"
        for keys, kind in ((repeated, "runs of jobs alone"), (repeated_pairs, "runs of pairs"))
        if keys
    ]


def contradiction_limit(model: ServedTarget) -> float:
    """How far a measured value may lie from what is served, in the scale in which the target is learned."""
    floor = CONTRADICTION_SHARE_MIN if model.target.scale == "share" else CONTRADICTION_LOG_MIN
    return max(CONTRADICTION_WIDTHS * model.record.bounds.half_width(0.99), floor)


def find_contradictions(
    datasets: Sequence[Dataset],
    champion: ServedVersion,
    known: HeldOut,
    changes: Sequence[DeviceChange] = (),
) -> list[Objection]:
    """Returns an objection to every target whose new rows contradict the served version.

    Args:
        datasets: Everything that would be learned from.
        champion: The served version, loaded.
        known: Its held-out rows; what is not among them is new.
        changes: What changed since it was learned: of these targets it judges what running jobs taught, as it would
            answer since; data sets are restated and say nothing new.
    """
    objections = []
    for name, models in sorted(champion.devices.items()):
        device = find_device_type(name)
        if device is None:
            continue
        since = {change.target: change for change in changes if change.device == device.name}
        for rows in _new_rows(datasets, device, models, known.get(device.name, {}), since):
            objection = _judge(rows)
            if objection:
                objections.append(Objection(name, rows.target.name, objection))
    return objections


def _new_rows(
    datasets: Sequence[Dataset],
    device: DeviceType,
    models: Mapping[str, ServedTarget],
    known: Mapping[str, HeldOutRows],
    changes: Mapping[str, DeviceChange],
) -> Iterator[_NewRows]:
    for target in TARGETS:
        model, change = models.get(target.name), changes.get(target.name)
        judged = [each for each in datasets if change is None or each.name == COLLECTED]
        if model is None or not judged:
            continue
        learning_task = select_rows(judged, target, device, share_mode=model.record.share_mode).learned
        seen = frozenset(known[target.name].row_ids) if target.name in known else frozenset[str]()
        learning_task = learning_task.subset(
            [row for row, name in enumerate(name_rows(learning_task)) if name not in seen]
        )
        if not len(learning_task):
            continue
        predicted = forecast_known(model, learning_task).value
        if change is not None:
            predicted = np.array([change.applied_to(value) for value in predicted.tolist()])
        anchors = read_known_rows(learning_task).analytical_estimate
        yield _NewRows(target, model, predicted, anchors, learning_task.measured)


def _judge(rows: _NewRows) -> str:
    count = len(rows.measured)
    is_share = rows.target.scale == "share"
    off = rows.target.encode(rows.measured, rows.analytical_estimate) - rows.target.encode(
        rows.predicted, rows.analytical_estimate
    )
    contradicting = np.abs(off) > contradiction_limit(rows.model)
    impossible = not is_share and bool(np.any(np.abs(off) > IMPOSSIBLE_LOG))
    many = int(contradicting.sum()) >= CONTRADICTING_ROWS_MIN
    if not impossible and not (many and contradicting.mean() > CONTRADICTING_RATIO_MAX):
        return ""
    typical = float(np.median(off[contradicting])) if contradicting.any() else float(off[np.abs(off).argmax()])
    factor = math.exp(typical)
    how = f"by {typical:+.2f}" if is_share else f"by a factor of {factor:.3g}{hint_at_unit(rows.target, factor)}"
    return f"{int(contradicting.sum())} of {count} new rows contradict what the served version knows, typically {how}"


def hint_at_unit(target: Target, factor: float, tolerance: float = _UNIT_TOLERANCE) -> str:
    """Returns which unit was confused where a factor looks like it, in brackets; else nothing.

    Args:
        target: What was measured.
        factor: Of what was given over what is right, above 0.
        tolerance: Factor by which it may be another one.
    """
    for unit, meaning in _UNITS.get(target.name, {}).items():
        if unit / tolerance < factor < unit * tolerance:
            return f" ({meaning}?)"
    return ""
