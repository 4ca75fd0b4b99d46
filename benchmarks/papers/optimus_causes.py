"""What Fig. 11 of the Optimus paper hangs on: one factor at a time, and what no scheduler can beat.

    python -m benchmarks.papers.optimus_causes [--seeds 20] [--parts factors computing published repeats]

Prints JSON: DRF and Tetris over Optimus as in optimus_servers.py. `published` takes the speeds and lengths that the
first author published later (workloads/optimus_published.toml); `limits` rows divide DRF by a lower bound of every
scheduler's completion time.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random
from statistics import fmean

from benchmarks.papers.command import print_parts
from benchmarks.papers.optimus_servers import NAMES, OTHERS, PAPER, QUANTITIES, Found, over, sweep, worlds_of
from benchmarks.papers.parameter_servers import ServerTraining
from benchmarks.papers.seeds import Row, as_row, means_of
from benchmarks.papers.server_jobs import ServerJob, changed_plan, draw_jobs, retrained, vary_job
from benchmarks.papers.server_limits import least_jct_h
from benchmarks.papers.server_rounds import World
from benchmarks.papers.targets import find_values

FILE = Path(__file__).parent / "workloads" / "optimus_published.toml"
RULES: Mapping[str, Mapping[str, object]] = {
    "as committed": {},
    "18 jobs": {"jobs": 18},
    "27 jobs": {"jobs": 27},
    "all jobs at once": {"submitted_within_s": 1},
    "lengths of 6 minutes to 40 hours": {"hours_on_one_worker": [0.1, 40.0]},
    "rounds of 5 minutes": {"interval_s": 300},
    "changes for nothing": {"change_s": 0},
    "changes of 2 minutes": {"change_s": 120},
    "at most 10 tasks of a kind": {"tasks_max": 10},
    "at most 40 tasks of a kind": {"tasks_max": 40},
}
JOBS: Mapping[str, Mapping[str, float]] = {
    "links of a quarter": {"bandwidth_ratio": 0.25},
    "links four times as wide": {"bandwidth_ratio": 4.0},
    "batch of 5": {"batch_ratio": 0.25},
    "batch of 80": {"batch_ratio": 4.0},
    "jobs three times as long": {"length_ratio": 3.0},
    "jobs a third as long": {"length_ratio": 1 / 3},
}
COMPUTING = (2, 3, 5, 10)
PRINTED_FACTOR = 2.39
"""Of drf's completion time over optimus'."""
REPEATS = 3
"""Section 6.1: "we repeat each experiment for 3 times"."""


def factors(seeds: int) -> list[Row]:
    """Fig. 11 with one thing changed that the text does not print."""
    rows = []
    for label, worlds in worlds_of(seeds):
        for name, changes in RULES.items():
            with changed_plan(**changes):
                rows += _compare(f"{label}, {name}", [draw_jobs(seed) for seed in range(seeds)], worlds)
        for name, varied in JOBS.items():
            workloads = [[vary_job(job, **varied) for job in draw_jobs(seed)] for seed in range(seeds)]
            rows += _compare(f"{label}, {name}", workloads, worlds)
    return rows


def computing(seeds: int) -> list[Row]:
    """Fig. 11 with workers faster than the five cores of Table 2: six servers of the testbed have GPUs."""
    rows = []
    for label, worlds in worlds_of(seeds):
        for times in COMPUTING:
            workloads = [[vary_job(job, computing_ratio=1 / times) for job in draw_jobs(seed)] for seed in range(seeds)]
            rows += _compare(f"{label}, workers {times} times as fast", workloads, worlds)
    return rows


def published(seeds: int) -> list[Row]:
    """Fig. 11 with the speeds that were published later, and with their lengths; there places do not matter."""
    rows = []
    worlds = [World(seed=seed) for seed in range(seeds)]
    for name, keeps_lengths in (("speeds published later", True), ("speeds and lengths published later", False)):
        for most in (20, 40):
            with changed_plan(tasks_max=most):
                workloads = [draw_published(seed, keeps_lengths=keeps_lengths) for seed in range(seeds)]
                rows += _compare(f"{name}, at most {most} tasks of a kind", workloads, worlds)
    return rows


def repeats(seeds: int) -> list[Row]:
    """What three repetitions may show by chance: the largest mean of three, and how many such means are the paper's."""
    committed = [draw_jobs(seed) for seed in range(seeds)]
    found = {label: _factors(label, committed, worlds) for label, worlds in worlds_of(seeds)}
    for most in (20, 40):
        label = f"speeds and lengths published later, at most {most} tasks of a kind"
        with changed_plan(tasks_max=most):
            spread = [draw_published(seed, keeps_lengths=False) for seed in range(seeds)]
            found[label] = _factors(label, spread, [World(seed=seed) for seed in range(seeds)])
    rows = []
    for label, ratios in found.items():
        means = means_of(ratios, REPEATS)
        reached = [float(mean >= PRINTED_FACTOR) for mean in means]
        rows.append(
            as_row("Fig. 11", f"{label}: jct of drf over optimus, largest of three runs", PRINTED_FACTOR, [max(means)])
        )
        rows.append(as_row("Fig. 11", f"{label}: share of three runs that reach the paper's", None, reached))
    return rows


def _factors(label: str, workloads: Sequence[Sequence[ServerJob]], worlds: Sequence[World]) -> list[float]:
    return over(_run(label, workloads, worlds, (PAPER, "drf")), "drf", PAPER, "jct_h")


@cache
def published_models() -> Mapping[str, tuple[ServerTraining, float]]:
    """Return the trainings of the file with their lengths over the mean."""
    models = tomllib.loads(FILE.read_text(encoding="utf-8"))["models"]
    return {name: (_training(one["batch"], one["coefficients_s"]), one["length"]) for name, one in models.items()}


def draw_published(seed: int, *, keeps_lengths: bool = True) -> list[ServerJob]:
    """Draw the committed arrivals with trainings of the file.

    Args:
        seed: Of all random draws.
        keeps_lengths: Jobs are as long on one pair as the committed ones; otherwise the mean is the committed one, and
            lengths differ as the file says.
    """
    generator, models = Random(f"{seed}/published"), published_models()
    drawn = [(job, *models[generator.choice(sorted(models))]) for job in draw_jobs(seed)]
    if keeps_lengths:
        return [retrained(job, training) for job, training, _ in drawn]
    mean_ms = fmean(job.steps * job.training.paired_step_ms([1]) for job, _, _ in drawn)
    return [
        retrained(job, training, length_ratio=length * mean_ms / (job.steps * job.training.paired_step_ms([1])))
        for job, training, length in drawn
    ]


def _training(batch: int, coefficients_s: Sequence[float]) -> ServerTraining:
    """Return Eq. 4: what depends on workers / servers is one term, so that no bytes are left to exchange."""
    sample_ms, fixed_ms, shared_ms, per_worker_ms, per_server_ms = (1_000 * one for one in coefficients_s)
    return ServerTraining(
        is_synchronous=True,
        batch=batch,
        sample_ms=sample_ms,
        fixed_ms=fixed_ms,
        model_bytes=0.0,
        task_bytes_per_ms=1.0,
        update_ms=shared_ms,
        per_worker_ms=per_worker_ms,
        per_server_ms=per_server_ms,
    )


def _run(
    label: str, workloads: Sequence[Sequence[ServerJob]], worlds: Sequence[World], names: Sequence[str] = NAMES
) -> Found:
    return sweep({name: (name, name) for name in names}, workloads, worlds, label)


def _compare(label: str, workloads: Sequence[Sequence[ServerJob]], worlds: Sequence[World]) -> list[Row]:
    found, rows = _run(label, workloads, worlds), []
    for quantity, field in QUANTITIES.items():
        printed = find_values(PAPER, "Fig. 11", quantity)
        for name in OTHERS:
            ratios = over(found, name, PAPER, field)
            rows.append(as_row("Fig. 11", f"{label}: {quantity} of {name} over optimus", printed.get(name), ratios))
    shares_links = worlds[0].shares_links
    pairs = zip(found["drf"], workloads, strict=True)
    limits = [drf.jct_h / least_jct_h(jobs, shares_links=shares_links) for drf, jobs in pairs]
    return [*rows, as_row("Fig. 11", f"{label}: limits: jct of drf over the least possible", None, limits)]


PARTS: Mapping[str, Callable[[int], list[Row]]] = {
    "factors": factors,
    "computing": computing,
    "published": published,
    "repeats": repeats,
}


def main(seeds: int = 20, parts: Sequence[str] = tuple(PARTS)) -> dict[str, object]:
    """Run the named parts."""
    return {"paper": PAPER, "seeds": seeds, "rows": [row for part in parts for row in PARTS[part](seeds)]}


if __name__ == "__main__":
    print_parts(__doc__, PARTS, main)
