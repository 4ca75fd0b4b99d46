"""An allocation of a real Slurm as a node of cotenant's own queue: jobs outlive it by their checkpoints."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.real_cluster import COTENANT
from tests.support.scheduler_process import SchedulerProcess, wait_until
from tests.support.slurm_daemons import SlurmDaemons, missing_daemons

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.alone,
    pytest.mark.skipif(bool(missing_daemons()), reason=f"not installed: {', '.join(missing_daemons())}"),
    pytest.mark.timeout(400),
]
ROOT = Path(__file__).resolve().parents[2]
EXECUTOR = ROOT / "deploy" / "slurm" / "executor.sh"
TRAINING = ROOT / "tests" / "support" / "journalled_training.py"
STEPS = 400


class Lab:
    """A user of Slurm with a scheduler of his own, and folders that all nodes see."""

    def __init__(self, daemons: SlurmDaemons, scheduler: SchedulerProcess) -> None:
        self.daemons = daemons
        self.scheduler = scheduler
        daemons.environment |= {
            "COTENANT_PYTHON": sys.executable,
            "COTENANT_EXECUTOR_FOLDER": str(daemons.folder / "executor"),
            "PYTHONPATH": str(ROOT),
            "XDG_CONFIG_HOME": str(daemons.folder / "config"),
            "COTENANT_SCHEDULER": scheduler.address,
        }

    def allocate(self, *flags: str) -> str:
        """Hand the executor in, as its first lines say; return the allocation's id once it runs."""
        own = ["--scheduler", self.scheduler.address, "--standin-cores", "0", "--no-calibrate"]
        allowed = ["--allow-directory", str(self.daemons.folder), "--allow-any-command"]
        output = ["--parsable", "--output", f"{self.daemons.folder}/%j.out", "--cpus-per-task=1"]
        job_id = self.daemons.run(["sbatch", *output, *flags, str(EXECUTOR), *own, *allowed]).strip()
        self.daemons.wait_for(job_id, "RUNNING")
        return job_id

    def cotenant(self, *arguments: str) -> str:
        command = [*COTENANT, *arguments]
        done = subprocess.run(
            command, cwd=self.daemons.folder, env=self.daemons.environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    def submit(self) -> str:
        words = [sys.executable, str(TRAINING), str(self.daemons.folder), str(STEPS), "50"]
        return self.cotenant("submit", "-o", "name", "--", *words).split()[-1].removeprefix("job/")

    def job(self, job_id: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.cotenant("describe", job_id, "-o", "json"))
        return found

    def node(self, job_id: str) -> str:
        """Return the node of its GPU, `standin-n1-0`."""
        gpu_id: str = self.job(job_id)["assignments"][0]["gpu_id"]
        return gpu_id.split("-")[1]

    def steps(self, job_id: str) -> list[int]:
        """Return the steps in the order in which they were made."""
        path = self.daemons.folder / f"{job_id}.journal"
        lines = path.read_text().splitlines() if path.exists() else []
        return [int(line.split()[2]) for line in lines if line.startswith("step")]


@pytest.fixture
def lab() -> Iterator[Lab]:
    folder = Path(tempfile.mkdtemp(prefix="slurm", dir="/tmp"))
    (folder / "scheduler").mkdir()
    try:
        with (
            SlurmDaemons(folder, tracker="cgroup") as daemons,
            SchedulerProcess(folder / "scheduler", arguments=("--predictor", "", "--policy", "fifo")) as scheduler,
        ):
            yield Lab(daemons, scheduler)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_a_job_outlives_the_allocation_that_it_began_in(lab: Lab) -> None:
    job_id = lab.submit()
    first = lab.allocate()
    wait_until(lambda: lab.steps(job_id), what="the job steps in the allocation")
    lab.daemons.run(["scancel", first])
    lab.daemons.wait_for(first, "CANCELLED", "")
    wait_until(lambda: lab.job(job_id)["phase"].endswith("PENDING"), what="the job waits again")
    # The agent said so before it left; nobody had to wait until its node is given up.
    assert "NodeLost" not in lab.scheduler.log_file.read_text()
    made = lab.steps(job_id)[-1]
    lab.allocate()
    wait_until(lambda: lab.job(job_id)["phase"].endswith("FINISHED"), what="the job ends in the next allocation")
    assert lab.steps(job_id) == [*range(1, made + 1), *range(made + 1, STEPS + 1)]


def test_two_nodes_of_an_allocation_run_jobs_and_what_one_runs_goes_on_when_the_other_fails(lab: Lab) -> None:
    jobs = [lab.submit() for _ in range(2)]
    allocation = lab.allocate("--nodes=2")
    for job_id in jobs:
        wait_until(lambda job_id=job_id: lab.steps(job_id), what=f"{job_id} steps")  # type: ignore[misc]
    job_on = {lab.node(job_id): job_id for job_id in jobs}
    assert job_on.keys() == {"n1", "n2"}
    # n2 is not the node of the batch script, with which an allocation ends.
    lab.daemons.run(["scontrol", "update", "nodename=n2", "state=down", "reason=test"])
    wait_until(lambda: len(lab.steps(job_on["n1"])) == STEPS, what="the job of the other node ends")
    assert lab.daemons.job(allocation)["job_state"] == "RUNNING"
    for job_id in jobs:
        wait_until(lambda job_id=job_id: lab.job(job_id)["phase"].endswith("FINISHED"), what=f"{job_id} ends")  # type: ignore[misc]
    assert lab.steps(job_on["n1"]) == [*range(1, STEPS + 1)]
    assert {*lab.steps(job_on["n2"])} == {*range(1, STEPS + 1)}
    assert lab.node(job_on["n2"]) == "n1"
