"""Every call that changes something leaves a line in the audit: who made it, from where, and what it was about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from google.protobuf.message import Message

from cotenant.access.callers import Caller, answer_for
from cotenant.access.roles import Role
from cotenant.v1 import resources_pb2, scheduling_pb2
from scheduler_service.adapters.agents.agent_sessions import AgentSessions
from scheduler_service.adapters.storage.cluster_identity import STATE_BEHIND, ClusterIdentity, Incarnation, Standstill
from scheduler_service.adapters.storage.event_log import StoredEvent
from scheduler_service.adapters.storage.recovery import JobNumbers
from scheduler_service.commands.audit import deeds
from scheduler_service.core import events
from scheduler_service.core.codec import EVENT_KINDS
from scheduler_service.core.events import CommandGiven
from scheduler_service.errors import StandstillError, StateUnwritableError
from scheduler_service.grpc_api.scheduling_servicer import Cluster, SchedulingServicer
from scheduler_service.grpc_api.status_codes import Context
from scheduler_service.live_loop import LiveLoop
from tests.goldens.filled_events import filled
from tests.support.agent_streams import starting_engine
from tests.support.cases import for_each
from tests.support.live_loop import FillingLog, run
from tests.support.scheduler_process import job_spec
from tests.support.scheduling import job, node

OLGA = Caller(role=Role.OPERATOR, name="olga", address="10.0.0.7")
OWN, PARENT = (letter * 32 for letter in "ab")
IDENTITY = ClusterIdentity(
    lineage=(Incarnation(incarnation_id=PARENT), Incarnation(incarnation_id=OWN, first_fence=501))
)
READING = ("Get", "List", "Watch", "Explain", "Read", "Decide")
CHANGING = [
    method.name
    for method in scheduling_pb2.DESCRIPTOR.services_by_name["SchedulingService"].methods
    if not method.name.startswith(READING)
]
# Call -> a request that changes something in `served`, what the audit calls it, and about what it is.
EXAMPLES: Mapping[str, tuple[Message, str, str]] = {
    "SubmitJob": (scheduling_pb2.SubmitJobRequest(spec=job_spec()), "submit", "job-5"),
    "RetryJob": (scheduling_pb2.RetryJobRequest(job_id="job-2"), "submit", "job-5"),
    "SubmitArray": (
        scheduling_pb2.SubmitArrayRequest(spec=job_spec(), tasks=[scheduling_pb2.ArrayTask(index=0)]),
        "submit",
        "job-5",
    ),
    "CancelArray": (scheduling_pb2.CancelArrayRequest(array_id="array-4"), "cancel", "job-4"),
    "HoldJob": (scheduling_pb2.HoldJobRequest(job_id="job-1"), "hold", "job-1"),
    "ReleaseJob": (scheduling_pb2.ReleaseJobRequest(job_id="job-3"), "release", "job-3"),
    "AlterJob": (scheduling_pb2.AlterJobRequest(job_id="job-1", priority=1), "alter", "job-1"),
    "CordonNode": (scheduling_pb2.CordonNodeRequest(node_id="n0"), "cordon node", "n0"),
    "UncordonNode": (scheduling_pb2.UncordonNodeRequest(node_id="n1"), "uncordon node", "n1"),
    "CancelJob": (scheduling_pb2.CancelJobRequest(job_id="running"), "cancel", "running"),
    "PauseJob": (scheduling_pb2.PauseJobRequest(job_id="running"), "pause", "running"),
    "ResumeJob": (scheduling_pb2.ResumeJobRequest(job_id="paused"), "resume", "paused"),
    "SetPolicy": (scheduling_pb2.SetPolicyRequest(policy="horus"), "use policy", "horus"),
    "ForgetNode": (scheduling_pb2.ForgetNodeRequest(node_id="n0"), "forget node", "n0"),
    "ConfirmRestore": (scheduling_pb2.ConfirmRestoreRequest(request_id="r"), "confirm restore", OWN),
}


CONTEXT = cast("Context", SimpleNamespace(time_remaining=lambda: None))
# A cordoned node, a job that waits, a cancelled one, a held one, and an array of one job.
PREPARED: Sequence[tuple[str, Message]] = (
    ("CordonNode", scheduling_pb2.CordonNodeRequest(node_id="n1")),
    *(("SubmitJob", scheduling_pb2.SubmitJobRequest(spec=job_spec())) for _ in range(3)),
    ("CancelJob", scheduling_pb2.CancelJobRequest(job_id="job-2")),
    ("HoldJob", scheduling_pb2.HoldJobRequest(job_id="job-3")),
    ("SubmitArray", scheduling_pb2.SubmitArrayRequest(spec=job_spec(), tasks=[scheduling_pb2.ArrayTask(index=0)])),
)


class NothingToSay:
    """An admission without a predictor."""

    async def review(self, *_: object, **__: object) -> Sequence[resources_pb2.Warning]:
        return ()


async def served(loop: LiveLoop, standstill: Standstill) -> SchedulingServicer:
    """A restored state: a running and a paused job on one node, and what sam has done (`PREPARED`)."""
    await loop.tell(events.NodeJoined(at_ms=0, node=node("n0", 2, enforcements=("cgroup_freezer",))))
    for job_id in ("running", "paused"):
        await loop.tell(events.JobSubmitted(at_ms=0, request=job(job_id)))
    await loop.tell(events.PauseRequested(at_ms=0, job_id="paused", paused_ms_max=60_000))
    absent = cast("Any", None)
    servicer = SchedulingServicer(
        Cluster(
            loop=loop,
            numbers=JobNumbers(),
            sessions=AgentSessions(),
            predictor=absent,
            watch_hub=absent,
            admission=cast("Any", NothingToSay()),
            identity=IDENTITY,
            standstill=standstill,
        )
    )
    await loop.tell(events.NodeJoined(at_ms=0, node=node("n1", 1)))
    answer_for(Caller(role=Role.OPERATOR, name="sam"))
    for method, request in PREPARED:
        await getattr(servicer, method)(request, CONTEXT)
    return servicer


def lines_after(*calls: tuple[str, Message], standstill: Standstill | None = None) -> list[Mapping[str, str | int]]:
    """What the audit says once olga has made these calls."""
    log = FillingLog()
    waiting = Standstill()
    waiting.await_confirmation()

    async def work(loop: LiveLoop) -> None:
        servicer = await served(loop, standstill or waiting)
        answer_for(OLGA)
        for method, request in calls:
            await getattr(servicer, method)(request, CONTEXT)

    run(work, log, starting_engine())
    return [line for line in deeds(log.read_from(1)) if line["name"] == "olga"]


def test_every_call_that_changes_something_has_an_example_here() -> None:
    assert sorted(EXAMPLES) == sorted(CHANGING)


@for_each("method", CHANGING)
def test_every_call_that_changes_something_leaves_a_line_in_the_audit(method: str) -> None:
    request, did, about = EXAMPLES[method]
    [line] = lines_after((method, request))
    found = (line["role"], line["name"], line["address"], line["did"], line["about"])
    assert found == ("operator", "olga", "10.0.0.7", did, about)


def test_draining_a_node_is_told_from_cordoning_it() -> None:
    [line] = lines_after(("CordonNode", scheduling_pb2.CordonNodeRequest(node_id="n0", drain=True)))
    assert (line["did"], line["about"]) == ("drain node", "n0")


def test_what_changes_nothing_leaves_no_line() -> None:
    again = ("ConfirmRestore", scheduling_pb2.ConfirmRestoreRequest())
    assert [line["did"] for line in lines_after(again, again)] == ["confirm restore"]
    assert lines_after(again, standstill=Standstill()) == []


def test_a_scheduler_that_is_behind_is_not_confirmed() -> None:
    behind = Standstill()
    behind.fall_behind("a node saw event 7")
    with pytest.raises(StandstillError, match="event 7"):
        lines_after(("ConfirmRestore", scheduling_pb2.ConfirmRestoreRequest()), standstill=behind)
    assert behind.code == STATE_BEHIND


def test_a_confirmation_that_cannot_be_noted_is_none() -> None:
    log, waiting = FillingLog(), Standstill()
    waiting.await_confirmation()
    stored: list[str] = []

    async def work(loop: LiveLoop) -> None:
        servicer = await served(loop, waiting)
        object.__setattr__(servicer._cluster, "store_confirmation", lambda: stored.append("confirmed"))
        request = scheduling_pb2.ConfirmRestoreRequest(request_id="r")
        log.is_full = True
        with pytest.raises(StateUnwritableError):
            await servicer.ConfirmRestore(request, cast("Context", None))
        assert (stored, waiting.code) == ([], "RESTORE_UNCONFIRMED")
        log.is_full = False
        await servicer.ConfirmRestore(request, cast("Context", None))
        assert (stored, waiting.code) == (["confirmed"], "")

    run(work, log, starting_engine())


@pytest.mark.parametrize("kind", [events.RestoreConfirmed, events.UnknownAttemptsFound])
def test_what_is_there_for_the_audit_alone_changes_nothing_in_the_engine(kind: type[CommandGiven]) -> None:
    engine = starting_engine()
    before = engine.snapshot()["state"]
    assert engine.handle(replace(filled(kind), at_ms=0, is_followed=False)) == []
    assert engine.snapshot()["state"] == before


@for_each("kind", [kind for kind in EVENT_KINDS.values() if issubclass(kind, CommandGiven)])
def test_the_audit_has_words_for_every_command(kind: type[CommandGiven]) -> None:
    [line] = deeds(iter([StoredEvent(sequence=1, event=filled(kind))]))
    assert line["did"]
    assert line["about"]
