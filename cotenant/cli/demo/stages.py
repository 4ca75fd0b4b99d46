"""The parts of the demo that talk to the services: predict, submit, crash, measure alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from cotenant import system_clock
from cotenant.cli.demo.job_tracker import ENDED, JobTracker, progress_ratio, sharing_pairs
from cotenant.cli.demo.scenario import DEVICE, DEVICE_MEMORY_BYTES, DemoJob
from cotenant.client import PredictorClient, SchedulerClient
from cotenant.client_errors import CotenantError, ProgramError
from cotenant.local_cluster import LocalCluster
from cotenant.v1 import prediction_pb2, resources_pb2, scheduling_pb2

LOOK_EVERY_MS = 250
CRASH_AT_PROGRESS_RATIO = 0.3
CRASH_AT_LATEST_RATIO = 0.6
OUTAGE_MS = 3_000
NODE_WAIT_MS = 60_000
JOBS_TIMEOUT_MS = 600_000
ARRIVAL_EVERY_MS = 2_500


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """What was predicted before anything ran.

    Attributes:
        jobs: By job name.
        pairs: (victim name, other name) -> slowdown, lower, upper.
    """

    jobs: Mapping[str, prediction_pb2.PredictJobResponse]
    pairs: Mapping[tuple[str, str], tuple[float, float, float]]


def predict_all(
    client: PredictorClient, jobs: Sequence[DemoJob], calibration: resources_pb2.DeviceCalibration | None = None
) -> Predictions:
    """Uploads the graphs and asks for every job and every pair on the devices as they were calibrated."""
    for job in jobs:
        client.upload_graph(job.graph)
    answers = {job.name: client.predict_job(_job_request(job, calibration)) for job in jobs}
    references = [
        prediction_pb2.JobRef(job_id=job.name, graph_sha256=job.spec.graph_sha256, settings=job.spec.settings)
        for job in jobs
    ]
    matrix = client.predict_pairs(
        prediction_pb2.PredictPairsRequest(device=DEVICE, jobs=references, calibration=calibration)
    )
    size = len(matrix.job_ids)
    pairs = {}
    for cell in range(size * size):
        victim, other = matrix.job_ids[cell // size], matrix.job_ids[cell % size]
        pairs[victim, other] = (matrix.slowdown_ratio[cell], matrix.lower[cell], matrix.upper[cell])
    return Predictions(jobs=answers, pairs=pairs)


def _job_request(job: DemoJob, calibration: resources_pb2.DeviceCalibration | None) -> prediction_pb2.PredictJobRequest:
    return prediction_pb2.PredictJobRequest(
        graph_sha256=job.spec.graph_sha256,
        settings=job.spec.settings,
        device=DEVICE,
        device_memory_bytes=DEVICE_MEMORY_BYTES,
        find_largest_batch_size=True,
        calibration=calibration,
    )


def wait_for_devices(client: SchedulerClient, devices: int) -> None:
    """Waits until the agent has joined with all its devices.

    Raises:
        ProgramError: It did not.
    """
    deadline_ms = system_clock.steady_ms() + NODE_WAIT_MS
    while system_clock.steady_ms() < deadline_ms:
        if sum(len(node.gpus) for node in client.list_nodes() if node.connected) >= devices:
            return
        system_clock.wait_ms(LOOK_EVERY_MS)
    raise ProgramError("the agent did not join the scheduler", remedy="see its log in the state directory")


@dataclass(slots=True)
class Arrivals:
    """Hands jobs in one after the other, as they come in real life.

    Attributes:
        waiting: Not yet submitted, first one first.
        job_ids: Ids of the submitted ones.
        next_at_ms: When the next one is due, steady clock.
    """

    scheduler: SchedulerClient
    waiting: list[scheduling_pb2.JobSpec]
    job_ids: list[str] = field(default_factory=list)
    next_at_ms: int = 0

    def submit_due(self) -> None:
        """Submits the next job when its time has come."""
        if self.waiting and system_clock.steady_ms() >= self.next_at_ms:
            self.job_ids.append(self.scheduler.submit_job(self.waiting.pop(0)).job_id)
            self.next_at_ms = system_clock.steady_ms() + ARRIVAL_EVERY_MS


def follow_until_ended(tracker: JobTracker, *, look: Callable[[], Sequence[str]]) -> None:
    """Waits until jobs have ended.

    Args:
        tracker: Records the progress of the jobs.
        look: Called a few times a second; returns the ids to wait for, empty = not known yet.

    Raises:
        ProgramError: It took too long, or the watch broke.
    """
    deadline_ms = system_clock.steady_ms() + JOBS_TIMEOUT_MS
    while True:
        job_ids = look()
        jobs = tracker.snapshot()
        if job_ids and all(job_id in jobs and jobs[job_id].phase in ENDED for job_id in job_ids):
            return
        if tracker.failure:
            raise ProgramError(f"lost the scheduler: {tracker.failure}")
        if system_clock.steady_ms() > deadline_ms:
            raise ProgramError(f"the jobs did not end within {JOBS_TIMEOUT_MS // 1000} s")
        system_clock.wait_ms(LOOK_EVERY_MS)


def crash_is_due(jobs: Mapping[str, scheduling_pb2.Job]) -> bool:
    """Tells whether to kill the scheduler now: in the middle, preferably while two jobs share a device."""
    progress = progress_ratio(jobs)
    shared = bool(sharing_pairs(jobs))
    return progress >= CRASH_AT_LATEST_RATIO or (progress >= CRASH_AT_PROGRESS_RATIO and shared)


@dataclass(slots=True)
class SchedulerCrash:
    """Kills the scheduler once and starts it again on the same state and port.

    Attributes:
        before: All jobs at the last look before the kill; empty = it has not happened yet.
        outage_ms: From the kill until the new scheduler served.
    """

    cluster: LocalCluster
    announce: Callable[[str], None]
    before: Mapping[str, scheduling_pb2.Job]
    outage_ms: int = 0
    thread: threading.Thread | None = None
    failure: CotenantError | None = None

    def begin(self, jobs: Mapping[str, scheduling_pb2.Job]) -> None:
        """Kills now and restarts in the background, so that the table goes on."""
        self.before = dict(jobs)
        self.thread = threading.Thread(target=self._run, name="scheduler-crash", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        started_ms = system_clock.steady_ms()
        scheduler = self.cluster.programs["scheduler"]
        pid = scheduler.process.pid if scheduler.process else 0
        scheduler.kill()
        self.announce(f"kill -9 {pid}: the scheduler is gone; the jobs run on")
        system_clock.wait_ms(OUTAGE_MS)
        try:
            self.cluster.restart_scheduler()
        except CotenantError as error:
            self.failure = error
            return
        self.outage_ms = system_clock.steady_ms() - started_ms
        address = self.cluster.scheduler_address
        self.announce(f"the scheduler is back at {address} after {self.outage_ms / 1000:.1f} s, same state")

    def wait(self) -> None:
        """Waits for the restart.

        Raises:
            CotenantError: The scheduler did not come back.
        """
        if self.thread is not None:
            self.thread.join(timeout=120)
        if self.failure is not None:
            raise self.failure
