"""Whether gangs train the same whatever happens to them: the bar of docs/training_scripts.md, as JSON.

    python -m benchmarks.gang_loss_curves [STEPS]

The two examples in fp64, without BatchNorm and dropout: two ranks restarted as two ranks must give the losses to the
last bit, and two ranks, one and two again those of one rank alone to 1e-12. Ranks are forks over gloo on this machine.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from examples.training import train_all_reduce, train_ddp
from tests.support.gang_attempts import GangAttempts, Training

STEPS = 100
EXAMPLES: dict[str, tuple[Training, list[str]]] = {
    "train_ddp cnn, momentum": (train_ddp.main, ["--model", "cnn", "--dtype", "float64", "--batch-size", "16"]),
    "train_ddp transformer, adamw": (
        train_ddp.main,
        ["--model", "transformer", "--dtype", "float64", "--batch-size", "8"],
    ),
    "train_all_reduce mlp, momentum, a shard per rank": (train_all_reduce.main, ["--batch-size", "16"]),
}


def curve(folder: Path, example: str, attempts: Sequence[tuple[int, int]], steps: int) -> list[float]:
    """Losses of every step over attempts of (ranks, last step)."""
    main, flags = EXAMPLES[example]
    gang = GangAttempts(folder, main, [*flags, "--log-every", "1"], steps)
    for ranks, until in attempts:
        gang.train(ranks, until)
    return gang.losses()


def largest_difference(losses: Sequence[float], expected: Sequence[float]) -> float:
    """Relative, over all steps."""
    return max(abs(found - wanted) / abs(wanted) for found, wanted in zip(losses, expected, strict=True))


def measure(steps: int) -> dict[str, object]:
    """Every example, stopped and resumed in both ways."""
    torch.set_num_threads(1)
    third = steps // 3
    rows: dict[str, object] = {}
    with TemporaryDirectory() as name:
        for place, example in enumerate(EXAMPLES):
            folder = Path(name)
            steady = curve(folder / f"{place}-steady", example, [(2, steps)], steps)
            stopped = curve(folder / f"{place}-stopped", example, [(2, steps // 2), (2, steps)], steps)
            alone = curve(folder / f"{place}-alone", example, [(1, steps)], steps)
            changing = curve(folder / f"{place}-changing", example, [(2, third), (1, 2 * third), (2, steps)], steps)
            rows[example] = {
                "restart_relative_difference": largest_difference(stopped, steady),
                "changing_ranks_relative_difference": largest_difference(changing, alone),
            }
    return {"steps": steps, "examples": rows}


def main(steps: int = STEPS) -> dict[str, object]:
    """Measure in a process of its own: ranks are forks, and a fork has one thread of its parent's."""
    os.environ["OMP_NUM_THREADS"] = "1"
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measure, steps).result()


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(*map(int, sys.argv[1:])), indent=2) + "\n")
