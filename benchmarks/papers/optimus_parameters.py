"""Table 3 and Figs. 2, 9, 19 and 20 of the Optimus paper: balance of parameter servers, speed over numbers.

    python -m benchmarks.papers.optimus_parameters [--seeds 20]

Prints JSON. ResNet-50 by the coefficients of Table 2 and its own 157 blocks; every task on a node of its own. MXNet
distributes blocks as section 5.3 describes; draws are by seed. The blocks of the other models of Fig. 20 are
not printed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

from benchmarks.papers.parameter_servers import ServerTraining
from benchmarks.papers.seeds import Row, as_order_row, as_row
from benchmarks.papers.server_jobs import plan, training_of
from benchmarks.papers.targets import find_order, find_values
from cotenant.parameter_assignment import ParameterAssignment, Slice, assign_parameters

PAPER = "optimus"
MODEL = "ResNet-50"
SLICED_FROM = 1_000_000
"""MXNet slices blocks of so many parameters over all servers; smaller ones go to one server at random (section 5.3)."""
WORKERS = 10
SERVERS = (1, 2, 5, 10, 15, 20)


def resnet50_blocks() -> dict[str, int]:
    """Return the 157 blocks of MXNet's ResNet-50: convolutions, scale and shift of every normalization, the end."""
    blocks = {"conv0": 7 * 7 * 3 * 64, "fc.weight": 2048 * 1000, "fc.bias": 1000}
    channels, norms = 64, {"data": 3, "bn0": 64, "bn1": 2048}
    for stage, (units, width) in enumerate(((3, 256), (4, 512), (6, 1024), (3, 2048))):
        narrow = width // 4
        for unit in range(units):
            name = f"{stage}.{unit}"
            norms |= {f"{name}.1": channels, f"{name}.2": narrow, f"{name}.3": narrow}
            convolutions = (channels * narrow, 9 * narrow * narrow, narrow * width)
            blocks |= {f"{name}.conv{place}": size for place, size in enumerate(convolutions)}
            if unit == 0:
                blocks[f"{name}.shortcut"] = channels * width
            channels = width
    return blocks | {f"{name}.{part}": size for name, size in norms.items() for part in ("gamma", "beta")}


def assign_as_mxnet(blocks: Mapping[str, int], servers: int, generator: Random) -> ParameterAssignment:
    """Distribute blocks as MXNet does by default."""
    slices = []
    for name, size in blocks.items():
        if size < SLICED_FROM:
            slices.append(Slice(block=name, parameters=size, server=generator.randrange(servers)))
            continue
        part, more = divmod(size, servers)
        slices += [Slice(block=name, parameters=part + (one < more), server=one) for one in range(servers)]
    return ParameterAssignment(
        slices=tuple(slices),
        parameters=tuple(sum(one.parameters for one in slices if one.server == server) for server in range(servers)),
        requests=tuple(sum(one.server == server for one in slices) for server in range(servers)),
    )


def imbalance_of(assignment: ParameterAssignment) -> float:
    """Return the parameters of the fullest server over the mean of all."""
    return max(assignment.parameters) * len(assignment.parameters) / sum(assignment.parameters)


def distribution(seeds: int) -> list[Row]:
    """Table 3: ten servers."""
    blocks = resnet50_blocks()
    found = {
        "mxnet": [assign_as_mxnet(blocks, 10, Random(f"{seed}/mxnet")) for seed in range(seeds)],
        "paa": [assign_parameters(blocks, 10)],
    }
    rows = []
    for name, assignments in found.items():
        values = {
            "size_difference": [(max(one.parameters) - min(one.parameters)) / 1e6 for one in assignments],
            "request_difference": [float(max(one.requests) - min(one.requests)) for one in assignments],
            "requests": [float(sum(one.requests)) for one in assignments],
        }
        for quantity, ours in values.items():
            printed = find_values(PAPER, "Table 3", quantity)[name]
            rows.append(as_row("Table 3", f"{name}: {quantity}", printed, ours))
    return rows


def balance(seeds: int) -> list[Row]:
    """Figs. 19 and 20: synchronous ResNet-50 on ten workers, by number of servers."""
    rows = []
    for servers in SERVERS:
        speeds = speeds_of(servers, seeds)
        rows += [as_row("Fig. 19", f"{servers} servers: {name}, steps/s", None, ours) for name, ours in speeds.items()]
        gains = [100 * (ours / other - 1) for ours, other in zip(speeds["paa"], speeds["mxnet"], strict=True)]
        printed = find_values(PAPER, "Fig. 20", "speedup")["paa"] if servers == WORKERS else None
        rows.append(as_row("Fig. 20", f"{servers} servers: gain by paa, %", printed, gains))
        if servers == WORKERS:
            paper = find_values(PAPER, "6.4", "improvement")["assignment"]
            rows.append(as_row("6.4", "improvement by paa, %", paper, gains))
        if servers == max(SERVERS):
            rows.append(as_order_row("Fig. 19", f"{servers} servers", find_order(PAPER, "Fig. 19", "speed"), speeds))
    return rows


def speeds_of(servers: int, seeds: int) -> dict[str, list[float]]:
    """Return steps per s on ten workers, by how parameters are distributed and seed."""
    blocks, training = resnet50_blocks(), training_of(MODEL, "synchronous")
    assignments = {
        "mxnet": [assign_as_mxnet(blocks, servers, Random(f"{seed}/mxnet")) for seed in range(seeds)],
        "paa": [assign_parameters(blocks, servers)] * seeds,
    }
    return {
        name: [_speed(replace(training, imbalance_ratio=imbalance_of(one)), WORKERS, servers) for one in found]
        for name, found in assignments.items()
    }


def curves() -> list[Row]:
    """Figs. 2 and 9: where more workers bring nothing any more."""
    most, rows = plan()["tasks_max"], []
    for mode in ("synchronous", "asynchronous"):
        training = training_of(MODEL, mode)
        by_split = {workers: _speed(training, workers, most - workers) for workers in range(1, most)}
        rows.append(as_row("Fig. 2", f"{mode}, 20 tasks: best workers", None, [float(_best(by_split))]))
        for servers in (5, 10, 20):
            by_workers = {workers: _speed(training, workers, servers) for workers in range(1, most + 1)}
            best = _best(by_workers)
            rows.append(as_row("Fig. 9", f"{mode}, {servers} servers: best workers", None, [float(best)]))
            if mode == "synchronous":
                speeds = {"most workers": [by_workers[most]], "best number of workers": [by_workers[best]]}
                printed = find_order(PAPER, "Fig. 9", "speed")
                rows.append(as_order_row("Fig. 9", f"{mode}, {servers} servers: steps/s", printed, speeds))
        pairs = {workers: _speed(training, workers, workers) for workers in range(1, most + 1)}
        rows.append(as_row("Fig. 9", f"{mode}, as many servers: best workers", None, [float(_best(pairs))]))
    return rows


def main(seeds: int = 20) -> dict[str, object]:
    """Run everything."""
    return {"paper": PAPER, "seeds": seeds, "rows": [*distribution(seeds), *balance(seeds), *curves()]}


def _speed(training: ServerTraining, workers: int, servers: int) -> float:
    return 1_000 / training.remote_step_ms(workers, servers)


def _best(speeds: Mapping[int, float]) -> int:
    return max(speeds, key=lambda count: (speeds[count], -count))


def _main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    print(json.dumps(main(max(parser.parse_args(arguments).seeds, 1)), indent=2))


if __name__ == "__main__":
    _main()
