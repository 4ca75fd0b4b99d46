"""Trains a network on several GPUs with nothing but all-reduce; every rank keeps a part of the optimizer's state.

    cotenant submit --steps 300 --ranks 2 -- python -m examples.training.train_all_reduce --steps 300

Each rank averages the gradients with the others, updates its own part of the parameters, and gathers the parts. A
checkpoint consists of one shard per rank, declared by its rank, and is complete when all are; any number of ranks goes
on from it.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from cotenant import job
from examples.training.tasks import TASKS, batch_indices
from examples.training.train_ddp import agree, join_gang, own_part

_LEARNING_RATE = 1e-2
_MOMENTUM = 0.9


class ShardedTraining:
    """A small network whose parameters all ranks hold, and of whose momentum each rank holds its part."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        task = TASKS["mlp"]
        self.seed, self.step = seed, 0
        self._loss = task.loss
        self._network = task.build().double()
        self._data = task.generate(torch.Generator().manual_seed(seed))
        self._bounds = _bounds(sum(parameter.numel() for parameter in self._network.parameters()))
        self._momentum = torch.zeros(self._bounds[1] - self._bounds[0], dtype=torch.float64)

    def take_step(self, batch_size: int) -> float:
        """Do one step over `batch_size` samples of all ranks and return their mean loss."""
        indices = own_part(batch_indices(self.seed, self.step, batch_size, len(self._data.inputs)))
        self._network.zero_grad(set_to_none=False)
        total = torch.zeros((), dtype=torch.float64)
        for (inputs, targets), weight in job.sub_batches((self._data.inputs[indices], self._data.targets[indices])):
            loss = self._loss(self._network(inputs.double()), targets) * (weight * len(indices) / batch_size)
            torch.autograd.backward(loss)
            total += loss.detach()
        gradient = nn.utils.parameters_to_vector([_gradient(parameter) for parameter in self._network.parameters()])
        dist.all_reduce(gradient)
        self._update(gradient)
        self.step += 1
        dist.all_reduce(total)
        return total.item()

    def save_shard(self, folder: Path) -> Path:
        """Write this rank's part of parameters and momentum, complete or not at all."""
        target = folder / f"step-{self.step:09d}.rank-{dist.get_rank()}.pt"
        temporary = target.with_suffix(".new")
        first, end = self._bounds
        with temporary.open("wb") as file:
            torch.save({"parameters": self._vector()[first:end].clone(), "momentum": self._momentum}, file)
            file.flush()
            os.fsync(file.fileno())
        return temporary.replace(target)

    def restore(self, folder: Path, step: int) -> None:
        """Put the shards of a step together, however many ranks wrote them, and take this rank's part."""
        files = sorted(folder.glob(f"step-{step:09d}.rank-*.pt"), key=lambda file: int(file.suffixes[-2][6:]))
        shards = [torch.load(file, weights_only=True) for file in files]
        whole = torch.cat([shard["parameters"] for shard in shards])
        nn.utils.vector_to_parameters(whole, self._network.parameters())
        self._momentum = torch.cat([shard["momentum"] for shard in shards])[slice(*self._bounds)].clone()
        self.step = step

    def _update(self, gradient: Tensor) -> None:
        first, end = self._bounds
        self._momentum.mul_(_MOMENTUM).add_(gradient[first:end])
        updated = torch.zeros_like(gradient)
        updated[first:end] = self._vector()[first:end] - _LEARNING_RATE * self._momentum
        # The others' parts are zeros here: the sum is each rank's own part, exactly.
        dist.all_reduce(updated)
        nn.utils.vector_to_parameters(updated, self._network.parameters())

    def _vector(self) -> Tensor:
        return nn.utils.parameters_to_vector(self._network.parameters()).detach()


def _bounds(parameters: int) -> tuple[int, int]:
    """Return where this rank's part of the parameters begins and ends."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    return parameters * rank // world_size, parameters * (rank + 1) // world_size


def _gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def run(training: ShardedTraining, options: argparse.Namespace) -> None:
    """Train until `--steps` steps are done or a stop is requested."""
    batch_size = job.global_batch(options.batch_size)
    while training.step < options.steps:
        loss = training.take_step(batch_size)
        job.report(training.step, loss=loss)
        if job.rank() == 0 and (training.step % options.log_every == 0 or training.step == options.steps):
            print(f"step {training.step}/{options.steps} loss {loss:.17g}", flush=True)
        stop, due = agree(job.should_stop(), job.should_checkpoint())
        if stop or due:
            job.checkpointed(training.save_shard(job.checkpoint_directory()), training.step, is_shard=True)
        if stop:
            job.leave()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300, help="optimizer steps of the whole training")
    parser.add_argument("--batch-size", type=int, default=64, help="samples per optimizer step over all ranks")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-every", type=int, default=20, help="steps between two lines of output")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    join_gang("cpu")
    training = ShardedTraining(options.seed)
    folder = job.resume_directory()
    if folder is not None:
        training.restore(folder, job.resume_step())
    run(training, options)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
