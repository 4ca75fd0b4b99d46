"""A process can use one slice of a GPU (MIG): nobody decides that a job gets two, and who asks for them reads why."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cotenant.v1 import scheduling_pb2
from scheduler_service.core import events
from scheduler_service.core.cluster_view.inventory import is_slice, kind_of, may_replace
from scheduler_service.core.queue.queue_terms import QueueTerms
from scheduler_service.core.records import Phase
from scheduler_service.grpc_api.jobs.job_reasons import reported_reason
from scheduler_service.grpc_api.jobs.translate_jobs import reason_message
from scheduler_service.grpc_api.snapshots.decide import decide
from scheduler_service.policy_registry import POLICIES
from tests.support.cases import for_each
from tests.support.engine_play import Play
from tests.support.scheduling import gpu, node

GIB = 2**30
SLICE = "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
SAYS_WHY = "a process can use one, so no job gets two"


def snapshot_of_slices(*gpus: int) -> scheduling_pb2.Snapshot:
    made = scheduling_pb2.Snapshot(now_ms=1_000)
    for number in range(2):
        machine = made.nodes.add(node_id=f"n{number}", schedulable=True)
        for place in range(2):
            machine.gpus.add(gpu_id=f"{number}:{place}", device=SLICE, memory_bytes=5 * GIB, healthy=True)
    for number, count in enumerate(gpus):
        job = made.pending.add(submitted_at_ms=number).job
        job.job_id, job.gpus, job.global_batch_size, job.steps_total = f"j{number}", count, 8, 100
    return made


def waits_for(play: Play, job_id: str) -> str:
    state = play.engine.state
    decided = state.decisions.reason_of(job_id)
    assert decided is not None
    return reason_message(reported_reason(state, state.jobs[job_id], decided)).message


@for_each("policy", sorted(POLICIES))
def test_decide_gives_every_slice_a_job_of_its_own_and_a_gang_the_reason(policy: str) -> None:
    request = scheduling_pb2.DecideRequest(policy=policy, snapshot=snapshot_of_slices(1, 1, 2))
    answer = asyncio.run(decide(request, predictor=None, seconds_left=60))
    first, second, gang = sorted(answer.decisions, key=lambda one: one.job_id)
    assert [len(one.start.assignments) for one in (first, second)] == [1, 1]
    assert gang.WhichOneof("action") == "hold"
    assert (gang.reason.code, SAYS_WHY in gang.reason.message) == ("GPUS_NOT_IN_CLUSTER", True)


@pytest.mark.parametrize("policy", ["fifo", "horus", "sjf_bsbf", "elastic"])
def test_a_gang_that_came_before_its_node_was_cut_is_told_why_it_waits(policy: str) -> None:
    play = Play(policy, nodes=0)
    play.tell(events.NodeJoined, node=node("n0", [gpu("MIG-0"), gpu("MIG-1", index=1)]))
    play.submit("gang", gpus=2, global_batch_size=8)
    assert SAYS_WHY in waits_for(play, "gang")


def test_where_slices_were_cut_anew_a_job_on_one_that_is_gone_ends_and_who_named_the_type_waits_and_reads_so() -> None:
    play = Play("fifo", nodes=0)
    play.tell(events.NodeJoined, node=node("n0", [gpu("MIG-1", device=SLICE)]))
    for name in ("holds", "named"):
        play.submit(name, terms=QueueTerms(devices=("1g.5gb",)))
    play.report(events.JobStarted, "holds")
    play.tell(events.GpuHealthChanged, gpu_id="MIG-1", healthy=False)
    assert waits_for(play, "named").startswith("Not one usable GPU is of a type that the job names")
    held = play.engine.state.jobs["holds"]
    lives = events.RunningAttempt(job_id="holds", attempt=held.attempt, fence=held.fence, gpu_ids=held.gpu_ids)
    others = [gpu("MIG-3", device="NVIDIA A100-SXM4-40GB MIG 3g.20gb")]
    play.tell(events.NodeJoined, node=node("n0", others), attempts=(lives,))
    assert play.phase("holds") is Phase.RUNNING
    assert waits_for(play, "named").startswith("Not one usable GPU is of a type that the job names")
    play.submit("any")
    assert play.engine.state.jobs["any"].gpu_ids == ("MIG-3",)
    play.report(events.JobFinished, "holds", steps_done=10)
    assert play.phase("holds") is Phase.FINISHED
    assert sorted(play.engine.state.occupancy.usable_gpus) == ["MIG-3"]


@pytest.mark.parametrize(
    ("gpu_id", "device", "is_cut"),
    [
        ("MIG-5c6e-1", "an old driver's name", True),
        ("0:1", SLICE, True),
        ("0:1", "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", True),
        ("0:1", "a30 1c.2g.12gb", True),
        ("GPU-1", "NVIDIA A100-SXM4-40GB", False),
        ("GPU-1", "Tesla V100-SXM2-32GB", False),
        ("GPU-1", "NVIDIA GeForce MX450 2GB", False),
    ],
)
def test_a_slice_is_known_by_its_id_or_by_the_profile_in_its_name(gpu_id: str, device: str, *, is_cut: bool) -> None:
    facts: dict[str, Any] = {"device": device, "memory_bytes": GIB}
    one, other = gpu(gpu_id, **facts), gpu(f"{gpu_id}x", **facts)
    assert is_slice(one) is is_cut
    assert (kind_of(one) == kind_of(other)) is not is_cut
    assert may_replace(one, other)
