"""Whether three or more co-located jobs follow their summed utilization, as Fig. 4 of the Horus paper has it for pairs.

    python -m benchmarks.papers.multiway_colocation_law [FOLDER ...]

Prints JSON. The law (linear up to 100 %, quadratic above) is fitted to the pairs of a data set in our schema, by
default `datasets/cpu_standin`, and judged on its larger groups, which it has not seen; next to it the sum of pairwise
slowdowns, which is what the simulator takes unless stated otherwise.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.papers.summed_utilization import SummedUtilization
from predictor_service.learning.learning_task import FloatArray, JobFacts, LearningTask
from predictor_service.learning.learning_task_reader import list_devices, read_learning_task
from predictor_service.learning.profile_files import read_profiles
from predictor_service.selection.targets import SLOWDOWN

DEFAULT = Path(__file__).resolve().parents[2] / "datasets" / "cpu_standin"
DIGITS = 4


def fit_law(utilizations: FloatArray, slowdowns: FloatArray) -> SummedUtilization:
    """Fit both branches by least squares.

    Args:
        utilizations: Summed over the jobs of each row, 1 = 100 %, shape (n,).
        slowdowns: Shape (n,).
    """
    is_over = utilizations > 1.0
    quadratic = _through_origin(utilizations[is_over] ** 2, slowdowns[is_over])
    linear = _through_origin(utilizations[~is_over], slowdowns[~is_over])
    # An unmeasured branch goes on where the other one ends, at 100 %.
    return SummedUtilization(linear=linear or quadratic, quadratic=quadratic or linear)


def judge_law(learning_task: LearningTask) -> dict[str, object]:
    """Fit the law to the pairs of a problem and compare it with the sum of pairs on its larger groups."""
    totals = np.array(
        [_total(job, others) for job, others in zip(learning_task.jobs, learning_task.others, strict=True)]
    )
    sizes = np.array([len(others) for others in learning_task.others])
    is_pair = (sizes == 1) & np.isfinite(totals)
    figures: dict[str, object] = {"pairs": int(is_pair.sum())}
    if not is_pair.any():
        return figures
    law = fit_law(totals[is_pair], learning_task.measured[is_pair])
    figures |= {"linear": round(law.linear, DIGITS), "quadratic": round(law.quadratic, DIGITS)}
    figures["pairs_mae"] = _mae(_by_law(law, totals[is_pair]), learning_task.measured[is_pair])
    sums = _sums_of_pairs(learning_task)
    is_multiway = (sizes > 1) & np.isfinite(totals) & np.isfinite(sums)
    figures["crowds"] = int(is_multiway.sum())
    if is_multiway.any():
        measured = learning_task.measured[is_multiway]
        answers = {"measured": measured, "law": _by_law(law, totals[is_multiway]), "sum_of_pairs": sums[is_multiway]}
        figures |= {name: _judge(answer, measured, totals[is_multiway]) for name, answer in answers.items()}
    return figures


def main(folders: Sequence[Path] = (DEFAULT,)) -> dict[str, object]:
    """Judge the law on every device type of every data set."""
    found: dict[str, object] = {}
    for folder in folders:
        profiles = read_profiles(folder)
        for device in list_devices(profiles, SLOWDOWN):
            found[f"{profiles.name}, {device}"] = judge_law(
                read_learning_task(profiles, SLOWDOWN, device).learning_task
            )
    return found


def _through_origin(ground: FloatArray, values: FloatArray) -> float:
    return float((ground * values).sum() / (ground**2).sum()) if len(ground) else 0.0


def _by_law(law: SummedUtilization, totals: FloatArray) -> FloatArray:
    return np.array([law.slowdown_ratio(float(total)) for total in totals])


def _judge(answer: FloatArray, measured: FloatArray, totals: FloatArray) -> dict[str, float]:
    """Return how far an answer is off, and how busy it makes a GPU: utilization over the time that it takes."""
    return {
        "slowdown_mean": round(float(answer.mean()), DIGITS),
        "mae": _mae(answer, measured),
        "bias": round(float((answer - measured).mean()), DIGITS),
        "busy_ratio_mean": round(float((totals / (1.0 + answer)).mean()), DIGITS),
    }


def _mae(predicted: FloatArray, measured: FloatArray) -> float:
    return round(float(np.abs(predicted - measured).mean()), DIGITS)


def _total(job: JobFacts, others: Sequence[JobFacts]) -> float:
    shares = [one.solo.utilization_ratio for one in (job, *others)]
    return float("nan") if None in shares else sum(share for share in shares if share is not None)


def _sums_of_pairs(learning_task: LearningTask) -> FloatArray:
    """Return the sum of the measured slowdowns with each other job alone; NaN where one was not measured."""
    alone: dict[tuple[str, str], list[float]] = defaultdict(list)
    for job, others, measured in zip(learning_task.jobs, learning_task.others, learning_task.measured, strict=True):
        if len(others) == 1:
            alone[job.job_key, others[0].job_key].append(float(measured))
    means = {pair: float(np.mean(values)) for pair, values in alone.items()}
    return np.array([
        sum(means.get((job.job_key, other.job_key), float("nan")) for other in others)
        for job, others in zip(learning_task.jobs, learning_task.others, strict=True)
    ])  # fmt: skip


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, default=[DEFAULT])
    print(json.dumps(main(parser.parse_args().folders), indent=2))


if __name__ == "__main__":
    _main()
