"""A hundred pods beside a real control plane whose programs and ours are killed meanwhile: none lost, none doubled."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from cotenant.engines.errors import EngineError
from cotenant.engines.placement_notes import planned_gpu, planned_slots
from tests.support.control_plane import ControlPlane, missing_parts, wait_until
from tests.support.daemons import free_ports
from tests.support.fake_kubelets import RUNNING_S_ANNOTATION, FakeKubelets, PodRun
from tests.support.fake_kubernetes import node_row, plugin_node, pod_row
from tests.support.scheduler_process import SchedulerProcess

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.alone,
    pytest.mark.skipif(bool(missing_parts()), reason=f"not here: {', '.join(missing_parts())}"),
    pytest.mark.timeout(900),
]

LIGHT = "memory=6GiB utilization=0.3 slowdown=0.1 max_slowdown=0.5"
HEAVY = "memory=6GiB utilization=0.9 slowdown=0.9 max_slowdown=0.1"
JOBS = int(os.environ.get("COTENANT_KUBERNETES_JOBS", "10"))
PODS_PER_JOB = 10
RUNNING_S = "2"
GPU = "*=NVIDIA A10:24GiB"
COTENANT = str(Path(sys.executable).with_name("cotenant"))


class OurPrograms:
    """The controller and the extender, as their manifests start them."""

    def __init__(self, plane: ControlPlane, scheduler: str) -> None:
        self._folder = plane.folder
        kubeconfig = str(plane.write_kubeconfig(plane.folder / "ours.kubeconfig"))
        reached = ["--kubeconfig", kubeconfig, "--gpu", GPU, "--scheduler", scheduler]
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        self._commands = {
            "controller": [COTENANT, "engine", "kubernetes", "--place", "--interval", "0.5", *reached],
            "extender": [COTENANT, "engine", "kubernetes-extender", "--address", self.address, *reached],
        }
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        with (self._folder / f"{name}.log").open("ab") as output:
            self._running[name] = subprocess.Popen(self._commands[name], stdout=output, stderr=output)

    def kill(self, name: str) -> None:
        process = self._running.pop(name, None)
        if process is not None:
            process.kill()
            process.wait(90)


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with tempfile.TemporaryDirectory(prefix="kubernetes") as folder, ControlPlane(Path(folder)) as running:
        yield running


@pytest.fixture(scope="module")
def kubelets(plane: ControlPlane) -> Iterator[FakeKubelets]:
    nodes = [node_row(f"n{number}") for number in range(4)] + [plugin_node(f"p{number}") for number in range(4)]
    with FakeKubelets(plane.api(), nodes) as running:
        yield running


@pytest.fixture(scope="module")
def ours(plane: ControlPlane) -> Iterator[OurPrograms]:
    # Where the controller's lease is.
    plane.api().order("POST", "/api/v1/namespaces", {"metadata": {"name": "cotenant"}})
    with SchedulerProcess(plane.folder) as scheduler:
        made = OurPrograms(plane, scheduler.address)
        for name in ("controller", "extender"):
            made.start(name)
        plane.stop("kube-scheduler")
        plane.use_extender(made.address)
        plane.start("kube-scheduler")
        yield made
        for name in ("controller", "extender"):
            made.kill(name)


def job_row(name: str, wishes: str, *, is_ours: bool) -> dict[str, Any]:
    how: dict[str, Any] = {} if is_ours else {"scheduler": "default-scheduler", "gpus": 1}
    template = pod_row(name, wishes, **how)
    annotations = {**template["metadata"]["annotations"], RUNNING_S_ANNOTATION: RUNNING_S}
    spec = {**template["spec"], "restartPolicy": "Never"}
    made: dict[str, Any] = {"completions": PODS_PER_JOB, "parallelism": PODS_PER_JOB}
    made |= {"template": {"metadata": {"annotations": annotations}, "spec": spec}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": made}


def kills(plane: ControlPlane, ours: OurPrograms, generator: random.Random) -> Iterator[Callable[[], None]]:
    """Yield two kills of every program, in an order of the seed; each lets some time pass before the next start."""

    def kill(name: str) -> None:
        is_ours = name in ("controller", "extender")
        if is_ours:
            ours.kill(name)
        else:
            plane.stop(name, signal.SIGKILL)
        time.sleep(generator.uniform(0, 1.5))
        (ours if is_ours else plane).start(name)
        if name == "kube-apiserver":
            plane.wait_ready()

    names = ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "controller", "extender"] * 2
    generator.shuffle(names)
    return (lambda name=name: kill(name) for name in names)  # type: ignore[misc]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_kills_lose_no_pod_and_double_none(
    seed: int, plane: ControlPlane, kubelets: FakeKubelets, ours: OurPrograms
) -> None:
    namespace, api, generator = f"seed{seed}", plane.api(), random.Random(seed)
    api.order("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    names = [f"train-{number}" for number in range(JOBS)]
    jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    for number, name in enumerate(names):
        # Of ten jobs six are ours, half of them heavy; kube-scheduler places the others.
        row = job_row(name, (LIGHT, HEAVY)[number % 2], is_ours=number % 10 < 6)
        api.order("POST", jobs, row)
    for kill in kills(plane, ours, generator):
        time.sleep(generator.uniform(0.5, 2))
        kill()

    def succeeded() -> list[int]:
        plane.revive()
        try:
            return [row["status"].get("succeeded", 0) for row in api.list_rows(jobs, {})]
        except EngineError:
            return []

    wait_until(lambda: succeeded() == [PODS_PER_JOB] * JOBS, f"all have ended: {succeeded()}", seconds=400)
    runs = [run for run in kubelets.runs.values() if run.name.startswith(f"{namespace}/")]
    assert len(runs) == JOBS * PODS_PER_JOB
    assert overlaps(runs) == []


def overlaps(runs: list[PodRun]) -> list[str]:
    """Return what ran together on a GPU and should not have, and what ran elsewhere than planned."""
    ours = [run for run in runs if run.node.startswith("n")]
    found = [f"{run.name} ran on {run.node}" for run in ours if gpu_of(run) != planned_gpu(note_of(run))]
    for run in ours:
        co_located = [other for other in ours if gpu_of(other) == gpu_of(run) and is_beside(run, other)]
        parts = sum(planned_slots(note_of(other)) or 100 for other in co_located)
        found += [f"{run.name}: {parts} parts of {gpu_of(run)}"] * (parts > 100 or len(co_located) > 2)
    for run, other in combinations(ours, 2):
        is_heavy = HEAVY in (wishes_of(run), wishes_of(other))
        if gpu_of(run) == gpu_of(other) and is_heavy and is_overlapping(run, other):
            found.append(f"{run.name} ran beside {other.name}")
    return found


def is_beside(run: PodRun, other: PodRun) -> bool:
    """Say whether the other one ran when this one began."""
    return other.began_s <= run.began_s < other.ended_s


def is_overlapping(run: PodRun, other: PodRun) -> bool:
    return run.began_s < other.ended_s and other.began_s < run.ended_s


def gpu_of(run: PodRun) -> str:
    return f"{run.node}/{run.annotations.get('cotenant.io/gpu', '')}"


def note_of(run: PodRun) -> str:
    return run.annotations.get("cotenant.io/note", "")


def wishes_of(run: PodRun) -> str:
    return run.annotations["cotenant.io/job"]
