"""A small cluster as the command line's tests see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from cotenant.v1 import resources_pb2, scheduling_pb2
from tests.support.fake_services import GIB, FakeScheduler, sample_estimate


@dataclass(frozen=True)
class Outcome:
    """What one run of the command line left."""

    code: int
    out: str
    err: str


CommandLine: TypeAlias = Callable[..., Outcome]

NOW_MS = 1_790_000_000_000


def running_job() -> scheduling_pb2.Job:
    """Builds a job that shares a device with another one."""
    job = scheduling_pb2.Job(
        job_id="job-000001",
        spec=scheduling_pb2.JobSpec(
            name="cnn-waiting",
            command=["python", "train.py", "--steps", "450"],
            steps_total=450,
            max_slowdown_ratio=0.2,
            settings=resources_pb2.JobSettings(global_batch_size=64),
        ),
        phase=scheduling_pb2.JOB_PHASE_RUNNING,
        reason=scheduling_pb2.Reason(code="PLACED_SHARED", message="shares node-a/standin-0 with lstm-waiting"),
        submitted_at_ms=NOW_MS - 75_000,
        first_started_at_ms=NOW_MS - 70_000,
        attempt=1,
        assignments=[scheduling_pb2.Assignment(gpu_id="node-a/standin-0")],
        steps_done=120,
        step_ms=41.2,
        solo_step_ms=38.0,
        loss=1.25,
        measured_slowdown_ratio=0.08,
        predicted_slowdown_ratio=0.11,
        node_id="node-a",
        memory_reserved_bytes=int(0.75 * GIB),
        memory_peak_bytes=int(0.52 * GIB),
        utilization_ratio=0.4,
    )
    job.co_located_jobs.add(
        job_id="job-000002",
        predicted_slowdown_ratio=0.11,
        predicted_slowdown_upper_ratio=0.19,
        level=resources_pb2.ESTIMATE_LEVEL_GRAPH,
        measured_slowdown_ratio=0.08,
    )
    job.predictions.add(
        device="cpu-standin",
        utilization_ratio=sample_estimate(0.38),
        memory_bytes=sample_estimate(0.5 * GIB, upper_99=0.75 * GIB),
        step_ms=sample_estimate(37.0),
    )
    return job


def pending_job() -> scheduling_pb2.Job:
    """Builds a job that waits, with a reason in numbers."""
    return scheduling_pb2.Job(
        job_id="job-000003",
        spec=scheduling_pb2.JobSpec(name="resnet", command=["python", "train.py"], steps_total=600),
        phase=scheduling_pb2.JOB_PHASE_PENDING,
        reason=scheduling_pb2.Reason(
            code="SLOWDOWN_TOO_LARGE",
            message="with cnn-waiting it would be 58 % slower, 20 % are accepted; waits for a free GPU, "
            "or accept more with --max-slowdown 0.6",
            numbers={"slowdown_ratio": 0.58},
        ),
        submitted_at_ms=NOW_MS - 5_000,
    )


def ended_job(phase: scheduling_pb2.JobPhase.ValueType) -> scheduling_pb2.Job:
    """Builds a job that has ended in this phase."""
    job = running_job()
    job.job_id, job.spec.name, job.phase = "job-000009", "old", phase
    job.finished_at_ms, job.exit_class = NOW_MS - 1_000, "done"
    del job.co_located_jobs[:]
    return job


def sample_node() -> scheduling_pb2.Node:
    """Builds a node with two stand-in devices, one of them shared."""
    node = scheduling_pb2.Node(
        node_id="node-a",
        connected=True,
        schedulable=True,
        cpu_cores=2,
        host_memory_bytes=16 * GIB,
        last_heartbeat_at_ms=NOW_MS - 1_500,
        agent_version="0.1.0",
        enforcements=["watchdog", "shim_lease", "prepared_starts"],
    )
    for index in range(2):
        node.gpus.add(
            gpu_id=f"node-a/standin-{index}",
            device="cpu-standin",
            memory_bytes=2 * GIB,
            healthy=True,
            node_id="node-a",
            index=index,
            job_ids=["job-000001", "job-000002"] if index == 0 else [],
            memory_reserved_bytes=int(1.5 * GIB) if index == 0 else 0,
            memory_used_bytes=int(1.1 * GIB) if index == 0 else 0,
            utilization_ratio=0.83 if index == 0 else 0.0,
        )
    return node


def explanation() -> scheduling_pb2.ExplainJobResponse:
    """Builds the explanation of the waiting job."""
    job = pending_job()
    answer = scheduling_pb2.ExplainJobResponse(job=job, reason=job.reason, policy="horus", decided_at_ms=NOW_MS - 4_000)
    answer.candidates.add(
        gpu_id="node-a/standin-0",
        feasible=False,
        reason=scheduling_pb2.Reason(code="SLOWDOWN_TOO_LARGE", message="cnn-waiting would be 31 % slower"),
    ).co_located_jobs.add(
        job_id="job-000001",
        predicted_slowdown_ratio=0.58,
        predicted_slowdown_upper_ratio=0.71,
        level=resources_pb2.ESTIMATE_LEVEL_OBSERVED,
        times_measured=3,
        caused_slowdown_ratio=0.31,
    )
    answer.candidates.add(
        gpu_id="node-a/standin-1", feasible=True, cost=0.4125, reason=scheduling_pb2.Reason(code="EMPTY")
    )
    answer.history.add(at_ms=job.submitted_at_ms, kind="submitted", message="")
    answer.history.add(at_ms=job.submitted_at_ms + 1_000, kind="predicted", message="model 3")
    answer.history.add(at_ms=job.submitted_at_ms + 2_000, kind="launch", message="attempt 1")
    return answer


def sample_policies() -> list[scheduling_pb2.Policy]:
    """Builds two policies, the second in use."""
    fifo = scheduling_pb2.Policy(name="fifo", summary="First in, first out, one job a GPU.")
    horus = scheduling_pb2.Policy(
        name="horus", summary="Shares GPUs by predicted utilization.", source="Horus, TPDS 2022", active=True
    )
    horus.parameters.add(
        name="share_limit", type="integer", default_value="2", value_in_use="3", description="Jobs on one GPU."
    )
    return [fifo, horus]


def sample_scheduler() -> FakeScheduler:
    """Builds a scheduler that knows all of the above."""
    jobs = [running_job(), pending_job()]
    other = running_job()
    other.job_id, other.spec.name = "job-000002", "lstm-waiting"
    other.co_located_jobs[0].job_id = "job-000001"
    jobs.insert(1, other)
    return FakeScheduler(
        jobs={job.job_id: job for job in reversed(jobs)},
        nodes=[sample_node()],
        policies=sample_policies(),
        explanations={"job-000003": explanation()},
        logs={"job-000001": b"".join(b"step %d/450 loss 1.0\n" % step for step in range(20, 140, 20))},
    )
