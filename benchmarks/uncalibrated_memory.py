"""Constants of memory for devices without measurements, and what they are worth.

`python -m benchmarks.uncalibrated_memory` prints JSON: the constants that are committed in
`predictor_service/features/uncalibrated_memory.py`, learned from all rows, and how often the bound of constants that
were learned WITHOUT the judged family exceeds what was measured, at which mean of bound over measured. A family is a
whole set of generated networks (all CNNs, all MLPs) or a family of timm's names.

Rows: GPUMemNet on an A100 (fp32, Adam, training). Each of the sets cnn, mlp and timm weighs the same; one MLP in ten
teaches, all are judged. Constants have the least mean relative error when a shortfall costs the level and an excess the
rest of 1, which covers about that share of the rows. Runs that failed teach nothing
(docs/research/gpu-memory-upper-bounds.md); they are judged, with and without. `with_rejected_rows` judges what the set
itself rejects as well. Runs that ended at the device's memory have none to judge by, but needed more than it:
`device_ended` is the share of them whose bound says so. Rows of implausible memory or without a graph are only
counted, under `left_out`.

Other devices judge and teach nothing: the largest batches that fitted an RTX 3090 in mixed precision (the next larger
one did not, so its bound must exceed the card: coverage is at most the share given), Salus on a P100 and MISO on an
A100 (TensorFlow: peaks of its own pool). timm's inference ran: what is expected of it should be below the card's
memory.

Chosen looking at the judged rows: the form (bounds count gradients as if they were kept: the RTX 3090), how much of an
unfolded input counts (1 and 8 GiB), the level of 99.3 %, the least of those tried that covers every set to 98.5 % when
left out and timm's ResNets to 98 %; the wider bound of mixed precision. Needs COTENANT_SHARED_DATA. Half a CPU minute.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog
from scipy.sparse import csr_matrix, eye, hstack

from cotenant.profile_schema import SoloRow
from predictor_service.features.analytical_memory import ACTIVATION_SCALE as SCALE
from predictor_service.features.analytical_memory import MemoryBreakdown, loss_bytes, update_bytes, weights_bytes
from predictor_service.features.devices import DEVICE_TYPES
from predictor_service.features.graphs.batch_figures import figures_at
from predictor_service.features.job_settings import OPTIMIZER_SLOTS
from predictor_service.features.uncalibrated_memory import (
    BOUND,
    CONTEXT_SEEN_BYTES,
    EXPECTED,
    UNSEEN_SET_FACTOR,
    estimate_uncalibrated,
    memory_parts,
)
from predictor_service.importers.gpumemnet import import_gpumemnet
from predictor_service.importers.miso import import_miso
from predictor_service.importers.salus import import_salus
from predictor_service.importers.timm_bench import import_timm_bench
from predictor_service.learning.failed_runs import find_failed_runs
from predictor_service.learning.learning_task_reader import read_learning_task
from predictor_service.learning.profile_files import MeasuredProfiles
from predictor_service.selection.targets import MEMORY

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

EXPECTED_LEVEL: Final = 0.5
LOW_LEVEL: Final = 0.05
HIGH_LEVEL: Final = 0.95
BOUND_LEVEL: Final = 0.993
A100: Final = "NVIDIA A100-SXM4-40GB"
SETS: Final = ("mlp", "cnn", "timm")
_MLP_EVERY: Final = 10
_UNITS: Final[FloatArray] = np.array([1 << 20, 1 << 20, 1.0, 1.0])
"""Of the constants: two in MiB, two ratios."""
_DIGITS: Final = (0, 0, 3, 2)
_TIMM_BATCHES: Final = (512, 384, 256, 192, 128, 96, 64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1)
"""timm's benchmark tries them downward from 512."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryRows:
    """Measured rows with what the constants multiply.

    Attributes:
        sets: Campaign of each row.
        families: Left out together.
        parts: Shape (rows, 5), see `parts_of`; contexts in bytes are 1.
        measured_bytes: Shape (rows,).
        failed: Of runs that failed.
        rejected: By their set.
        ended: At the device's memory, which is all that is known of what they need.
    """

    sets: npt.NDArray[np.str_]
    families: npt.NDArray[np.str_]
    parts: FloatArray
    measured_bytes: FloatArray
    failed: BoolArray
    rejected: BoolArray
    ended: BoolArray


def main() -> dict[str, Any]:
    """Learns, judges, and asks about other devices."""
    root = os.environ.get("COTENANT_SHARED_DATA", "")
    if not root:
        return {"skipped": "COTENANT_SHARED_DATA is not set"}
    rows, left_out = read_rows(Path(root))
    levels = {"expected": EXPECTED_LEVEL, "low": LOW_LEVEL, "high": HIGH_LEVEL, "bound": BOUND_LEVEL}
    constants = {name: learn(rows, level) for name, level in levels.items()}
    expected, bound = to_vector(constants["expected"]), to_vector(constants["bound"])
    bounds = bound_without_family(rows)
    return {
        "constants": constants,
        "rows": {name: int(((rows.sets == name) & ~rows.ended).sum()) for name in SETS},
        "left_out": left_out,
        "family_left_out": judge(rows, bounds),
        "range_of_unseen_families": judge_ranges(rows),
        "device_ended": judge_ended(rows, bounds),
        "expected": judge_expected(rows, capped(rows.parts, EXPECTED_LEVEL) @ expected),
        "other_devices": judge_elsewhere(Path(root), expected, with_largest_context(bound)),
    }


def read_rows(root: Path) -> tuple[MemoryRows, dict[str, int]]:
    """The rows of GPUMemNet whose memory and graph are known, and how many others there are by reason."""
    profiles = MeasuredProfiles(name="gpumemnet", solo=tuple(import_gpumemnet(root / "gpumemnet").solo), pairs=())
    failed_ids = _failed_ids(profiles)
    kept, left_out = [], {"memory_implausible": 0, "no_graph": 0}
    for row in profiles.solo:
        counted = count_row(row)
        if "memory_implausible" in row.quality_flags:
            left_out["memory_implausible"] += 1
        elif counted is None:
            left_out["no_graph"] += 1
        else:
            kept.append((row, *counted))
    rows = [row for row, _, _ in kept]
    return (
        MemoryRows(
            sets=np.array([row.campaign for row in rows]),
            families=np.array([f"{row.campaign}/{row.family}" for row in rows]),
            parts=np.array([parts_of(counted, convolves=convolves) for _, counted, convolves in kept]),
            measured_bytes=np.array([float(row.memory_peak_bytes or 0) for row in rows]),
            failed=np.array([row.run_id in failed_ids for row in rows]),
            rejected=np.array([row.status == "rejected" for row in rows]),
            ended=np.array([row.status == "out_of_memory" for row in rows]),
        ),
        left_out,
    )


def _failed_ids(profiles: MeasuredProfiles) -> set[str]:
    timm = read_learning_task(profiles, MEMORY, A100, "timm").learning_task
    return {run_id for run_id, failed in zip(timm.row_ids, find_failed_runs(timm), strict=True) if failed}


def count_row(row: SoloRow, batch: int | None = None) -> tuple[MemoryBreakdown, bool] | None:
    """Counts what a row's job holds by the figures of its graph, as `count_memory` does by the graph itself.

    Args:
        row: Of a public set.
        batch: Another one than its own.

    Returns:
        The parts without a context and whether it has a convolution; None where its graph is not known.
    """
    facts: Mapping[str, float] = {
        name.removeprefix("graph."): value
        for name, value in json.loads(row.features_json or "{}").items()
        if name.startswith("graph.") and value is not None
    }
    if not facts.get("parameters"):
        return None
    figures = figures_at(facts, batch or row.sub_batch or row.batch)
    training, scale = row.mode == "train", SCALE[row.precision]
    parameter_bytes = figures.get("parameter_bytes", 4.0 * figures["parameters"])
    kept_bytes = figures["saved_for_backward_bytes"] if training else 0.0
    output_bytes = figures.get("output_bytes", 0.0)
    idle_bytes = figures.get("reserved_bytes", 0.0) - kept_bytes if training else 0.0
    counted = MemoryBreakdown(
        weights_bytes=weights_bytes(parameter_bytes, row.precision) + figures.get("buffer_bytes", 0.0),
        gradients_bytes=parameter_bytes if training else 0.0,
        optimizer_state_bytes=parameter_bytes * OPTIMIZER_SLOTS.get(row.optimizer, 1) if training else 0.0,
        activations_bytes=scale * (kept_bytes + output_bytes) + figures.get("input_bytes", 0.0),
        workspace_bytes=scale * max(2.0 * figures["widest_activation_bytes"], idle_bytes),
        context_bytes=0.0,
        unfolded_bytes=scale * figures.get("largest_unfolded_bytes", 0.0),
        loss_bytes=loss_bytes(output_bytes) if training else 0.0,
        update_bytes=update_bytes(parameter_bytes, row.optimizer) if training else 0.0,
    )
    return counted, any(facts.get(f"{kind}_nodes") for kind in ("convolution", "depthwise_convolution"))


def learn(rows: MemoryRows, level: float, judged: BoolArray | None = None) -> dict[str, float]:
    """Learns constants at a level.

    Args:
        rows: All.
        level: See `relative_coefficients`; each set weighs the same.
        judged: Rows that teach nothing.

    Returns:
        Rounded constants by the names of `MemoryConstants`, the first two in MiB.
    """
    teaching = ~rows.failed & ~rows.rejected & ~rows.ended
    if judged is not None:
        teaching &= ~judged
    every = np.ones(len(teaching), dtype=np.bool_)
    every[rows.sets == "mlp"] = np.arange((rows.sets == "mlp").sum()) % _MLP_EVERY == 0
    teaching &= every
    weights = np.zeros(len(teaching))
    for name in SETS:
        taught = teaching & (rows.sets == name)
        weights[taught] = 1.0 / max(1, taught.sum())
    relative = (capped(rows.parts, level) * _UNITS)[teaching] / rows.measured_bytes[teaching, None]
    found = relative_coefficients(relative, level, weights[teaching])
    names = ("context_mib", "convolution_mib", "held_ratio", "workspace_ratio")
    return {name: round(float(value), digits) for name, value, digits in zip(names, found, _DIGITS, strict=True)}


def parts_of(counted: MemoryBreakdown, *, convolves: bool) -> tuple[float, ...]:
    """What constants multiply where gradients are dropped, and last what is held where they are kept."""
    kept_bytes = memory_parts(counted, convolves=convolves, keeps_gradients=True)[2]
    return (*memory_parts(counted, convolves=convolves, keeps_gradients=False), kept_bytes)


def capped(parts: FloatArray, level: float) -> FloatArray:
    """What constants of a level are multiplied by: of an unfolded input no more than counts at that level."""
    constants = EXPECTED if level <= EXPECTED_LEVEL else BOUND
    found = parts[..., :4].copy()
    found[..., 3] = np.minimum(found[..., 3], constants.unfolded_bytes_max)
    if constants.keeps_gradients:
        found[..., 2] = parts[..., 4]
    return found


def relative_coefficients(relative: FloatArray, level: float, weights: FloatArray) -> FloatArray:
    """Coefficients of at least 0 whose sums are nearest to 1 when shortfalls cost `level` and excesses the rest of 1.

    Args:
        relative: Parts over what was measured, shape (rows, parts).
        level: 0 to 1; about that share of the rows is covered.
        weights: Of the rows, above 0.
    """
    count, width = relative.shape
    weights = weights / weights.mean()
    equations = hstack([csr_matrix(relative), eye(count), -eye(count)]).tocsr()
    cost = np.concatenate([np.zeros(width), weights * level, weights * (1.0 - level)])
    found: FloatArray = linprog(cost, A_eq=equations, b_eq=np.ones(count), method="highs").x[:width]
    return found


def to_vector(constants: Mapping[str, float]) -> FloatArray:
    """What `memory_parts` is multiplied by, the contexts in bytes."""
    return np.asarray(np.array(list(constants.values())) * _UNITS)


def with_largest_context(vector: FloatArray) -> FloatArray:
    """The same constants with at least the context that bounds are served with: the rows know that of one machine."""
    return np.concatenate([[max(vector[0], CONTEXT_SEEN_BYTES[1])], vector[1:]])


def bound_without_family(rows: MemoryRows) -> FloatArray:
    """Bound of every row by constants that its family did not teach, as it is served, bytes."""
    bounds = np.zeros(len(rows.measured_bytes))
    for family in sorted(set(rows.families.tolist())):
        judged: BoolArray = rows.families == family
        bounds[judged] = capped(rows.parts[judged], BOUND_LEVEL) @ with_largest_context(
            to_vector(learn(rows, BOUND_LEVEL, judged))
        )
    return bounds


def judge(rows: MemoryRows, bounds: FloatArray) -> dict[str, Any]:
    """Coverage and mean of bound over measured: per set, of all generated networks, and of all."""
    clean, ratio = ~rows.rejected, bounds / np.maximum(rows.measured_bytes, 1.0)
    groups = {name: (rows.sets == name) & ~rows.ended for name in SETS}
    groups |= {"gpumemnet (mlp and cnn)": (rows.sets != "timm") & ~rows.ended, "all": ~rows.ended}
    return {
        name: {
            **summary(ratio[group & clean]),
            "without_failed_runs": summary(ratio[group & clean & ~rows.failed]),
            "with_rejected_rows": summary(ratio[group]),
        }
        for name, group in groups.items()
    }


def summary(ratio: FloatArray) -> dict[str, float]:
    """Of bound over measured."""
    return {
        "rows": len(ratio),
        "coverage_ratio": round(float((ratio >= 1.0).mean()), 4),
        "bound_over_measured_mean": round(float(ratio.mean()), 3),
        "bound_over_measured_median": round(float(np.median(ratio)), 3),
    }


def judge_ranges(rows: MemoryRows) -> dict[str, Any]:
    """How many sound rows lie in ranges that their set did not teach, with the contexts that were seen elsewhere."""
    sound = ~rows.ended & ~rows.rejected & ~rows.failed
    found = {}
    for name in SETS:
        judged: BoolArray = rows.sets == name
        low, high = (to_vector(learn(rows, level, judged)) for level in (LOW_LEVEL, HIGH_LEVEL))
        low[:2], high[0] = (CONTEXT_SEEN_BYTES[0], 0.0), CONTEXT_SEEN_BYTES[1]
        lower = capped(rows.parts[judged & sound], LOW_LEVEL) @ low / UNSEEN_SET_FACTOR
        upper = capped(rows.parts[judged & sound], HIGH_LEVEL) @ high * UNSEEN_SET_FACTOR
        measured = rows.measured_bytes[judged & sound]
        found[name] = {
            "inside_ratio": round(float(((measured >= lower) & (measured <= upper)).mean()), 4),
            "upper_over_lower_median": round(float(np.median(upper / lower)), 3),
        }
    return found


def judge_ended(rows: MemoryRows, bounds: FloatArray) -> dict[str, float]:
    """Runs that needed more than the device has: a bound below its memory is wrong, one above it may be."""
    said = bounds[rows.ended] > DEVICE_TYPES[A100].memory_bytes
    return {"rows": len(said), "coverage_ratio_at_most": round(float(said.mean()), 4)}


def judge_expected(rows: MemoryRows, expected: FloatArray) -> dict[str, Any]:
    """Median of expected over measured on the rows that taught it."""
    sound = ~rows.failed & ~rows.rejected & ~rows.ended
    ratio = expected / np.maximum(rows.measured_bytes, 1.0)
    medians = {name: float(np.median(ratio[sound & (rows.sets == name)])) for name in SETS}
    return {name: {"over_measured_median": round(median, 3)} for name, median in medians.items()}


def judge_elsewhere(root: Path, expected: FloatArray, bound: FloatArray) -> dict[str, Any]:
    """What constants of the A100 say of other devices, precisions and frameworks."""
    bench = import_timm_bench(root / "timm_bench").solo
    return {
        "rtx_3090_mixed_precision_training": judge_largest_batches(bench),
        "inference_on_cards_it_ran_on": judge_inference(bench, expected),
        "salus_p100_tensorflow": judge_totals(import_salus(root / "salus").solo, bound),
        "miso_a100_tensorflow_pools": judge_totals(import_miso(root / "miso").solo, bound),
    }


def judge_largest_batches(rows: Iterable[SoloRow]) -> dict[str, float]:
    """The largest batch that fitted a card, and the next larger one, which did not: as the service answers them.

    The next size is the one that timm's benchmark tried before, see `_TIMM_BATCHES`.
    """
    fitted, next_, least = [], [], []
    for row in rows:
        if row.mode != "train" or row.batch not in _TIMM_BATCHES[1:]:
            continue
        larger = _TIMM_BATCHES[_TIMM_BATCHES.index(row.batch) - 1]
        at, beyond = served_bound(row), served_bound(row, larger)
        if at is not None and beyond is not None:
            device_bytes = DEVICE_TYPES[row.device].memory_bytes
            fitted.append(at / device_bytes)
            next_.append(beyond / device_bytes)
            least.append(at / (device_bytes * row.batch / larger))
    return {
        "rows": len(fitted),
        "coverage_ratio_at_most": round(float((np.array(next_) >= 1.0).mean()), 4),
        "bound_over_capacity_mean": round(float(np.mean(fitted)), 3),
        "bound_over_least_possible_mean": round(float(np.mean(least)), 3),
    }


def served_bound(row: SoloRow, batch: int | None = None) -> float | None:
    """The bound that a service without a model of the row's device type answers, bytes."""
    found = count_row(row, batch)
    if found is None:
        return None
    device = DEVICE_TYPES[row.device]
    return estimate_uncalibrated(found[0], device, convolves=found[1], precision=row.precision).bound_bytes


def judge_inference(rows: Iterable[SoloRow], expected: FloatArray) -> dict[str, float]:
    """What ran fitted: expected memory above the card's is wrong."""
    ran = [(row, total(row, expected, EXPECTED_LEVEL)) for row in rows if row.mode == "infer"]
    shares = [value / DEVICE_TYPES[row.device].memory_bytes for row, value in ran if value is not None]
    return {"rows": len(shares), "expected_above_card_ratio": round(float(np.mean(np.array(shares) > 1.0)), 4)}


def judge_totals(rows: Sequence[SoloRow], bound: FloatArray) -> dict[str, float]:
    """Bounds against measured totals, each job once."""
    known = [row for row in rows if row.memory_peak_bytes]
    found = {row.job_key: (total(row, bound, BOUND_LEVEL), row.memory_peak_bytes) for row in known}
    return summary(np.array([value / measured for value, measured in found.values() if value and measured]))


def total(row: SoloRow, constants: FloatArray, level: float) -> float | None:
    """Memory of a row's job by constants of a level, bytes; None where its graph is not known."""
    counted = count_row(row)
    if counted is None:
        return None
    return float(capped(np.array(parts_of(counted[0], convolves=counted[1])), level) @ constants)


if __name__ == "__main__":
    print(json.dumps(main(), indent=1))
