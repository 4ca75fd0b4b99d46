"""How right predictions were of the one GPU that this program has met: an NVIDIA H200, of which nothing was learned.

`python -m benchmarks.measured_gpu` prints JSON. The rows of `judged_machines/h200` teach nothing. The models are those
that come with the program, asked as a service asks them. No row judged is one of the calibration's; one of its three
networks, vit_b16, is judged at another batch. `predicted_first` is what the program of that day said by its first
calibration, before anything else had been measured. Seven CPU seconds.

    networks        alone, by precision, without and with the calibration: errors of memory (reserved and context, as an
                    agent counts), step time and utilization, what the 90 % ranges and the 99 % bound of memory hold,
                    and `ratio`, the geometric mean of predicted over measured. `busy` keep the device so for `BUSY` of
                    the time or more, the others wait for their host
    alone_again     jobs of the pairs in fp32, alone once more before and after their pair, by the way of sharing: how
                    far that is from the step that is judged. Errors below it mean nothing
    pairs           both victims of each pair in fp32, by the way of sharing, unsteady runs too: slowdowns predicted of
                    graphs alone, or of jobs whose figures alone are known; beside them the errors of saying that nobody
                    slows anybody (0) and that everybody takes twice as long (1). The calibration's pairs took turns
    same_pairs      the slowdowns of pairs that were measured both ways, and how far they are from one another
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from benchmarks.second_machine import count_held, serve_packed
from cotenant.device_calibration import DeviceCalibration, read_calibration_file
from cotenant.device_sharing import read_sharing
from cotenant.job_settings import JobSettings
from cotenant.profile_schema import PairRow, SoloRow, read_rows
from cotenant.system_clock import now_ms
from predictor_service.inference.predictor import Predictor
from predictor_service.inference.records import Estimate, JobQuestion, Level, PairJob, PairsQuestion
from predictor_service.registry.public_version import read_public_version
from predictor_service.registry.version_store import VersionStore

MACHINE: Final = Path(__file__).parent / "judged_machines" / "h200"
DEVICE: Final = "NVIDIA H200"
PRECISIONS: Final = ("fp32", "bf16")
WAYS: Final = ("time_slicing", "mps")
BUSY: Final = 0.8
"""Share of time from which a network counts as keeping the device busy; below it the device waits for its host."""
WITHOUT: Final = "not_calibrated"
WITH: Final = "calibrated"
_DIGITS: Final = 3

FloatArray = npt.NDArray[np.float64]
Figures = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Said:
    """What was predicted of one job alone."""

    memory_bytes: Estimate
    step_ms: Estimate
    utilization_ratio: Estimate


def main() -> dict[str, Any]:
    """Judges what was predicted first, and what is predicted now."""
    packed = read_public_version()
    if packed is None:
        return {"skipped": "the models that come with the program were made by other rules"}
    solo, pairs = read_rows(MACHINE / "solo.csv", SoloRow), read_rows(MACHINE / "pairs.csv", PairRow)
    calibrations = {WITHOUT: None, WITH: read_calibration_file(MACHINE / "calibration.json", now_ms())}
    with tempfile.TemporaryDirectory(prefix="cotenant-gpu-") as folder:
        predictor = serve_packed(VersionStore(Path(folder)), packed)
        said = {name: ask(predictor, solo, each) for name, each in calibrations.items()}
        slowed = {
            name: {way: judge_pairs(predictor, solo, pairs, way, each) for way in WAYS}
            for name, each in calibrations.items()
        }
    return {
        "networks": {"predicted_first": judge(solo, read_first(solo)), "predicted_now": judge(solo, said)},
        "alone_again": {way: measure_again(solo, pairs, way) for way in WAYS},
        "pairs": slowed,
        "same_pairs": compare_ways(pairs),
    }


def ask(predictor: Predictor, solo: Sequence[SoloRow], calibration: DeviceCalibration | None) -> list[Said]:
    """Asks about every row as a client asks about its job; in the order of the rows."""
    answers = [
        predictor.predict_job(
            JobQuestion(
                device=DEVICE,
                onnx_graph=(MACHINE / "graphs" / f"{row.graph_sha256}.onnx").read_bytes(),
                settings=settings_of(row),
                calibration=calibration,
            )
        )
        for row in solo
    ]
    return [Said(each.memory_bytes, each.step_ms, each.utilization_ratio) for each in answers]


def settings_of(row: SoloRow) -> JobSettings:
    """Returns how the job of a row ran."""
    return JobSettings(global_batch_size=row.batch, optimizer=row.optimizer, precision=row.precision)


def read_first(solo: Sequence[SoloRow]) -> dict[str, list[Said]]:
    """Returns what was said before the rows were measured, in their order, without and with a calibration."""
    records = json.loads((MACHINE / "predicted_first.json").read_text())
    found = {(each["calibrated"], each["architecture"], each["precision"]): _read_said(each) for each in records}
    return {
        name: [found[is_calibrated, row.architecture, row.precision] for row in solo]
        for name, is_calibrated in ((WITHOUT, False), (WITH, True))
    }


def _read_said(record: Mapping[str, Any]) -> Said:
    names = ("memory_bytes", "step_ms", "utilization_ratio")
    return Said(*(_read_estimate(record[name]) for name in names))


def _read_estimate(stated: Mapping[str, float]) -> Estimate:
    value, lower, upper = (stated[name] for name in ("value", "lower", "upper"))
    return Estimate(value, lower, upper, 0.9, Level.FALLBACK, False, stated.get("upper_99"))


def judge(solo: Sequence[SoloRow], said: Mapping[str, Sequence[Said]]) -> dict[str, Any]:
    """Figures by precision and calibration."""
    found: dict[str, Any] = {}
    for precision in PRECISIONS:
        places = [place for place, row in enumerate(solo) if row.precision == precision]
        found[precision] = {
            name: score([solo[place] for place in places], [answers[place] for place in places])
            for name, answers in said.items()
        }
    return found


def score(solo: Sequence[SoloRow], said: Sequence[Said]) -> dict[str, Any]:
    """Figures of the module's table."""
    return {
        "networks": len(solo),
        "memory": _score_memory([_held_bytes(row) for row in solo], [each.memory_bytes for each in said]),
        "step": _score_steps(solo, [each.step_ms for each in said]),
        "utilization": _score_shares(
            [row.utilization_ratio or 0.0 for row in solo], [each.utilization_ratio for each in said]
        ),
    }


def _held_bytes(row: SoloRow) -> float:
    """What the job holds of the device as the driver counts it: the allocator's memory and the context."""
    return float((row.memory_reserved_bytes or 0) + (row.memory_context_bytes or 0))


def _score_memory(measured: Sequence[float], said: Sequence[Estimate]) -> Figures:
    bounds = np.array([each.upper_99 or math.inf for each in said])
    return {
        **_errors(measured, said),
        "bound_holds": _rounded(float((np.array(measured) <= bounds).mean())),
        "bound_per_measured_mean": _rounded(float((bounds / measured).mean())),
    }


def _score_steps(solo: Sequence[SoloRow], said: Sequence[Estimate]) -> Figures:
    measured = [row.step_ms_mean or 0.0 for row in solo]
    ratios = np.array([each.value for each in said]) / measured
    is_busy = np.array([(row.utilization_ratio or 0.0) >= BUSY for row in solo])
    groups = {"ratio_of_busy": is_busy, "ratio_of_waiting": ~is_busy}
    return {
        **_errors(measured, said),
        "upper_per_lower_median": _rounded(statistics.median(each.upper / each.lower for each in said)),
        "busy": int(is_busy.sum()),
        **{name: _geometric_mean(ratios[chosen]) for name, chosen in groups.items() if chosen.any()},
    }


def _errors(measured: Sequence[float], said: Sequence[Estimate]) -> Figures:
    ratios = np.array([each.value for each in said]) / measured
    return {
        "error_mean": _rounded(float(np.abs(ratios - 1).mean())),
        "error_median": _rounded(float(np.median(np.abs(ratios - 1)))),
        "ratio": _geometric_mean(ratios),
        "range_holds": _rounded(count_held(said, measured)),
    }


def _score_shares(measured: Sequence[float], said: Sequence[Estimate]) -> Figures:
    apart = [each.value - value for each, value in zip(said, measured, strict=True)]
    return {
        "mae": _rounded(statistics.fmean(map(abs, apart))),
        "bias": _rounded(statistics.fmean(apart)),
        "range_holds": _rounded(count_held(said, measured)),
    }


def measure_again(solo: Sequence[SoloRow], pairs: Sequence[PairRow], way: str) -> Figures:
    """How far steps alone are from those of the first session, where jobs were measured right before their pairs."""
    first_ms = {row.job_key: row.step_ms_mean or 0.0 for row in solo}
    apart = [
        abs((row.victim_solo_step_ms_mean or 0.0) / first_ms[row.victim_job_key] - 1)
        for row in pairs
        if row.share_mode == way
    ]
    return {"steps": len(apart), "error_mean": _rounded(statistics.fmean(apart)), "error_max": _rounded(max(apart))}


def compare_ways(pairs: Sequence[PairRow]) -> Figures:
    """What the pairs that were measured both ways lost: what one way says of the other."""
    by_way: dict[str, dict[tuple[str, ...], float]] = {way: {} for way in WAYS}
    for row in pairs:
        by_way[row.share_mode][row.victim_job_key, *row.other_job_keys] = row.slowdown_ratio or 0.0
    both = sorted(set.intersection(*map(set, by_way.values())))
    slowed = {way: np.array([by_way[way][victim] for victim in both]) for way in WAYS}
    turns, under_mps = (slowed[way] for way in WAYS)
    return {
        "victims": len(both),
        **{f"{way}_mean": _rounded(float(each.mean())) for way, each in slowed.items()},
        **{f"{way}_median": _rounded(float(np.median(each))) for way, each in slowed.items()},
        # Of a pair's two victims each adds the share of its speed alone.
        **{f"{way}_speed_of_both": _rounded(2 * float((1 / (1 + each)).mean())) for way, each in slowed.items()},
        "less_under_mps": int((under_mps < turns).sum()),
        "correlation": _rounded(float(np.corrcoef(turns, under_mps)[0, 1])),
        "apart_mean": _rounded(float(np.abs(turns - under_mps).mean())),
    }


def judge_pairs(
    predictor: Predictor,
    solo: Sequence[SoloRow],
    pairs: Sequence[PairRow],
    way: str,
    calibration: DeviceCalibration | None,
) -> Figures:
    """Slowdowns of the pairs that shared the device one way, asked about with that way stated."""
    chosen = [row for row in pairs if row.share_mode == way]
    measured = np.array([row.slowdown_ratio for row in chosen], dtype=np.float64)
    keys = {row.victim_job_key for row in chosen}
    jobs = [row for row in solo if row.job_key in keys]
    figures: dict[str, Any] = {
        "victims": len(chosen),
        "unsteady": sum("unsteady" in row.quality_flags for row in chosen),
        "slowdown_mean": _rounded(float(measured.mean())),
    }
    for name, is_known in (("graphs_alone", False), ("jobs_known_alone", True)):
        question = PairsQuestion(
            device=DEVICE,
            jobs=[_pair_job(row, is_known=is_known) for row in jobs],
            calibration=calibration,
            sharing=read_sharing(way),
        )
        figures[name] = _ask_pairs(predictor, question, chosen, measured)
    return {
        **figures,
        "mae_of_none": _rounded(float(np.abs(measured).mean())),
        "mae_of_twice_as_long": _rounded(float(np.abs(measured - 1).mean())),
    }


def _pair_job(row: SoloRow, *, is_known: bool) -> PairJob:
    known = (row.step_ms_mean, row.utilization_ratio, _held_bytes(row)) if is_known else (None, None, None)
    step_ms, utilization_ratio, memory_bytes = known
    return PairJob(
        job_id=row.job_key,
        settings=settings_of(row),
        graph_sha256=row.graph_sha256 or "",
        known_step_ms=step_ms,
        known_utilization_ratio=utilization_ratio,
        known_memory_bytes=memory_bytes,
    )


def _ask_pairs(
    predictor: Predictor, question: PairsQuestion, chosen: Sequence[PairRow], measured: FloatArray
) -> Figures:
    answer = predictor.predict_pairs(question)
    place_of = {job_id: place for place, job_id in enumerate(answer.job_ids)}
    places = [(place_of[row.victim_job_key], place_of[row.other_job_keys[0]]) for row in chosen]
    value, lower, upper = (
        np.array([each[place] for place in places], dtype=np.float64)
        for each in (answer.slowdown_ratio, answer.lower, answer.upper)
    )
    return {
        "mae": _rounded(float(np.abs(value - measured).mean())),
        "bias": _rounded(float((value - measured).mean())),
        "range_holds": _rounded(float(((lower <= measured) & (measured <= upper)).mean())),
        "range_width_mean": _rounded(float((upper - lower).mean())),
    }


def _geometric_mean(ratios: FloatArray) -> float:
    return _rounded(math.exp(float(np.log(ratios).mean())))


def _rounded(value: float) -> float:
    return round(value, _DIGITS)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(json.dumps(main(), indent=1))
