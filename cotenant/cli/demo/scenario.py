"""Which jobs the demo runs: the job files of examples/jobs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import cotenant
from cotenant.client_errors import InputError
from cotenant.graph_file import graph_sha256, read_graph
from cotenant.job_file import read_job_file
from cotenant.v1 import resources_pb2, scheduling_pb2

DEVICE = "cpu-standin"
DEVICE_MEMORY_BYTES = 2 * 2**30
# Long enough for three reports of the agent, which come every two seconds.
SOLO_RUN_MS = 7_000
SOLO_STEPS_LEAST = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoJob:
    """One job of the demo.

    Attributes:
        spec: What is submitted.
        graph: ONNX bytes without weights.
    """

    spec: scheduling_pb2.JobSpec
    graph: bytes

    @property
    def name(self) -> str:
        """The job's name, unique in the demo."""
        return self.spec.name


def examples_folder() -> Path:
    """Returns the examples next to the package in a checkout, else those installed with it.

    Raises:
        InputError: cotenant was installed without its examples.
    """
    adjacent = Path(cotenant.__file__).resolve().parent.parent / "examples"
    folders = (adjacent, Path(sys.prefix) / "share" / "cotenant" / "examples")
    found = next((folder for folder in folders if (folder / "jobs").is_dir()), None)
    if found is None:
        remedy = "clone cotenant's repository and run `make demo` there, or try your own script: `cotenant up --help`"
        raise InputError("the demo's examples are not installed", remedy=remedy)
    return found


def load_scenario(folder: Path, *, steps_divisor: int = 1) -> list[DemoJob]:
    """Reads all job files of a folder.

    Args:
        folder: Where the YAML files lie.
        steps_divisor: Runs only 1 / steps_divisor of every job's steps.
    """
    return [_load_job(path, steps_divisor) for path in sorted(folder.glob("*.yaml"))]


def _load_job(path: Path, steps_divisor: int) -> DemoJob:
    job_file = read_job_file(path)
    if job_file.graph is None:
        raise InputError(f"{path} names no graph", remedy="the demo predicts every job: add `graph:`")
    spec, graph = job_file.spec, read_graph(job_file.graph)
    spec.graph_sha256 = graph_sha256(graph)
    return DemoJob(spec=with_steps(spec, max(1, spec.steps_total // steps_divisor)), graph=graph)


def with_steps(spec: scheduling_pb2.JobSpec, steps: int) -> scheduling_pb2.JobSpec:
    """Returns the job with another number of steps, in its spec and on its command line (--steps N)."""
    changed = scheduling_pb2.JobSpec()
    changed.CopyFrom(spec)
    changed.steps_total = steps
    command = list(changed.command)
    command[command.index("--steps") + 1] = str(steps)
    del changed.command[:]
    changed.command.extend(command)
    return changed


def solo_spec(spec: scheduling_pb2.JobSpec, step_ms: float) -> scheduling_pb2.JobSpec:
    """Returns a short run of the same job that does not share its GPU.

    Args:
        spec: The job.
        step_ms: How long a step is expected to take; decides how many steps make a few seconds.
    """
    # As many as it takes, also more than the job has: one that ends before the second report was not measured.
    alone = with_steps(spec, max(SOLO_STEPS_LEAST, round(SOLO_RUN_MS / max(1.0, step_ms))))
    alone.name = f"{spec.name}-alone"
    alone.share = resources_pb2.SHARE_MODE_NEVER
    return alone


def stand_in_cores(usable: Sequence[int]) -> tuple[int, int]:
    """Returns the two cores that stand in for GPUs: the last ones.

    Raises:
        InputError: Fewer than two cores.
    """
    if len(usable) < 2:
        raise InputError("the demo needs two CPU cores", remedy="run it on a machine with two cores or more")
    first, second = sorted(usable)[-2:]
    return first, second
