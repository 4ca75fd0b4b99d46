"""Trains a small network with parameter servers: workers compute gradients, servers keep and update the parameters.

    cotenant submit --steps 300 --ranks 2 --servers 1 -- python -m examples.training.train_with_servers --steps 300

Workers and servers are one world over gloo, the workers first; COTENANT_ROLE says which this process is. Which server
holds which block is read from the node's assignment where there is one (COTENANT_PARAMETER_ASSIGNMENT), else worked out
the same way here. Training is synchronous: every step sums the gradients of all workers in their order, so that the
loss is that of one process. Rank 0 writes the checkpoints, from which any numbers of workers and servers go on. Outside
a cluster one process is worker and server.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from cotenant import job, rank_times
from cotenant.parameter_assignment import assign_parameters
from examples.training.tasks import TASKS, batch_indices
from examples.training.train_ddp import agree

_LEARNING_RATE = 1e-2
_MOMENTUM = 0.9

Place = tuple[str, int, int]
"""A part of a block: its name, where it begins, how many parameters it has."""


class World:
    """Who this process is among the workers and servers."""

    def __init__(self) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.servers = int(os.environ.get("COTENANT_SERVERS", "0"))
        self.workers = max(int(os.environ.get("WORLD_SIZE", "1")) - self.servers, 1)
        self.is_server = os.environ.get("COTENANT_ROLE") == "server"

    @property
    def server(self) -> int:
        """Number of this server."""
        return self.rank - self.workers

    def rank_of(self, server: int) -> int:
        """Return the rank of a server."""
        return self.workers + server


def read_places(sizes: Mapping[str, int], servers: int) -> list[list[Place]]:
    """Return what each server holds, as the node says; else, or where it means another network, as PAA says.

    Args:
        sizes: Parameters of each block of the network.
        servers: At least 1.
    """
    path = os.environ.get("COTENANT_PARAMETER_ASSIGNMENT", "")
    blocks = json.loads(Path(path).read_bytes())["blocks"] if path else {}
    if {name: sum(part["parameters"] for part in parts) for name, parts in blocks.items()} != dict(sizes):
        blocks = assign_parameters(sizes, servers).places()
    found: list[list[Place]] = [[] for _ in range(servers)]
    for name, parts in sorted(blocks.items()):
        for part in parts:
            found[part["server"]].append((name, part["offset"], part["parameters"]))
    return found


class ServerTraining:
    """The network with the parts of it that each server holds."""

    def __init__(self, world: World, model: str, seed: int) -> None:
        torch.manual_seed(seed)
        task = TASKS[model]
        self.world, self.seed, self.step = world, seed, 0
        self._loss = task.loss
        self._network = task.build().double()
        self._data = task.generate(torch.Generator().manual_seed(seed))
        self._parameters = dict(self._network.named_parameters())
        sizes = {name: value.numel() for name, value in self._parameters.items()}
        self.places = read_places(sizes, max(world.servers, 1))
        own = self.places[world.server if world.is_server else 0]
        self._own_length = sum(length for _, _, length in own)
        self._momentum = torch.zeros(self._own_length, dtype=torch.float64)
        self.parameters_by_server = [sum(length for _, _, length in places) for places in self.places]

    def take_step(self, batch_size: int) -> float:
        """Do one step over `batch_size` samples of all workers and return their mean loss, 0.0 on a server."""
        loss = 0.0
        if self.world.is_server:
            self._serve()
        else:
            loss = self._compute(batch_size)
            with rank_times.waiting():
                self._exchange()
        self.step += 1
        with rank_times.waiting():
            return self._sum(loss)

    def _compute(self, batch_size: int) -> float:
        """Leave this worker's part of the batch's gradient in the parameters; return its part of the loss."""
        indices = batch_indices(self.seed, self.step, batch_size, len(self._data.inputs))
        own = torch.tensor_split(indices, self.world.workers)[self.world.rank]
        self._network.zero_grad(set_to_none=False)
        total = 0.0
        for (inputs, targets), weight in job.sub_batches((self._data.inputs[own], self._data.targets[own])):
            outputs = self._network(inputs.double() if inputs.is_floating_point() else inputs)
            loss = self._loss(outputs, targets) * (weight * len(own) / batch_size)
            torch.autograd.backward(loss)
            total += loss.item()
        return total

    def _exchange(self) -> None:
        """Hand the gradients to the servers and take the parameters back; all of them at once."""
        if not self.world.servers:
            self._put(self.places[0], self._updated(self.places[0], self._gradient(self.places[0])))
            return
        gradients = [self._gradient(places) for places in self.places]
        values = [torch.empty(length, dtype=torch.float64) for length in self.parameters_by_server]
        sending = [dist.isend(gradient, self.world.rank_of(one)) for one, gradient in enumerate(gradients)]
        receiving = [dist.irecv(value, self.world.rank_of(one)) for one, value in enumerate(values)]
        for waited in (*sending, *receiving):
            if waited is not None:
                waited.wait()
        for places, value in zip(self.places, values, strict=True):
            self._put(places, value)

    def _serve(self) -> None:
        """Sum the workers' gradients in the order of their ranks, update, and hand the parameters back."""
        places = self.places[self.world.server]
        gradient = torch.zeros(self._own_length, dtype=torch.float64)
        part = torch.empty_like(gradient)
        for worker in range(self.world.workers):
            dist.recv(part, worker)
            gradient += part
        value = self._updated(places, gradient)
        self._put(places, value)
        for worker in range(self.world.workers):
            dist.send(value, worker)

    def _updated(self, places: Sequence[Place], gradient: Tensor) -> Tensor:
        self._momentum.mul_(_MOMENTUM).add_(gradient)
        return self._flat(places) - _LEARNING_RATE * self._momentum

    def _flat(self, places: Sequence[Place]) -> Tensor:
        parts = [self._parameters[name].detach().flatten()[first : first + length] for name, first, length in places]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)

    def _gradient(self, places: Sequence[Place]) -> Tensor:
        parts = [_gradient(self._parameters[name])[first : first + length] for name, first, length in places]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)

    def _put(self, places: Sequence[Place], value: Tensor) -> None:
        position = 0
        for name, first, length in places:
            flat = self._parameters[name].detach().view(-1)
            flat[first : first + length] = value[position : position + length]
            position += length

    def _sum(self, loss: float) -> float:
        if not self.world.servers:
            return loss
        total = torch.tensor(loss, dtype=torch.float64)
        dist.all_reduce(total)
        return total.item()

    def save(self, folder: Path) -> Path:
        """Let rank 0 gather the momentum of all servers and write a checkpoint, complete or not at all."""
        momentum = self._gathered_momentum()
        target = folder / f"step-{self.step:09d}.pt"
        if self.world.rank == 0:
            temporary = target.with_suffix(".new")
            with temporary.open("wb") as file:
                torch.save({"network": self._network.state_dict(), "momentum": momentum}, file)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
        return target

    def _gathered_momentum(self) -> dict[str, Tensor]:
        """Return the momentum of every block, on rank 0; other processes only hand theirs over."""
        whole = {name: torch.zeros(value.numel(), dtype=torch.float64) for name, value in self._parameters.items()}
        if self.world.is_server:
            dist.send(self._momentum, 0)
        for server, places in enumerate(self.places if self.world.rank == 0 else ()):
            part = self._momentum
            if self.world.servers:
                part = torch.empty(self.parameters_by_server[server], dtype=torch.float64)
                dist.recv(part, self.world.rank_of(server))
            position = 0
            for name, first, length in places:
                whole[name][first : first + length] = part[position : position + length]
                position += length
        return whole

    def restore(self, folder: Path, step: int) -> None:
        """Go on from a checkpoint, whatever numbers of workers and servers wrote it."""
        state = torch.load(folder / f"step-{step:09d}.pt", weights_only=True)
        self._network.load_state_dict(state["network"])
        own = self.places[self.world.server if self.world.is_server else 0]
        parts = [state["momentum"][name][first : first + length] for name, first, length in own]
        self._momentum = torch.cat(parts) if parts else self._momentum
        self.step = step


def _gradient(parameter: nn.Parameter) -> Tensor:
    return torch.zeros(parameter.numel(), dtype=parameter.dtype) if parameter.grad is None else parameter.grad.flatten()


def run(training: ServerTraining, options: argparse.Namespace) -> None:
    """Train until `--steps` steps are done or a stop is requested."""
    batch_size = job.global_batch(options.batch_size)
    while training.step < options.steps:
        loss = training.take_step(batch_size)
        job.report(training.step, loss=loss)
        if training.world.rank == 0 and (training.step % options.log_every == 0 or training.step == options.steps):
            print(f"step {training.step}/{options.steps} loss {loss:.17g}", flush=True)
        with rank_times.waiting():
            stop, due = answers(training.world, job.should_stop(), job.should_checkpoint())
        rank_times.step_done()
        if stop or due:
            job.checkpointed(training.save(job.checkpoint_directory()), training.step)
        if stop:
            job.leave()


def answers(world: World, *own: bool) -> Sequence[bool]:
    """Return for each question whether any process says yes."""
    return agree(*own) if world.servers else own


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("mlp", "cnn", "lstm", "transformer"), default="mlp")
    parser.add_argument("--steps", type=int, default=300, help="optimizer steps of the whole training")
    parser.add_argument("--batch-size", type=int, default=64, help="samples per optimizer step over all workers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-every", type=int, default=20, help="steps between two lines of output")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    world = World()
    if world.servers:
        dist.init_process_group("gloo")
    training = ServerTraining(world, options.model, options.seed)
    if world.is_server or not world.servers:
        held = training.parameters_by_server[max(world.server, 0) if world.servers else 0]
        blocks = len(training.places[max(world.server, 0) if world.servers else 0])
        print(f"holds {held} parameters in {blocks} part(s)", flush=True)
    folder = job.resume_directory()
    if folder is not None:
        training.restore(folder, job.resume_step())
    run(training, options)
    if world.servers:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
