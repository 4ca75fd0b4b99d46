"""Trains one of the example networks: python -m examples.training.train --model cnn --steps 500.

Alone it is an ordinary training script. Started by cotenant it reports its progress, accumulates gradients over the
sub-batch that it is given, writes checkpoints when asked and leaves with exit code 85 when it has to make room.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from cotenant import job
from cotenant.target_loss import reached_target
from examples.training import checkpoint
from examples.training.graph_export import export_graph
from examples.training.tasks import TASKS, Data, Task, batch_indices

# Parameters of mallopt(3).
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


@dataclass(slots=True)
class Training:
    """A network under training and where it stands.

    Attributes:
        task: What is trained.
        data: Its samples, on the device once it trains.
        network: The network, there as well.
        optimizer: Its optimizer.
        seed: Decides initial weights, data and the order of samples.
        step: Optimizer steps done.
    """

    task: Task
    data: Data
    network: nn.Module
    optimizer: torch.optim.Optimizer
    seed: int
    step: int = 0

    def take_step(self, batch_size: int) -> float:
        """Do one optimizer step over `batch_size` samples and return their mean loss."""
        samples = len(self.data.inputs)
        indices = batch_indices(self.seed, self.step, batch_size, samples).to(self.data.inputs.device)
        batch = (self.data.inputs[indices], self.data.targets[indices])
        self.optimizer.zero_grad(set_to_none=True)
        loss = accumulate_gradients(self.network, self.task, batch)
        self.optimizer.step()
        self.step += 1
        return loss


def accumulate_gradients(network: nn.Module, task: Task, batch: tuple[Tensor, Tensor]) -> float:
    """Add the gradient of the mean loss of `batch`, one sub-batch at a time, and return that loss."""
    total = 0.0
    for (inputs, targets), weight in job.sub_batches(batch):
        # Weighted by its share of the batch: a shorter last part must not count as much as a full one.
        loss = task.loss(network(inputs), targets) * weight
        torch.autograd.backward(loss)
        total += loss.item()
    return total


def build_optimizer(name: str, network: nn.Module, learning_rate: float) -> torch.optim.Optimizer:
    """Return the optimizer called sgd, momentum, adam or adamw over the network's parameters."""
    parameters = network.parameters()
    if name == "adam":
        return torch.optim.Adam(parameters, lr=learning_rate)
    if name == "adamw":
        return torch.optim.AdamW(parameters, lr=learning_rate)
    return torch.optim.SGD(parameters, lr=learning_rate, momentum=0.9 if name == "momentum" else 0.0)


def build_training(options: argparse.Namespace) -> Training:
    """Return the training that the command line describes, at step 0 and in the host's memory."""
    task = TASKS[options.model]
    dtype = torch.float64 if options.dtype == "float64" else torch.float32
    torch.manual_seed(options.seed)
    network = task.build().to(dtype)
    generated = task.generate(torch.Generator().manual_seed(options.seed))
    data = Data(*(_place(tensor, "cpu", dtype) for tensor in (generated.inputs, generated.targets)))
    optimizer = build_optimizer(options.optimizer or task.optimizer, network, task.learning_rate)
    return Training(task=task, data=data, network=network, optimizer=optimizer, seed=options.seed)


def move_to_device(training: Training, device: str) -> None:
    """Move network and data to the device; before this nothing is initialised there."""
    training.network.to(device)
    training.data = Data(training.data.inputs.to(device), training.data.targets.to(device))


def _place(tensor: Tensor, device: str, dtype: torch.dtype) -> Tensor:
    return tensor.to(device, dtype) if tensor.is_floating_point() else tensor.to(device)


def save_checkpoint(training: Training, default_folder: str) -> None:
    """Write a checkpoint, outside a cluster to `default_folder`, and report it to the cluster."""
    folder = job.checkpoint_directory(default_folder)
    written = checkpoint.save(folder, training.network, training.optimizer, training.step)
    job.checkpointed(written, training.step)
    if not job.inside_cluster():
        checkpoint.remove_older(folder, written)


def run(training: Training, options: argparse.Namespace) -> None:
    """Train until `--steps` steps are done, the job's target loss is reached or a stop is requested."""
    batch_size = job.global_batch(options.batch_size or training.task.batch_size)
    recent = 0.0
    digits = 17 if options.dtype == "float64" else 9  # as many as distinguish every two numbers of the type
    while training.step < options.steps:
        if options.data_wait_ms > 0:
            time.sleep(options.data_wait_ms / 1_000)
        loss = training.take_step(batch_size)
        samples = training.step * batch_size
        job.report(training.step, epoch=samples // len(training.data.inputs), loss=loss, samples=samples)
        # One batch may be easy by chance, so the target is compared with a mean over some fifty steps.
        recent = loss if training.step == 1 or recent == 0.0 else 0.98 * recent + 0.02 * loss
        if training.step % options.log_every == 0 or training.step == options.steps:
            print(f"step {training.step}/{options.steps} loss {loss:.{digits}g}", flush=True)
        stop = job.should_stop()
        if stop or job.should_checkpoint() or _is_due(training.step, options.checkpoint_every):
            save_checkpoint(training, options.checkpoint_dir)
        if stop:
            job.leave()
        if reached_target(recent):
            break


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line, checked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(TASKS), required=True)
    parser.add_argument("--steps", type=_natural, default=500, help="optimizer steps of the whole training")
    parser.add_argument("--batch-size", type=_natural, help="samples per optimizer step; the model's own by default")
    parser.add_argument("--sub-batch", type=_natural, help="samples that go through the network at once")
    parser.add_argument("--data-wait-ms", type=float, default=0.0, help="waiting for input before every step")
    parser.add_argument("--optimizer", choices=["sgd", "momentum", "adam", "adamw"], help="the model's own by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=_natural, default=1, help="CPU threads of the computation")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--checkpoint-dir", default="checkpoints", help="used outside a cluster")
    parser.add_argument("--checkpoint-every", type=int, default=0, help="steps between checkpoints; 0 = when asked")
    parser.add_argument("--resume", action="store_true", help="go on from the newest file in --checkpoint-dir")
    parser.add_argument("--log-every", type=_natural, default=20, help="steps between two lines of output")
    parser.add_argument("--export", type=Path, metavar="FILE.onnx", help="write the graph and end")
    options = parser.parse_args(arguments)
    if options.device != "cpu" and not torch.cuda.is_available():
        parser.error(f"--device {options.device}: torch sees no GPU here; use --device cpu")
    return options


def _natural(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not 1 or more")
    return value


def keep_freed_memory() -> None:
    """Let the C library keep freed memory for the next step, as PyTorch does on a GPU.

    Without it large tensors are fetched from the system anew in every step, and equal steps take unequal time.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(_MMAP_THRESHOLD, 32 << 20)
        library.mallopt(_TRIM_THRESHOLD, 2**31 - 1)


def main() -> None:
    """Run the command line."""
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    if options.sub_batch:
        # The helper reads the cluster's environment; a flag given by hand comes first.
        os.environ["COTENANT_SUB_BATCH"] = str(options.sub_batch)
    training = build_training(options)
    if options.export:
        export_graph(training.network, training.data.inputs[:2], options.export)
        return
    job.wait_for_go()
    job.limit_gpu_memory()
    move_to_device(training, options.device)
    resume_folder = job.resume_directory() or (Path(options.checkpoint_dir) if options.resume else None)
    if resume_folder is not None:
        training.step = checkpoint.restore(resume_folder, training.network, training.optimizer)
    run(training, options)


if __name__ == "__main__":
    main()
