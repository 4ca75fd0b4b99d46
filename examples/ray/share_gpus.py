"""Four small trainings as tasks of Ray that share GPUs: python -m examples.ray.share_gpus.

The bridge must run: cotenant engine ray --gpu '*=DEVICE:MEMORY' (docs/ray.md). Put your training in place of `train`.
"""

from __future__ import annotations

import os
import time

import cotenant.ray
import ray

WISHES = "memory=2GiB utilization=0.3 slowdown=0.1 max_slowdown=0.5"


def train(rate: float, steps: int = 100) -> str:
    """Find the least of a parabola, slowly; return where that was done."""
    position = 5.0
    for step in range(1, steps + 1):
        position -= rate * 2.0 * position
        time.sleep(0.05)
        cotenant.ray.report(step, loss=position**2)
        if cotenant.ray.should_stop():
            break
    return f"GPU {os.environ.get('CUDA_VISIBLE_DEVICES', '')}: loss {position**2:.3g} after {step} steps"


def main() -> None:
    """Submit four jobs and print what they return."""
    ray.init(address="auto")
    jobs = {rate: cotenant.ray.submit(WISHES, train, rate) for rate in (0.01, 0.02, 0.05, 0.1)}
    for rate, job in jobs.items():
        print(f"rate {rate}: {job.result()}")


if __name__ == "__main__":
    main()
