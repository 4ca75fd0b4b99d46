"""Draws the jobs of workloads/optimus_servers.toml: what their steps take, when they come, how long they are."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache
from math import exp, log
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.papers.parameter_servers import ServerTraining

FILE = Path(__file__).parent / "workloads" / "optimus_servers.toml"
MODES = ("asynchronous", "synchronous")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerJob:
    """A training with parameter servers.

    Attributes:
        name: Its own.
        submitted_s: When it comes.
        steps: Steps until it has converged.
        training: What its steps take.
    """

    name: str
    submitted_s: float
    steps: float
    training: ServerTraining


_CHANGES: ContextVar[Mapping[str, Any]] = ContextVar("changes")


@cache
def _file() -> Mapping[str, Any]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def plan() -> Mapping[str, Any]:
    """Return the committed file, within `changed_plan` with its changes."""
    return _CHANGES.get(_file())


@contextmanager
def changed_plan(**changes: object) -> Iterator[None]:
    """Ask what follows from other rules or other jobs than the committed ones: one factor at a time.

    Args:
        changes: By key of the file.
    """
    before = _CHANGES.set({**plan(), **changes})
    try:
        yield
    finally:
        _CHANGES.reset(before)


def draw_jobs(seed: int, *, mode: str = "random", arrivals: str = "uniform") -> list[ServerJob]:
    """Draw the jobs, by submission; mode and arrivals leave everything else as it was.

    Args:
        seed: Of all random draws.
        mode: How jobs train: random, asynchronous or synchronous.
        arrivals: uniform within the stated time, or poisson.
    """
    generators = {name: Random(f"{seed}/{name}") for name in ("arrival", "model", "mode", "speed", "length")}
    models = sorted(plan()["parameters"])
    low, high = plan()["hours_on_one_worker"]
    found = []
    for number, submitted_s in enumerate(_arrivals_s(generators["arrival"], arrivals)):
        drawn = generators["mode"].choice(MODES)
        training = training_of(
            generators["model"].choice(models), drawn if mode == "random" else mode, generators["speed"]
        )
        alone_s = 3_600 * exp(generators["length"].uniform(log(low), log(high)))
        steps = alone_s * 1_000 / training.paired_step_ms([1])
        found.append(ServerJob(name=f"job-{number}", submitted_s=submitted_s, steps=steps, training=training))
    return found


def vary_job(
    job: ServerJob,
    *,
    bandwidth_ratio: float = 1.0,
    batch_ratio: float = 1.0,
    length_ratio: float = 1.0,
    computing_ratio: float = 1.0,
) -> ServerJob:
    """Return a job with other links, another batch, length or speed of workers; on one pair it takes as long.

    Args:
        job: As it was drawn.
        bandwidth_ratio: Width of all links over what it was.
        batch_ratio: The same of the batch.
        length_ratio: The same of the time on one pair.
        computing_ratio: The same of the time that workers compute in a step.
    """
    training = replace(
        job.training,
        sample_ms=job.training.sample_ms * computing_ratio,
        fixed_ms=job.training.fixed_ms * computing_ratio,
        task_bytes_per_ms=job.training.task_bytes_per_ms * bandwidth_ratio,
        batch=max(round(job.training.batch * batch_ratio), 1),
    )
    return retrained(job, training, length_ratio=length_ratio)


def retrained(job: ServerJob, training: ServerTraining, *, length_ratio: float = 1.0) -> ServerJob:
    """Return a job that trains something else and takes as long on one pair, times the ratio."""
    same_length = job.training.paired_step_ms([1]) / training.paired_step_ms([1])
    return replace(job, steps=job.steps * same_length * length_ratio, training=training)


def training_of(model: str, mode: str, generator: Random | None = None) -> ServerTraining:
    """Return what the steps of a model take: Table 2's computing, at random longer or shorter, and its own exchange."""
    table = plan()[mode]
    factors = [plan()["coefficient_spread"] ** generator.uniform(-1.0, 1.0) if generator else 1.0 for _ in range(2)]
    size_ratio = plan()["parameters"][model] / plan()["parameters_of_table_2"]
    return ServerTraining(
        is_synchronous=mode == "synchronous",
        batch=plan()["batch"],
        sample_ms=1_000 * table.get("sample_s", 0.0) * factors[0],
        fixed_ms=1_000 * table["fixed_s"] * factors[1],
        model_bytes=plan()["parameters"][model] * plan()["bytes_per_parameter"],
        task_bytes_per_ms=plan()["link_bytes_per_s"] / plan()["containers_of_table_2"] / 1_000,
        update_ms=1_000 * table["update_s"] * size_ratio,
        per_worker_ms=1_000 * table["per_worker_s"],
        per_server_ms=1_000 * table["per_server_s"],
        concurrency_ratio=table.get("concurrency", 1.0),
    )


def _arrivals_s(generator: Random, arrivals: str) -> list[float]:
    jobs = int(plan()["jobs"])
    if arrivals == "uniform":
        return sorted(generator.uniform(0.0, plan()["submitted_within_s"]) for _ in range(jobs))
    times = [0.0]
    while len(times) < jobs:
        times.append(times[-1] + generator.expovariate(1.0 / plan()["poisson_mean_s"]))
    return times
