"""Trains an example network on several GPUs with DistributedDataParallel.

    cotenant submit --steps 300 --ranks 2 -- python -m examples.training.train_ddp --model cnn --steps 300

Rank 0 reports and writes the checkpoints, which any number of ranks can go on from: the samples of a step depend on the
seed and the step only, and each rank takes its part of them. `torchrun --nproc-per-node 2` starts it as well.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from cotenant import job
from examples.training import checkpoint, train
from examples.training.tasks import batch_indices


def join_gang(device: str) -> None:
    """Meet the other ranks; alone, outside of any gang, this is one of one."""
    backend = "gloo" if device == "cpu" else "nccl"
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    if device != "cpu":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))


def own_part(indices: Tensor) -> Tensor:
    """Return the samples of this rank; the parts of all ranks differ by one sample at most."""
    return torch.tensor_split(indices, dist.get_world_size())[dist.get_rank()]


def agree(*answers: bool) -> list[bool]:
    """Return for each question whether any rank says yes: a signal reaches the ranks at different instants."""
    votes = torch.tensor([float(answer) for answer in answers])
    dist.all_reduce(votes, op=dist.ReduceOp.MAX)
    return [vote > 0 for vote in votes.tolist()]


def take_step(training: train.Training, network: DistributedDataParallel, batch_size: int) -> float:
    """Do one optimizer step over `batch_size` samples of all ranks and return their mean loss."""
    data, world_size = training.data, dist.get_world_size()
    indices = own_part(batch_indices(training.seed, training.step, batch_size, len(data.inputs)))
    training.optimizer.zero_grad(set_to_none=True)
    total = torch.zeros((), dtype=torch.float64)
    parts = list(job.sub_batches((data.inputs[indices], data.targets[indices])))
    for number, ((inputs, targets), weight) in enumerate(parts, start=1):
        # The gradients of all ranks are averaged: of equal parts that is the mean over the batch, of others not quite.
        share = weight * len(indices) / batch_size
        with contextlib.nullcontext() if number == len(parts) else network.no_sync():
            loss = training.task.loss(network(inputs), targets)
            torch.autograd.backward(loss * (share * world_size))
        total += loss.item() * share
    training.optimizer.step()
    training.step += 1
    dist.all_reduce(total)
    return total.item()


def run(training: train.Training, options: argparse.Namespace) -> None:
    """Train until `--steps` steps are done or a stop is requested."""
    network = DistributedDataParallel(training.network)
    batch_size = job.global_batch(options.batch_size or training.task.batch_size)
    while training.step < options.steps:
        loss = take_step(training, network, batch_size)
        job.report(training.step, loss=loss)
        if job.rank() == 0 and (training.step % options.log_every == 0 or training.step == options.steps):
            print(f"step {training.step}/{options.steps} loss {loss:.17g}", flush=True)
        stop, due = agree(job.should_stop(), job.should_checkpoint())
        if stop or due:
            save_checkpoint(training, options.checkpoint_dir)
        if stop:
            job.leave()


def save_checkpoint(training: train.Training, default_folder: str) -> None:
    """Let rank 0 write a checkpoint for all: the others have the same parameters."""
    if dist.get_rank() == 0:
        train.save_checkpoint(training, default_folder)
    else:
        job.checkpointed("", training.step)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line, which is that of `examples.training.train`."""
    options = train.parse_arguments(arguments)
    torch.set_num_threads(options.threads)
    train.keep_freed_memory()
    join_gang(options.device)
    training = train.build_training(options)
    train.move_to_device(training, options.device)
    folder = job.resume_directory() or (Path(options.checkpoint_dir) if options.resume else None)
    if folder is not None:
        training.step = checkpoint.restore(folder, training.network, training.optimizer)
    run(training, options)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
