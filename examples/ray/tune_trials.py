"""A search of Ray Tune whose trials share GPUs: python -m examples.ray.tune_trials. Needs pip install 'ray[tune]'.

The bridge must run: cotenant engine ray --gpu '*=DEVICE:MEMORY' (docs/ray.md).
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

import cotenant.ray
import ray
from ray import tune

WISHES = "memory=2GiB utilization=0.3 slowdown=0.1 max_slowdown=0.5"
RATES = (0.01, 0.02, 0.05, 0.1)


def train(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Find the least of a parabola, slowly; return the last loss, on which GPU, and when that began and ended."""
    position, began_s = 5.0, time.time()
    for step in range(1, 101):
        position -= configuration["rate"] * 2.0 * position
        time.sleep(0.05)
        cotenant.ray.report(step, loss=position**2)
    gpu = f"{ray.get_runtime_context().get_node_id()}/{os.environ.get('CUDA_VISIBLE_DEVICES', '')}"
    return {"loss": position**2, "step": 100, "gpu": gpu, "began_s": began_s, "ended_s": time.time()}


def search(storage_path: str | None = None) -> Any:  # noqa: ANN401 (Tune's own class)
    """Run one trial for each rate; return Tune's results."""
    trainable = tune.with_resources(cotenant.ray.trainable(train, WISHES), {"CPU": 0.01})
    tuner = tune.Tuner(
        trainable,
        param_space={"rate": tune.grid_search(list(RATES))},
        run_config=tune.RunConfig(storage_path=storage_path, verbose=0),
    )
    return tuner.fit()


def main() -> None:
    """Print the best rate."""
    ray.init(address="auto")
    best = search().get_best_result(metric="loss", mode="min")
    print(f"best rate {best.config['rate']}: loss {best.metrics['loss']:.3g}, on GPU {best.metrics['gpu']}")


if __name__ == "__main__":
    main()
