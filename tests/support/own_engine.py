"""Our own scheduler with two of our own agents as an `Engine`: real programs, reached by the public contract alone.

Where a job runs is the policy's choice, so an order for one GPU goes into the parameters of a plug-in policy
(`AsPlanned`), which the scheduler keeps in its event log. What does not carry over from other engines:

- A part of a GPU is what a job states of its memory, and not the order's, which is kept with it and enforces nothing.
- The grace of a stop is the job's own (`checkpoint_ms`), whatever the order says.
- A note has no place in a job; it stands with the order.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
from google.protobuf import struct_pb2

from cotenant.engines.errors import EngineRefusedError
from cotenant.engines.job_tag import read_tag
from cotenant.engines.port import order_each
from cotenant.engines.records import EngineGpu, EngineJob, EngineNode, EnginePhase, EngineState, Placement
from cotenant.v1 import scheduling_pb2 as messages
from tests.support.agent import REPOSITORY, TRAINING, AgentProcess, end_jobs, prepare_baseline, write_script
from tests.support.grpc_errors import details_of
from tests.support.live_cluster import SHORT_TIMES
from tests.support.scheduler_process import SchedulerClient, SchedulerProcess, wait_until

NODES: Final = ("n1", "n2")
DEVICE: Final = "cpu-standin"
MEMORY_BYTES: Final = 24 * 2**30
SLOTS: Final = 100
_TAG: Final = "JOB_TAG"
_ENDED: Final = frozenset({messages.JOB_PHASE_FINISHED, messages.JOB_PHASE_FAILED, messages.JOB_PHASE_CANCELLED})
_UNSETTLED: Final = frozenset({messages.JOB_PHASE_STARTING, messages.JOB_PHASE_STOPPING})


class OwnEngine:
    """An `Engine`; its jobs are called by their names, of which one lives at a time."""

    def __init__(self, client: SchedulerClient) -> None:
        self._stub = client.stub

    def read(self) -> EngineState:
        """Return the cluster as soon as no job is about to start or to stop."""
        self._settle()
        plan, nodes = self._plan(), self._nodes()
        names = {gpu.gpu_id: _gpu_name(gpu) for node in nodes for gpu in node.gpus}
        return EngineState(
            nodes=tuple(_node(node) for node in sorted(nodes, key=lambda node: node.node_id)),
            jobs=tuple(_job(job, plan.get(job.job_id, {}), names) for job in self._jobs()),
        )

    def annotate(self, job_id: str, note: str) -> None:
        """Keep a note with the order of a job."""
        job, plan = self._job(job_id), self._plan()
        self._order({**plan, job.job_id: {**plan.get(job.job_id, {}), "note": note}})

    def place(self, placement: Placement) -> None:
        """Order the GPU of a job that waits; a held one does not start yet."""
        job, plan = self._job(placement.job_id), self._plan()
        if job.phase != messages.JOB_PHASE_PENDING or plan.get(job.job_id, {}).get("gpu_id"):
            raise EngineRefusedError(f"job {placement.job_id} has a GPU already, or is to end")
        order = {"gpu_id": self._gpu_id(placement.gpu_id), "slots": placement.slots, "note": placement.note}
        self._order({**plan, job.job_id: order})

    def release(self, job_id: str) -> None:
        """Let a held job start."""
        with _refusals():
            self._stub.ReleaseJob(messages.ReleaseJobRequest(job_id=self._job(job_id).job_id), timeout=60)

    def release_all(self, job_ids: Sequence[str]) -> Mapping[str, str]:
        """Let held jobs start, one after the other."""
        return order_each(self.release, job_ids)

    def hold(self, job_id: str) -> None:
        """Hold a job that waits."""
        with _refusals():
            self._stub.HoldJob(messages.HoldJobRequest(job_id=self._job(job_id).job_id), timeout=60)

    def stop(self, job_id: str, *, grace_s: int) -> None:
        """End a job for good, after its own grace."""
        with _refusals():
            self._stub.CancelJob(messages.CancelJobRequest(job_id=self._job(job_id).job_id), timeout=60)

    def requeue(self, job_id: str, *, grace_s: int) -> None:
        """Take a job's GPU away: it writes a checkpoint and waits again."""
        self._settle()
        job, plan = self._job(job_id), self._plan()
        if job.phase != messages.JOB_PHASE_RUNNING:
            raise EngineRefusedError(f"job {job_id} does not run")
        self._order({kept: order for kept, order in plan.items() if kept != job.job_id})

    def _settle(self) -> None:
        wait_until(lambda: not any(job.phase in _UNSETTLED for job in self._jobs()), what="every order is carried out")

    def _jobs(self) -> list[messages.Job]:
        listed = self._stub.ListJobs(messages.ListJobsRequest(page_size=1000), timeout=60).jobs
        return sorted((job for job in listed if job.phase not in _ENDED), key=lambda job: job.spec.name)

    def _job(self, job_id: str) -> messages.Job:
        found = next((job for job in self._jobs() if job.spec.name == job_id), None)
        if found is None:
            raise EngineRefusedError(f"there is no job {job_id}")
        return found

    def _gpu_id(self, gpu_id: str) -> str:
        return next(gpu.gpu_id for node in self._nodes() for gpu in node.gpus if _gpu_name(gpu) == gpu_id)

    def _nodes(self) -> Sequence[messages.Node]:
        return self._stub.ListNodes(messages.ListNodesRequest(page_size=100), timeout=60).nodes

    def _plan(self) -> dict[str, dict[str, Any]]:
        request = messages.ListPoliciesRequest(page_size=100)
        active = next(one for one in self._stub.ListPolicies(request, timeout=60).policies if one.active)
        plan: dict[str, dict[str, Any]] = json.loads(json.loads(active.parameters[0].value_in_use))
        return plan

    def _order(self, plan: Mapping[str, Mapping[str, Any]]) -> None:
        parameters = struct_pb2.Struct()
        parameters["plan"] = json.dumps(plan)
        self._stub.SetPolicy(messages.SetPolicyRequest(policy="as_planned", parameters=parameters), timeout=60)


@dataclass
class OwnAgents:
    """A scheduler and two agents with two stand-in devices each, which share the cores of this machine.

    Attributes:
        folder: Of everything, the jobs' script among it.
    """

    folder: Path
    client: SchedulerClient

    def submit(self, job_id: str, comment: str) -> None:
        """Hand a training in, as a user does who leaves it to others when it starts."""
        tag = read_tag(comment)
        self.client.submit(
            name=job_id,
            command=[sys.executable, str(self.folder / "script.py"), "1000000", "0.02"],
            steps_total=1_000_000,
            working_directory=str(self.folder),
            environment={_TAG: comment, "PYTHONPATH": str(REPOSITORY)},
            memory_bytes=tag.memory_bytes if tag is not None else 0,
            held=True,
        )

    def log(self, job_id: str) -> str:
        """Return what the newest attempt of the living job of that name has printed."""
        request = messages.ReadJobLogRequest(job_id=self._living(job_id).job_id)
        return b"".join(answer.chunk for answer in self.client.stub.ReadJobLog(request, timeout=60)).decode()

    def steps_done(self, job_id: str) -> int:
        """Return how far it is, as its agent was told."""
        return self._living(job_id).steps_done

    def _living(self, job_id: str) -> messages.Job:
        return next(job for job in self.client.list_all() if job.spec.name == job_id and job.phase not in _ENDED)

    def end_jobs(self) -> None:
        """Cancel every job, and wait until no device is held."""
        for job in self.client.list_all():
            if job.phase not in _ENDED:
                self.client.cancel(job.job_id)
        wait_until(lambda: all(job.phase in _ENDED for job in self.client.list_all()), what="every job has ended")


@contextmanager
def own_agents(folder: Path) -> Iterator[OwnAgents]:
    """Start everything, and leave nothing behind."""
    write_script(folder, TRAINING)
    (site := folder / "site" / "as_planned-1.dist-info").mkdir(parents=True)
    (site / "METADATA").write_text("Metadata-Version: 2.1\nName: as-planned\nVersion: 1\n")
    (site / "entry_points.txt").write_text("[cotenant.policies]\nas_planned = tests.support.as_planned:AsPlanned\n")
    environment = {"PYTHONPATH": os.pathsep.join((str(site.parent), str(REPOSITORY)))}
    arguments = ("--policy", "as_planned", *SHORT_TIMES)
    agents: list[AgentProcess] = []
    for name in NODES:
        prepare_baseline(folder / name)
    with (
        SchedulerProcess(folder, arguments=arguments, environment=environment) as scheduler,
        SchedulerClient(scheduler.address) as client,
    ):
        try:
            agents += [_agent(folder, name, scheduler) for name in NODES]
            nodes = messages.ListNodesRequest(page_size=100)
            wait_until(lambda: len(client.stub.ListNodes(nodes).nodes) == len(NODES), what="both nodes have joined")
            yield OwnAgents(folder, client)
        finally:
            for agent in agents:
                agent.kill()
            for name in NODES:
                end_jobs(folder / name)


def _agent(folder: Path, name: str, scheduler: SchedulerProcess) -> AgentProcess:
    cores = ",".join(str(core) for core in sorted(os.sched_getaffinity(0))[:2])
    devices = ("--standin-cores", cores, "--standin-memory-bytes", str(MEMORY_BYTES))
    return AgentProcess(folder / name, scheduler, "--node-id", name, "--allow-any-command", devices=devices)


def _node(node: messages.Node) -> EngineNode:
    gpus = tuple(
        EngineGpu(gpu_id=_gpu_name(gpu), device=gpu.device, memory_bytes=gpu.memory_bytes, slots=SLOTS)
        for gpu in node.gpus
    )
    return EngineNode(
        node_id=node.node_id,
        cpu_cores=node.cpu_cores,
        host_memory_bytes=node.host_memory_bytes,
        is_usable=node.connected and node.schedulable,
        gpus=gpus,
    )


def _gpu_name(gpu: messages.Gpu) -> str:
    return f"{gpu.node_id}/g{gpu.index}"


def _job(job: messages.Job, order: Mapping[str, Any], names: Mapping[str, str]) -> EngineJob:
    is_running = job.phase == messages.JOB_PHASE_RUNNING
    gpu_id = job.assignments[0].gpu_id if is_running else str(order.get("gpu_id", ""))
    is_held = job.reason.code == "HELD"
    waiting = (EnginePhase.INTERRUPTED if is_held else EnginePhase.PLACED) if gpu_id else EnginePhase.HELD
    return EngineJob(
        job_id=job.spec.name,
        phase=EnginePhase.RUNNING if is_running else waiting,
        tag=read_tag(job.spec.environment[_TAG]),
        held_slots={names[gpu_id]: int(order.get("slots", 0))} if gpu_id else {},
        note=str(order.get("note", "")),
        tenant=job.spec.tenant,
        submitted_at_ms=job.submitted_at_ms,
    )


@contextmanager
def _refusals() -> Iterator[None]:
    """Translate what the scheduler refuses."""
    try:
        yield
    except grpc.RpcError as error:
        raise EngineRefusedError(details_of(error)) from error
