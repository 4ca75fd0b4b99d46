"""What cotenant promises of jobs on a GPU, on a real one: pytest -m gpu tests/gpu -s prints what was measured.

COTENANT_GPU_DRY_RUN=1 takes the same path on the stand-in device, so that it is known to work before a GPU is at hand.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from cotenant.v1 import node_agent_pb2 as messages
from tests.support.agent import STANDIN, find_processes, running_agent, wait_until
from tests.support.fake_scheduler import FakeScheduler, key, launch
from tests.support.real_cluster import RealCluster, real_cluster

DRY_RUN = os.environ.get("COTENANT_GPU_DRY_RUN") == "1"
DEVICE = "cpu" if DRY_RUN else "cuda"
PATIENCE_S = 240.0
ENDED = {"JOB_PHASE_FINISHED", "JOB_PHASE_FAILED", "JOB_PHASE_CANCELLED"}
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not DRY_RUN and not torch.cuda.is_available(), reason="torch sees no GPU here"),
]

# Takes more than the device has: PyTorch's own error on a GPU, the watchdog's verdict on the stand-in device.
GREEDY = """
import sys, time
import torch
if sys.argv[1] == "cuda":
    held = [torch.empty(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(4096)]
held = b"x" * (3 << 30)
time.sleep(600)
"""
# Says when it is up, holds memory on the device and counts.
COUNTING = """
import os, sys, time
import torch
from cotenant import job
held = torch.ones(64 << 20, device=sys.argv[1])
print("is up", flush=True)
for step in range(job.resume_step(), int(sys.argv[2])):
    held.add_(1)
    time.sleep(0.02)
    job.report(step + 1, loss=1.0 / (step + 1))
    if job.should_checkpoint() or job.should_stop():
        path = job.checkpoint_directory() / f"step-{step + 1}.txt"
        path.write_text(str(step + 1))
        job.checkpointed(path, step + 1)
    if job.should_stop():
        job.leave()
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scripts")
    (folder / "greedy.py").write_text(GREEDY)
    (folder / "counting.py").write_text(COUNTING)
    return folder


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, scripts: Path) -> Iterator[RealCluster]:
    flags = ("--allow-directory", str(scripts), "--policy", "horus")
    with real_cluster(tmp_path_factory.mktemp("up"), *flags, with_standin=DRY_RUN) as running:
        yield running


def submit(cluster: RealCluster, name: str, *words: str, steps: int, **flags: str) -> None:
    """Submit a job that shares with any other."""
    options = [word for flag, value in flags.items() for word in (f"--{flag.replace('_', '-')}", value)]
    fixed = ["--name", name, "--steps", str(steps), "--share", "any", "--max-slowdown", "5"]
    done = cluster.cotenant("submit", *fixed, *options, "--", sys.executable, *words)
    assert done.returncode == 0, done.stderr


def tell(figures: dict[str, Any]) -> None:
    """Write what was measured, for the user that runs this with -s."""
    sys.stdout.write(json.dumps(figures) + "\n")


def find(cluster: RealCluster, name: str) -> dict[str, Any]:
    """Return the newest job of a name, as the scheduler reports it."""
    jobs = json.loads(cluster.cotenant("ps", "--all", "-o", "json").stdout)["jobs"]
    return next(job for job in jobs if job["spec"]["name"] == name)


def wait_for(cluster: RealCluster, name: str, phases: set[str]) -> dict[str, Any]:
    """Return the job as soon as it is in one of the phases."""
    wait_until(lambda: find(cluster, name)["phase"] in phases, f"{name} in {phases}", timeout_s=PATIENCE_S)
    return find(cluster, name)


def has_done(cluster: RealCluster, name: str, steps: int) -> bool:
    """Whether the newest job of a name has come so far."""
    return int(find(cluster, name)["steps_done"]) >= steps


def process_of(cluster: RealCluster, name: str) -> int:
    """Return the id of a counting job's process as this machine counts; in its own namespace it has another one."""
    wait_until(lambda: "is up" in cluster.cotenant("logs", name).stdout, f"{name} is up", timeout_s=PATIENCE_S)
    marker = f"COTENANT_JOB_ID={find(cluster, name)['job_id']}".encode()
    (pid,) = (pid for pid in find_processes("counting.py") if marker in Path(f"/proc/{pid}/environ").read_bytes())
    return pid


def test_two_trainings_share_the_device_and_what_happened_stands_next_to_what_was_predicted(
    cluster: RealCluster,
) -> None:
    """The first one runs alone for a while: without that the slowdown by the second one is unknown."""
    for name, graph, batch in (("shared-mlp", "mlp", "128"), ("shared-cnn", "cnn", "64")):
        training = ["-m", "examples.training.train", "--model", graph, "--batch-size", batch, "--device", DEVICE]
        training += ["--steps", "1200", "--data-wait-ms", "20"]
        described = {"graph": f"examples/jobs/graphs/{graph}.onnx", "batch_size": batch, "input_wait_ms": "20"}
        submit(cluster, name, *training, steps=1200, **described)
        wait_until(partial(has_done, cluster, name, 300), f"{name} runs", timeout_s=PATIENCE_S)
    ended = [wait_for(cluster, name, ENDED) for name in ("shared-mlp", "shared-cnn")]
    for job in ended:
        figures = {name: job.get(name) for name in ("predicted_slowdown_ratio", "measured_slowdown_ratio")}
        figures |= {name: job.get(name) for name in ("memory_reserved_bytes", "memory_peak_bytes", "utilization_ratio")}
        tell({"job": job["spec"]["name"], **figures})
    assert [job["phase"] for job in ended] == ["JOB_PHASE_FINISHED"] * 2
    assert any(job.get("measured_slowdown_ratio") is not None for job in ended), "they never shared the GPU"
    assert all(int(job["memory_peak_bytes"]) > 0 for job in ended)


def test_a_job_that_wants_more_than_the_device_has_is_tried_once_more_and_then_failed(
    cluster: RealCluster, scripts: Path
) -> None:
    submit(cluster, "greedy", str(scripts / "greedy.py"), DEVICE, steps=10)
    job = wait_for(cluster, "greedy", ENDED)
    assert (job["phase"], job["exit_class"]) == ("JOB_PHASE_FAILED", "gpu_oom")
    assert (job["reason"]["code"], job["attempt"]) == ("OUT_OF_MEMORY", 2)


def test_the_death_of_one_of_two_jobs_leaves_the_other_alone_and_frees_its_memory(
    cluster: RealCluster, scripts: Path
) -> None:
    for name in ("victim", "partner"):
        submit(cluster, name, str(scripts / "counting.py"), DEVICE, "1500", steps=1500, memory="600MiB")
        wait_for(cluster, name, {"JOB_PHASE_RUNNING"})
    pids = {name: process_of(cluster, name) for name in ("victim", "partner")}
    os.kill(pids["victim"], signal.SIGKILL)
    killed_at = time.monotonic()
    wait_until(lambda: find(cluster, "victim")["restarts"] == 1, "the victim is started again", timeout_s=PATIENCE_S)
    tell({"from_kill_to_restart_s": round(time.monotonic() - killed_at, 2)})
    assert not Path(f"/proc/{pids['victim']}").exists()
    ended = {name: wait_for(cluster, name, ENDED) for name in pids}
    assert {name: job["phase"] for name, job in ended.items()} == dict.fromkeys(pids, "JOB_PHASE_FINISHED")
    assert {name: job["attempt"] for name, job in ended.items()} == {"victim": 2, "partner": 1}
    if not DRY_RUN:
        wait_until(lambda: free_ratio() > 0.9, "the memory of both is free again", timeout_s=60)


def free_ratio() -> float:
    """Return which share of the GPU's memory is free."""
    free_bytes, total_bytes = torch.cuda.mem_get_info()
    return free_bytes / total_bytes


def test_a_job_that_makes_room_goes_on_from_its_checkpoint(tmp_path: Path, scripts: Path) -> None:
    """Prints the gap, from the order to stop to the first step after it, and the peak of both attempts."""
    flags = ("--allow-directory", str(scripts))
    devices = STANDIN if DRY_RUN else ()
    with FakeScheduler() as scheduler, running_agent(tmp_path / "state", scheduler, *flags, devices=devices):
        gpu_id = scheduler.wait_for_hello().gpus[0].gpu_id
        command = [sys.executable, str(scripts / "counting.py"), DEVICE, "2000"]
        scheduler.send(launch_job=launch("moved", command, gpu_id))
        scheduler.wait_for_observation("moved", lambda seen: seen.steps_done >= 20)
        stopped_at = time.monotonic()
        scheduler.send(stop_job=messages.StopJob(key=key("moved"), checkpoint=True, cause="preempted", grace_ms=30_000))
        first = scheduler.wait_for_exit("moved", timeout_s=PATIENCE_S)
        scheduler.send(launch_job=launch("moved", command, gpu_id, attempt=2, fence=2, granted_fences=(1,)))
        scheduler.wait_for_observation("moved", lambda seen: seen.steps_done > first.checkpoint_step)
        gap_s = time.monotonic() - stopped_at
        second = scheduler.wait_for_exit("moved", attempt=2, timeout_s=PATIENCE_S)
    tell({"gap_s": round(gap_s, 2), "peaks_bytes": [first.memory_peak_bytes, second.memory_peak_bytes]})
    assert first.exit_class == "checkpointed"
    assert 20 <= first.checkpoint_step < 2_000
    assert (second.exit_class, second.steps_done) == ("done", 2_000)
