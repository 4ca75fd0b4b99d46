"""The real scheduler as a process, with short times."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import grpc
from google.protobuf import json_format

from cotenant.v1 import scheduling_pb2, scheduling_pb2_grpc
from tests.support.daemons import free_ports
from tests.support.loaded_programs import Process, start_program
from tests.support.log_schema import read_lines

T = TypeVar("T")
READY_TIMEOUT_S = 240.0
LOOK_EVERY_S, LOOK_EVERY_S_MAX = 0.02, 0.06
"""What is not so soon is looked for less often: a look costs the service that is asked a millisecond."""


def wait_until(look: Callable[[], T | None], what: str, timeout_s: float = 240.0) -> T:
    """Ask until the answer is true; a generous limit on liveness, not a measurement."""
    deadline, pause_s = time.monotonic() + timeout_s, LOOK_EVERY_S
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(pause_s)
        pause_s = min(1.1 * pause_s, LOOK_EVERY_S_MAX)
    raise AssertionError(f"not within {timeout_s:g} s: {what}")


@dataclass
class SchedulerProcess:
    """Starts, kills and restarts one scheduler on one state; keeps its port."""

    folder: Path
    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    before_start: Callable[[], None] | None = None
    state_dir: Path = Path()
    process: Process | None = None
    ready: dict[str, Any] = field(default_factory=dict)

    def __enter__(self) -> SchedulerProcess:
        if self.state_dir == Path():
            self.state_dir = self.folder / "state"
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def address(self) -> str:
        return str(self.ready["address"])

    @property
    def log_file(self) -> Path:
        return self.folder / "scheduler.log"

    def start(self) -> None:
        ready_file = self.folder / "ready.json"
        ready_file.unlink(missing_ok=True)
        address = self.ready.get("address") or f"127.0.0.1:{free_ports(1)[0]}"
        arguments = ["serve", "--address", address, "--metrics-address", "127.0.0.1:0"]
        arguments += ["--state-dir", str(self.state_dir), "--ready-file", str(ready_file), *self.arguments]
        environment = {**os.environ, **self.environment}
        with self.log_file.open("ab") as log:
            if self.before_start is None:
                self.process = start_program(
                    "scheduler_service", arguments, folder=Path.cwd(), environment=environment, output=log, errors=log
                )
            else:
                command = [sys.executable, "-m", "scheduler_service", *arguments]
                self.process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    preexec_fn=self.before_start,
                )
        self.ready = json.loads(
            wait_until(lambda: self._ready_text(ready_file), what="ready", timeout_s=READY_TIMEOUT_S)
        )

    def _ready_text(self, ready_file: Path) -> str | None:
        if self.process is not None and self.process.poll() is not None:
            raise AssertionError(f"the scheduler ended at its start:\n{self.log_file.read_text()}")
        return ready_file.read_text() if ready_file.exists() else None

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def restart(self) -> None:
        self.kill()
        self.start()

    def terminate(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=90)

    def log_lines(self) -> list[dict[str, Any]]:
        return read_lines(self.log_file.read_text(), "scheduler")


def tls_scheduler(folder: Path, certificates: Path) -> SchedulerProcess:
    """Return one that predicts nothing and asks its callers for certificates, by those of a folder."""
    arguments = ["--predictor", "", "--policy", "fifo", "--client-ca-file", str(certificates / "ca.pem")]
    arguments += ["--tls-certificate-file", str(certificates / "server.pem")]
    arguments += ["--tls-key-file", str(certificates / "server.key")]
    return SchedulerProcess(folder, arguments=arguments)


class SchedulerClient:
    """A plain client of the scheduler's contract."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address, options=[("grpc.max_reconnect_backoff_ms", 200)])
        self.stub = scheduling_pb2_grpc.SchedulingServiceStub(self._channel)

    def __enter__(self) -> SchedulerClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()

    def submit(self, *, request_id: str = "", validate_only: bool = False, **fields: Any) -> scheduling_pb2.Job:
        return self.answer_to(request_id=request_id, validate_only=validate_only, **fields).job

    def answer_to(
        self, *, request_id: str = "", validate_only: bool = False, force: bool = False, **fields: Any
    ) -> scheduling_pb2.SubmitJobResponse:
        request = scheduling_pb2.SubmitJobRequest(
            request_id=request_id, validate_only=validate_only, spec=job_spec(**fields), force=force
        )
        return self.stub.SubmitJob(request, timeout=90, wait_for_ready=True)

    def get(self, job_id: str) -> scheduling_pb2.Job:
        request = scheduling_pb2.GetJobRequest(job_id=job_id)
        return self.stub.GetJob(request, timeout=90, wait_for_ready=True).job

    def list_all(self, **fields: Any) -> list[scheduling_pb2.Job]:
        request = scheduling_pb2.ListJobsRequest(page_size=1000, **fields)
        return list(self.stub.ListJobs(request, timeout=90, wait_for_ready=True).jobs)

    def cancel(self, job_id: str, *, request_id: str = "") -> scheduling_pb2.Job:
        request = scheduling_pb2.CancelJobRequest(job_id=job_id, request_id=request_id)
        return self.stub.CancelJob(request, timeout=90, wait_for_ready=True).job

    def wait_for_phase(self, job_id: str, phase: str, *, timeout_s: float = 240.0) -> scheduling_pb2.Job:
        wanted = scheduling_pb2.JobPhase.Value(f"JOB_PHASE_{phase}")

        def look() -> scheduling_pb2.Job | None:
            job = self.get(job_id)
            return job if job.phase == wanted else None

        return wait_until(look, what=f"{job_id} {phase}", timeout_s=timeout_s)

    def wait_until_measured_alone(self, job_id: str, *, steps: int = 0, timeout_s: float = 240.0) -> None:
        """Wait until windows of a job alone count, and for more steps; the first report teaches nothing, however late.

        Args:
            job_id: Has its GPUs to itself.
            steps: How many of its steps are to be measured at least.
            timeout_s: Of each of the two waits.
        """
        wait_until(lambda: self.get(job_id).solo_step_ms > 0, f"{job_id} is measured alone", timeout_s)
        goal = self.get(job_id).steps_done + steps
        wait_until(lambda: self.get(job_id).steps_done >= goal, f"{job_id} steps", timeout_s)


def job_spec(**fields: Any) -> scheduling_pb2.JobSpec:
    """A valid spec; tests state only what matters, in proto3 JSON names."""
    values = {
        "name": "train",
        "command": ["python", "train.py"],
        "steps_total": 10,
        "settings": {"global_batch_size": 8},
    }
    return json_format.ParseDict(values | fields, scheduling_pb2.JobSpec())
