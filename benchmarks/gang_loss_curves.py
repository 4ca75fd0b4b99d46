"""Whether gangs train the same whatever happens to them: the bar of docs/several_gpus.md, as JSON.

    python -m benchmarks.gang_loss_curves [STEPS]

The two examples in fp64, without BatchNorm and dropout: two ranks restarted as two ranks must give the losses to the
last bit, and two ranks, one and two again those of one rank alone to 1e-12. Ranks are forks over gloo on this machine.
`across_agents` is the same on a running cluster: a scheduler with the policy elastic and two agents with a device each,
where another job comes and goes.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from cotenant.v1 import scheduling_pb2
from examples.training import train_all_reduce, train_ddp
from tests.support import paced_gang, paced_training
from tests.support.fake_predictor import FakePredictor
from tests.support.gang_attempts import GangAttempts, Training
from tests.support.interruptions import unwind_when_ended
from tests.support.live_cluster import PATIENCE_S
from tests.support.scheduler_process import wait_until
from tests.support.two_nodes import TwoNodes, two_nodes

STEPS, STEP_MS = 100, 100
ENDLESS = 1_000_000
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


def measure_across_agents(folder: Path, example: str, expected: Sequence[float]) -> dict[str, object]:
    """One rank on each of two nodes, then one on one of them while another job has the other, then two again."""
    folder.mkdir()
    with FakePredictor() as predictor, two_nodes(folder, "--predictor", predictor.address) as cluster:
        cluster.cotenant("policies", "use", "elastic", "--set", "reshape_cost_ms=1000", "--set", "start_cost_ms=1000")
        job_id = _submit_paced(cluster, example, len(expected))
        widths = [_wait_for_steps(cluster, job_id, gpus=2, steps=len(expected) // 5)]
        other = _submit_other(cluster)
        cluster.wait(other, "RUNNING")
        widths.append(_wait_for_steps(cluster, job_id, gpus=1, steps=2 * len(expected) // 5))
        cluster.client.cancel(other)
        widths.append(_wait_for_steps(cluster, job_id, gpus=2, steps=3 * len(expected) // 5))
        finished = cluster.wait(job_id, "FINISHED")
        logs = "".join(_read_log(cluster, job_id, attempt) for attempt in range(1, finished.attempt + 1))
    losses = {int(step): float(loss) for step, loss in re.findall(r"step (\d+)/\d+ loss (\S+)", logs)}
    return {
        "ranks": widths,
        "attempts": finished.attempt,
        "steps": len(losses),
        "steps_done_twice": len(re.findall("loss ", logs)) - len(losses),
        "relative_difference": largest_difference([losses[step] for step in sorted(losses)], expected),
    }


def _submit_paced(cluster: TwoNodes, example: str, steps: int) -> str:
    main, flags = EXAMPLES[example]
    words = [sys.executable, paced_gang.__file__, main.__module__, str(STEP_MS), *flags, "--steps", str(steps)]
    batch = int(flags[flags.index("--batch-size") + 1])
    # For the scheduler it has no end in sight: a change of its width pays.
    return cluster.submit(
        *words, "--log-every", "1", steps_total=ENDLESS, allowed_gpus=[1, 2], share="SHARE_MODE_NEVER",
        graph_sha256="1" * 64, settings={"global_batch_size": batch},
    )  # fmt: skip


def _submit_other(cluster: TwoNodes) -> str:
    words = [sys.executable, paced_training.__file__, str(ENDLESS), str(STEP_MS)]
    return cluster.submit(
        *words, gpus=1, ranks=0, across_nodes=False, steps_total=100, share="SHARE_MODE_NEVER", graph_sha256="1" * 64
    )


def _wait_for_steps(cluster: TwoNodes, job_id: str, *, gpus: int, steps: int) -> int:
    """Wait until a job has so many GPUs and steps; how many ranks it has."""

    def look() -> bool:
        job = cluster.client.get(job_id)
        return len(job.assignments) == gpus and job.steps_done >= steps

    wait_until(look, what=f"{gpus} GPUs and {steps} steps", timeout_s=PATIENCE_S)
    return gpus


def _read_log(cluster: TwoNodes, job_id: str, attempt: int) -> str:
    request = scheduling_pb2.ReadJobLogRequest(job_id=job_id, attempt=attempt)
    return b"".join(answer.chunk for answer in cluster.client.stub.ReadJobLog(request, timeout=60)).decode()


def measure(steps: int) -> dict[str, object]:
    """Every example, stopped and resumed in both ways."""
    torch.set_num_threads(1)
    third = steps // 3
    rows: dict[str, dict[str, object]] = {}
    expected: dict[str, list[float]] = {}
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
            expected[example] = alone
        # Last, for the clients of a cluster have threads, and ranks are forks until here.
        for place, (example, alone) in enumerate(expected.items()):
            rows[example]["across_agents"] = measure_across_agents(Path(name) / f"{place}-agents", example, alone)
    return {"steps": steps, "examples": rows}


def main(steps: int = STEPS) -> dict[str, object]:
    """Measure in a process of its own: ranks are forks, and a fork has one thread of its parent's."""
    os.environ["OMP_NUM_THREADS"] = "1"
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measure, steps).result()


if __name__ == "__main__":
    unwind_when_ended()
    sys.stdout.write(json.dumps(main(*map(int, sys.argv[1:])), indent=2) + "\n")
