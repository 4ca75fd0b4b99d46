"""Twenty actors on Ray: whole GPUs, half GPUs wherever Ray puts them, and GPUs shared by cotenant's decisions.

    python -m benchmarks.ray_sharing [--repeats 5] [--first-seed 0] [--jobs 20]

Needs the environment of `make ray-test` and root rights (docs/ray.md). One node of two GPUs, which are cores of this
machine: an actor keeps to the core that CUDA_VISIBLE_DEVICES names, and steps as a job of examples/jobs does: it waits
for input, then computes, 20 to 40 s in all where it is alone. The three ways of a repeat run the same actors in the
same order; their completion is counted from the submission of all, behind the start of the cluster.
Three fair queues, since busy jobs at the head of one queue hold up all others until each has a core to itself. They
were chosen on seeds 100 to 104 by a model of two cores, after seed 2 had shown it with one queue.
A repeat takes a quarter of an hour of a quiet machine; `--first-seed` goes on where an earlier run was stopped.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

import cotenant.ray
from tests.support.interruptions import unwind_when_ended
from tests.support.ray_cluster import RayCluster, missing_for_ray, run_in_namespace

JOBS_FOLDER = Path(__file__).resolve().parents[1] / "examples" / "jobs"
SHORTEST_S, LONGEST_S = 20.0, 40.0
COMPUTE_MS = {
    "cnn": 8.333, "recommender": 2.867, "lstm": 4.253, "mlp": 10.111, "resnet": 28.0, "transformer": 11.846,
    "autoencoder": 6.324, "lstm-busy": 6.0,
}  # fmt: skip
"""Of a step of each committed job, roughly, on the machine of datasets/cpu_standin."""
WAITING_SLOWDOWN_RATIO = 0.15
BRIDGE = ("--gpu", "*=stand-in core:2GiB", "--policy", "horus_f", "--set", "max_jobs_per_gpu=3", "--interval", "0.5")
WAYS = ("whole", "half", "cotenant")
_MEMORY = "512MiB"


def main(repeats: int = 5, jobs: int = 20, first_seed: int = 0) -> dict[str, object]:
    """Return mean completions by repeat and way, and cotenant's over the others'; without Ray why nothing was done."""
    if missing_for_ray():
        return {"not_run": f"missing: {', '.join(missing_for_ray())}"}
    found = []
    for seed in range(first_seed, first_seed + repeats):
        words = ("--inside", str(seed), "--jobs", str(jobs))
        found.append(run_in_namespace("benchmarks.ray_sharing", *words, timeout_s=3_600))
        sys.stderr.write(f"repeat {seed}: {json.dumps(found[-1])}\n")
    ratios = {
        way: [one["cotenant"]["completion_s"] / one[way]["completion_s"] for one in found] for way in ("whole", "half")
    }
    return {
        "jobs": jobs,
        "repeats": found,
        **{f"completion_over_{way}_ratios": [round(one, 3) for one in found] for way, found in ratios.items()},
        **{
            f"completion_over_{way}_ratio": round(math.exp(fmean(map(math.log, found))), 3)
            for way, found in ratios.items()
        },
    }


def read_kinds() -> dict[str, tuple[float, float]]:
    """Return how long a step of each committed job waits and computes, ms."""
    kinds = {}
    for path in sorted(JOBS_FOLDER.glob("*.yaml")):
        job = yaml.safe_load(path.read_text())
        kinds[job["name"]] = (float(job["settings"].get("input_wait_ms", 0.0)), COMPUTE_MS[job["name"]])
    return kinds


def draw_jobs(seed: int, count: int) -> list[tuple[str, float, float, int]]:
    """Return kind, wait, computing and steps of each job, in the order of their submission."""
    generator, kinds = random.Random(seed), read_kinds()
    names = [*kinds] * math.ceil(count / len(kinds))
    jobs = []
    for name in names[:count]:
        wait_ms, compute_ms = kinds[name]
        length_s = generator.uniform(SHORTEST_S, LONGEST_S)
        jobs.append((name, wait_ms, compute_ms, round(length_s * 1_000 / (wait_ms + compute_ms))))
    generator.shuffle(jobs)
    return jobs


def train(wait_ms: float, compute_ms: float, steps: int) -> dict[str, float]:
    """Run on the core that stands for the GPU; return when that began and ended."""
    core = int(os.environ["CUDA_VISIBLE_DEVICES"])
    os.sched_setaffinity(0, {core})
    began_s = time.time()
    for step in range(1, steps + 1):
        time.sleep(wait_ms / 1_000)
        end_s = time.thread_time() + compute_ms / 1_000
        while time.thread_time() < end_s:
            pass
        cotenant.ray.report(step)
    return {"core": core, "began_s": began_s, "ended_s": time.time()}


class Trainee:
    """An actor that trains."""

    def run(self, wait_ms: float, compute_ms: float, steps: int) -> dict[str, float]:
        """See `train`."""
        return train(wait_ms, compute_ms, steps)


def run_plainly(jobs: Sequence[tuple[str, float, float, int]], gpu_ratio: float) -> list[dict[str, float]]:
    """Let Ray place the actors, each with a part of a GPU; one that has ended gives it back at once."""
    ray = importlib.import_module("ray")
    made = ray.remote(Trainee).options(num_cpus=0, num_gpus=gpu_ratio)
    actors = {}
    for job in jobs:
        handle = made.remote()
        actors[handle.run.remote(*job[1:])] = handle
    found = []
    while actors:
        [done], _ = ray.wait([*actors], num_returns=1)
        found.append(ray.get(done))
        ray.kill(actors.pop(done))
    return found


def run_shared(jobs: Sequence[tuple[str, float, float, int]]) -> list[dict[str, float]]:
    """Let cotenant place them by what is known of the kinds: their use of the core, and whether they wait for input."""
    submitted = [cotenant.ray.submit(_wishes(wait_ms, compute_ms), train, wait_ms, compute_ms, steps)
                 for _, wait_ms, compute_ms, steps in jobs]  # fmt: skip
    return [job.result() for job in submitted]


def _wishes(wait_ms: float, compute_ms: float) -> str:
    busy = compute_ms / (wait_ms + compute_ms)
    slowdown, accepted = (WAITING_SLOWDOWN_RATIO, 0.4) if wait_ms else (1.0, 0.25)
    return f"memory={_MEMORY} utilization={busy:.2f} slowdown={slowdown} max_slowdown={accepted}"


def measure(run: Callable[[], list[dict[str, float]]], jobs: Sequence[tuple[str, float, float, int]]) -> dict[str, Any]:
    """Return the mean completion of one way, s, and how much longer than alone its actors ran."""
    began_s = time.time()
    found = run()
    alone_s = sum((wait_ms + compute_ms) * steps / 1_000 for _, wait_ms, compute_ms, steps in jobs)
    return {
        "completion_s": round(fmean(one["ended_s"] for one in found) - began_s, 1),
        "last_end_s": round(max(one["ended_s"] for one in found) - began_s, 1),
        "first_start_s": round(min(one["began_s"] for one in found) - began_s, 1),
        "running_over_alone_ratio": round(sum(one["ended_s"] - one["began_s"] for one in found) / alone_s, 2),
        "jobs": len(found),
    }


def _wait_a_second() -> None:
    time.sleep(1)


def run_repeat(seed: int, count: int) -> Mapping[str, Any]:
    """Run the three ways one after the other, each first in some repeats."""
    ray = importlib.import_module("ray")
    jobs = draw_jobs(seed, count)
    told: dict[str, Any] = {}
    order = WAYS[seed % 3 :] + WAYS[: seed % 3]
    with RayCluster(("n1",)) as cluster:
        ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
        try:
            # No run's first actor waits for processes that Ray starts once.
            ray.get([ray.remote(num_cpus=1)(_wait_a_second).remote() for _ in range(4)])
            for way in order:
                if way == "cotenant":
                    bridge = cluster.bridge(*BRIDGE)
                    # The bridge has asked Ray for the GPUs by then, as it has long before a user's first job.
                    warm = cotenant.ray.submit(_wishes(1, 1), train, 0.0, 1.0, 1)
                    warm.result(120)
                    told[way] = measure(partial(run_shared, jobs), jobs)
                    bridge.terminate()
                    bridge.wait()
                    cluster.cotenant("engine", "ray", "--give-back")
                else:
                    told[way] = measure(partial(run_plainly, jobs, 1.0 if way == "whole" else 0.5), jobs)
        finally:
            # While the head still answers: otherwise this process ends before it can say why.
            ray.shutdown()
    return told


if __name__ == "__main__":
    unwind_when_ended()
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--inside", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.inside is not None:
        # The functions are found by their module's name in the actors' processes, not as those of __main__.
        told = importlib.import_module("benchmarks.ray_sharing").run_repeat(asked.inside, asked.jobs)
        print(json.dumps(told))
    else:
        print(json.dumps(main(asked.repeats, asked.jobs, asked.first_seed), indent=2))
