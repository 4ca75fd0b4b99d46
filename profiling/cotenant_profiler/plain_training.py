"""Trains a network of the zoo as a user's script does: python -m cotenant_profiler.plain_training NETWORK BATCH STEPS.

A measuring process counts from just before it builds a network, on one batch that is always the same. A job counts
from the bare framework: what its script imports, the data that it holds and how its allocator divides them are its own.
On a stand-in device all of that is device memory, so a calibration runs its networks in this way too. Prints the peak
beyond the bare framework in bytes, which is how an agent counts.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Final

import torch

from cotenant_profiler import framework_baseline, zoo
from cotenant_profiler.training_loop import SEED, build_optimizer

SAMPLES: Final = 512
"""As many as the example trainings hold."""


def train(network: str, batch: int, steps: int) -> int:
    """Train, and return the peak beyond the bare framework, bytes."""
    architecture = zoo.find(network)
    torch.manual_seed(SEED)
    model = architecture.build()
    inputs, targets = architecture.make_batch(max(batch, SAMPLES))
    optimizer = build_optimizer(architecture.optimizer, model)
    for _ in range(steps):
        chosen = torch.randperm(len(inputs))[:batch]
        optimizer.zero_grad(set_to_none=True)
        loss = architecture.loss(model(inputs[chosen]), targets[chosen])
        torch.autograd.backward(loss)
        optimizer.step()
        loss.item()
    return framework_baseline.peak_beyond_framework_bytes()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network")
    parser.add_argument("batch", type=int)
    parser.add_argument("steps", type=int)
    parser.add_argument("--core", type=int, required=True, help="the only core that this process may use")
    options = parser.parse_args()
    os.sched_setaffinity(0, {options.core})
    torch.set_num_threads(1)
    sys.stdout.write(f"{train(options.network, options.batch, options.steps)}\n")


if __name__ == "__main__":
    main()
