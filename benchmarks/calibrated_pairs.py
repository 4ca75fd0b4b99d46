"""What a few pairs measured at a calibration are worth: slowdowns of all other pairs of a machine, before and after.

The machine is one that no model was trained on. Handed in are pairs as `cotenant calibrate` measures them, one window
of each victim, the way that the predictor hands in those of a calibration; judged are all measured pairs of two other
jobs, known alone. Nothing is chosen on them.

    trained     the two campaigns of our own set, which two runs of the stand-in machine measured: learned on one, asked
                about the other. The first one is read from this repository's history; without it this part is left out.
    untrained   public sets of GPUs, of whose type no model of slowdowns exists; gavel publishes no utilization, so that
                all of its jobs count as busy

Ways: "busy" one pair of jobs that never wait, "waiting" one pair of jobs that do, "calibration" one busy pair and all
three of three waiting jobs, "three busy" all three of three busy ones. Means over all choices, or over `CHOICES_MAX` of
them by seed. Figures: mean absolute error, mean of ln(1 + predicted) - ln(1 + measured), coverage and mean width of the
90 % interval. Two CPU minutes.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import subprocess
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn, TypeVar

import numpy as np

from benchmarks.interference_online import DEVICE as UNTRAINED_DEVICE
from benchmarks.interference_online import World, known_world, read_known_world
from benchmarks.retrained_accuracy import retrain_set
from predictor_service.features.device_names import resolve_device
from predictor_service.inference.observed_pairs import Observation, Pair, log_slowdown
from predictor_service.inference.pair_estimator import estimate_pairs
from predictor_service.inference.records import PairJob, PairsAnswer, PairsQuestion
from predictor_service.learning.learning_task import BoolArray, FloatArray
from predictor_service.learning.profile_files import read_profiles
from predictor_service.registry.served_version import ServedTarget
from predictor_service.retraining.datasets import read_dataset
from predictor_service.selection.targets import SLOWDOWN
from predictor_service.settings import default_datasets_dir

OWN_DEVICE: Final = "cpu-standin"
FIRST_CAMPAIGN: Final = "6d673c24"
"""The commit that has it."""
CHOICES_MAX: Final = 100
SEED: Final = 0
BUSY: Final = 0.95
"""Utilization alone from which a job never waits."""
PUBLIC: Final = (
    ("alnair", "", None),
    ("gavel", "Tesla K80", "2019-08-raw"),
    ("gavel", "Tesla V100-SXM2-16GB", "2019-08-raw"),
    ("gavel", "Tesla K80", "2020-05-simulation"),
    ("gavel", "Tesla V100-SXM2-16GB", "2020-05-simulation"),
)
_REPOSITORY: Final = Path(__file__).resolve().parents[1]
_OWN_SET: Final = "datasets/cpu_standin"
_DIGITS: Final = 3
FIGURES: Final = ("mae", "log_bias", "coverage_90_ratio", "width_90_mean")
_Each = TypeVar("_Each")
Choice = Sequence[tuple[int, int]]
"""Pairs by the places of their jobs; each is measured both ways."""


def main() -> dict[str, object]:
    """Judges every machine."""
    found: dict[str, object] = {"trained": _trained()}
    untrained: dict[str, object] = {}
    for name, device, campaign in PUBLIC:
        world = known_world(read_profiles(default_datasets_dir() / "public" / name), device, campaign)
        untrained[" ".join(filter(None, (name, device, campaign)))] = judge(world, None, UNTRAINED_DEVICE)
    return {**found, "untrained": untrained}


def _trained() -> object:
    with tempfile.TemporaryDirectory(prefix="cotenant-campaigns-") as folder:
        first = Path(folder) / _OWN_SET
        if not extract_first_campaign(Path(folder)):
            return f"left out: this repository's history has no {FIRST_CAMPAIGN}"
        campaigns = {"first": first, "second": _REPOSITORY / _OWN_SET}
        return {
            f"learned on the {one}, asked about the {other}": judge(
                read_known_world(campaigns[other]), _slowdowns(campaigns[one]), OWN_DEVICE
            )
            for one, other in itertools.permutations(campaigns)
        }


def extract_first_campaign(folder: Path) -> bool:
    """Writes the first campaign below a folder; False where the history lacks it."""
    command = ["git", "-C", str(_REPOSITORY), "archive", FIRST_CAMPAIGN, _OWN_SET]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode != 0:
        return False
    # Not by tarfile: its filter, without which later Pythons warn, is unknown to Debian's Python 3.11.2.
    subprocess.run(["tar", "-x", "-C", str(folder)], input=done.stdout, check=True)
    return True


def _slowdowns(folder: Path) -> ServedTarget:
    return retrain_set(read_dataset(folder), SEED).devices[OWN_DEVICE][SLOWDOWN.name]


def judge(world: World, model: ServedTarget | None, device: str) -> Mapping[str, object]:
    """Figures of one machine before and after, by the way of measuring.

    Args:
        world: Its jobs, known alone, and what they do to one another.
        model: Trained slowdowns; None = there is no model of the device type.
        device: Device type to ask about.
    """
    plain = ask(world, model, device, ())
    figures: dict[str, object] = {"jobs": len(world.jobs), "pairs": int(_judged(world, ()).sum())}
    for name, choices in list_choices(world).items():
        scored = []
        for choice in choices:
            rest = _judged(world, {place for pair in choice for place in pair})
            if rest.any():
                after = ask(world, model, device, choice)
                scored.append((score(plain, world.truth, rest), score(after, world.truth, rest)))
        if scored:
            before, after_ = (np.mean([each[side] for each in scored], axis=0) for side in (0, 1))
            figures[name] = {"choices": len(scored), "before": _named(before), "after": _named(after_)}
    return figures


def ask(world: World, model: ServedTarget | None, device: str, choice: Choice) -> PairsAnswer:
    """Asks about all jobs after some pairs were measured, one window of each victim."""
    keys = [job.key for job in world.jobs]
    measured: dict[Pair, Observation] = {
        (keys[victim], keys[other]): Observation(count=1.0, mean=log_slowdown(float(world.truth[victim, other])))
        for pair in choice
        for victim, other in (pair, pair[::-1])
    }
    question = PairsQuestion(device=device, jobs=world.jobs)
    return estimate_pairs(question, resolve_device(device).device, model, _refuse, measured)


def _refuse(job: PairJob) -> NoReturn:
    raise AssertionError(f"{job.job_id} is known alone")


def list_choices(world: World) -> Mapping[str, Sequence[Choice]]:
    """Which pairs are handed in together, by the way of measuring."""
    demand = np.array([job.known_utilization_ratio or 0.0 for job in world.jobs])
    busy, waiting = np.flatnonzero(demand >= BUSY).tolist(), np.flatnonzero(demand < BUSY).tolist()
    busy_pairs, waiting_pairs = (_measured_pairs(world, places) for places in (busy, waiting))
    draw = random.Random(SEED)
    threes = _threes(world, waiting)
    calibrations = [[pair, *draw.choice(threes)] for pair in (_some(busy_pairs, draw) if threes else ())]
    return {
        "busy": [[pair] for pair in _some(busy_pairs, draw)],
        "three busy": _some(_threes(world, busy), draw),
        "waiting": [[pair] for pair in _some(waiting_pairs, draw)],
        "calibration": calibrations,
    }


def _threes(world: World, places: Sequence[int]) -> list[Choice]:
    """All pairs of three jobs each."""
    found = (_measured_pairs(world, three) for three in itertools.combinations(places, 3))
    return [pairs for pairs in found if len(pairs) == math.comb(3, 2)]


def _measured_pairs(world: World, places: Sequence[int]) -> list[tuple[int, int]]:
    known = np.isfinite(world.truth)
    return [(one, other) for one, other in itertools.combinations(places, 2) if known[one, other] and known[other, one]]


def _some(choices: Sequence[_Each], draw: random.Random) -> Sequence[_Each]:
    return choices if len(choices) <= CHOICES_MAX else draw.sample(choices, CHOICES_MAX)


def _judged(world: World, measured: Collection[int]) -> BoolArray:
    """Measured pairs of two different jobs, neither of which was measured at the calibration."""
    count = len(world.jobs)
    is_free = np.array([place not in measured for place in range(count)])
    return np.asarray(np.isfinite(world.truth) & is_free[:, None] & is_free[None, :] & ~np.eye(count, dtype=bool))


def score(answer: PairsAnswer, truth: FloatArray, rows: BoolArray) -> tuple[float, ...]:
    """Error, bias, coverage and width, as `FIGURES` names them."""
    value, lower, upper = (
        matrix[rows].astype(np.float64) for matrix in (answer.slowdown_ratio, answer.lower, answer.upper)
    )
    measured = truth[rows]
    return (
        float(np.abs(value - measured).mean()),
        float((np.log1p(value) - np.log1p(measured)).mean()),
        float(((lower <= measured) & (measured <= upper)).mean()),
        float((upper - lower).mean()),
    )


def _named(values: FloatArray) -> Mapping[str, float]:
    return {name: round(float(value), _DIGITS) for name, value in zip(FIGURES, values, strict=True)}


if __name__ == "__main__":
    print(json.dumps(main(), indent=2))
