"""A live cluster whose predictor's answers are made up, for policies on running jobs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from cotenant.v1 import scheduling_pb2
from tests.support import journalled_training
from tests.support.agent import CORES, REPOSITORY
from tests.support.fake_predictor import FakePredictor
from tests.support.live_cluster import SHORT_TIMES, LiveCluster, live_cluster
from tests.support.scheduler_process import wait_until

PATIENCE_S = 240.0
ENDLESS = 1_000_000
GRAPHS = {"one": "1" * 64, "two": "2" * 64}


class PolicyCluster(LiveCluster):
    """One node of stand-in devices, 2 GiB each."""

    def use(self, policy: str, *settings: str) -> None:
        """Switch as an operator does."""
        self.cotenant("policies", "use", policy, *(word for setting in settings for word in ("--set", setting)))

    def submit(self, name: str, *, command: list[str], steps: int, **fields: object) -> str:
        """Submit a job that shares whatever it is predicted to lose; return its id."""
        values = {"graph_sha256": GRAPHS["one"], "share": "SHARE_MODE_ANY", "max_slowdown_ratio": 5.0, **fields}
        whole: dict[str, Any] = {"working_directory": str(REPOSITORY), "settings": {"global_batch_size": 8}, **values}
        return self.client.submit(name=name, command=[sys.executable, *command], steps_total=steps, **whole).job_id

    def witness(self, name: str, *, steps: int, step_ms: int = 40, **fields: object) -> str:
        """Submit a job that waits for data and writes down what it does."""
        command = [journalled_training.__file__, str(self.folder), str(steps), str(step_ms)]
        return self.submit(name, command=command, steps=steps, **fields)

    def wait_for_reason(self, job_id: str, codes: set[str]) -> None:
        """Wait until a job waits or runs for one of these reasons."""
        wait_until(lambda: self.client.get(job_id).reason.code in codes, what=f"{codes}", timeout_s=self.patience_s)

    def wait_for_more_steps(self, job_id: str) -> None:
        """Wait until a job has done some steps from now on."""
        before = self.client.get(job_id).steps_done
        wait_until(lambda: self.client.get(job_id).steps_done > before + 5, what="more steps", timeout_s=PATIENCE_S)

    def log(self, job_id: str) -> str:
        """Return what a job has printed."""
        request = scheduling_pb2.ReadJobLogRequest(job_id=job_id)
        return b"".join(answer.chunk for answer in self.client.stub.ReadJobLog(request, timeout=60)).decode()


@contextmanager
def policy_cluster(folder: Path, *, policy: str, predictor: FakePredictor, gpus: int = 1) -> Iterator[PolicyCluster]:
    """Start everything, and leave nothing behind."""
    arguments = ("--predictor", predictor.address, "--policy", policy, *SHORT_TIMES)
    with live_cluster(partial(PolicyCluster, patience_s=PATIENCE_S), folder, ["agent"], arguments) as cluster:
        more_cores = [word for core in CORES[1:gpus] for word in ("--standin-cores", str(core))]
        cluster.start_agent("agent", "--allow-directory", str(REPOSITORY), *more_cores)
        yield cluster
