"""Which way to compose slowdowns fits measured crowds best: a victim beside two or more jobs.

Reads every data set of this repository and those in COTENANT_CROWD_DATA (folders or files in our schema, joined by the
path separator). For each row with several jobs beside the victim, the measured slowdowns beside each of them alone are
composed in every way known and compared with what was measured. Says so where no set has such rows.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np

from predictor_service.features.slowdown_composition import COMPOSITIONS, DEFAULT_COMPOSITION, compose_slowdowns
from predictor_service.learning.problem import Problem
from predictor_service.learning.problem_reader import list_devices, read_problem
from predictor_service.learning.profile_files import read_profiles
from predictor_service.learning.slowdown_method import pair_up
from predictor_service.learning.slowdown_pairs import name_job

_OWN_SETS: Final = Path(__file__).resolve().parents[1] / "datasets"


def main() -> dict[str, object]:
    """Compares on every data set and device type."""
    extra = [Path(part) for part in os.environ.get("COTENANT_CROWD_DATA", "").split(os.pathsep) if part]
    own = sorted(folder for folder in _OWN_SETS.iterdir() if (folder / "pairs.csv").is_file())
    figures: dict[str, object] = {}
    for path in [*own, *extra]:
        profiles = read_profiles(path)
        for device in list_devices(profiles, "slowdown"):
            figures[f"{profiles.name}, {device}"] = compare_compositions(
                read_problem(profiles, "slowdown", device).problem
            )
    return {"default": DEFAULT_COMPOSITION, "sets": figures}


def compare_compositions(problem: Problem) -> Mapping[str, object]:
    """Compares the ways to compose on the crowds of one problem.

    Args:
        problem: Rows of pairs and of crowds.

    Returns:
        Number of crowds whose every pair was measured too, and by way the mean absolute error of the slowdown and of
        the shared time as a share of it.
    """
    alone: dict[tuple[str, str], list[float]] = defaultdict(list)
    for job, others, measured in zip(problem.jobs, problem.others, problem.measured, strict=True):
        if len(others) == 1:
            alone[name_job(job), name_job(others[0])].append(float(measured))
    usable = [
        row
        for row, (job, others) in enumerate(zip(problem.jobs, problem.others, strict=True))
        if len(others) > 1 and all((name_job(job), name_job(other)) in alone for other in others)
    ]
    crowds = problem.subset(usable)
    pairs, row_of_pair = pair_up(crowds)
    slowdowns = np.array([
        np.mean(alone[name_job(job), name_job(others[0])])
        for job, others in zip(pairs.jobs, pairs.others, strict=True)
    ])  # fmt: skip
    figures: dict[str, object] = {"crowds": len(crowds)}
    for how in COMPOSITIONS if len(crowds) else ():
        error = np.abs(compose_slowdowns(slowdowns, row_of_pair, len(crowds), how) - crowds.measured)
        figures[how] = {
            "mae": round(float(error.mean()), 4),
            "shared_time_error_ratio": round(float((error / (1.0 + crowds.measured)).mean()), 4),
        }
    return figures
