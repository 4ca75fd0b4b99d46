"""What users may change of the queue, what is said otherwise, and what is stored of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from cotenant.access.callers import Caller
from cotenant.access.roles import Role
from cotenant.v1 import resources_pb2, scheduling_pb2
from scheduler_service.adapters.job_specs import spec_message
from scheduler_service.adapters.storage.recovery import JobNumbers
from scheduler_service.core import events, queue_events
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.queue.tenants import TenantRule, TenantRules
from scheduler_service.core.records import Phase
from scheduler_service.errors import (
    InvalidRequestError,
    NotPermittedError,
    UnknownJobError,
    UnknownNodeError,
    WrongJobPhaseError,
)
from scheduler_service.grpc_api.jobs.translate_jobs import job_message
from scheduler_service.grpc_api.queue.queue_requests import QueueRequests
from scheduler_service.grpc_api.validation import require, spec_violations, submission_violations
from scheduler_service.live_loop import Mutation
from scheduler_service.policy_registry import make_policy
from tests.support.cases import for_each
from tests.support.scheduling import node


class Scene:
    """One GPU, and whoever calls."""

    def __init__(self, **caller: Any) -> None:
        self.engine = SchedulerEngine(make_policy=make_policy, policy="fifo")
        self.queue = QueueRequests(engine=self.engine, numbers=JobNumbers(), caller=Caller(**caller))
        self.engine.handle(events.NodeJoined(at_ms=1, node=node("n0", 1)))

    def do(self, mutation: Mutation) -> str:
        proposal = mutation.propose()
        for event in (*proposal.earlier, proposal.event):
            if event is not None:
                self.engine.handle(event)
        return proposal.answer

    def submit(self, **spec: Any) -> str:
        request = scheduling_pb2.SubmitJobRequest(spec=a_spec(**spec))
        require(submission_violations(request))
        return self.do(self.queue.submission(request))

    def array(self, count: int = 3, **spec: Any) -> tuple[str, Sequence[str]]:
        tasks = [scheduling_pb2.ArrayTask(index=index, values={"lr": f"0.{index}"}) for index in range(count)]
        request = scheduling_pb2.SubmitArrayRequest(spec=a_spec(**spec), tasks=tasks)
        array_id, first, last = self.do(self.queue.array(request)).split(" ")
        return array_id, [f"job-{number}" for number in range(int(first), int(last) + 1)]

    def repeat(self, job_id: str, request_id: str = "") -> str:
        return self.do(self.repetition(job_id, request_id))

    def repetition(self, job_id: str, request_id: str = "") -> Mutation:
        request = scheduling_pb2.RetryJobRequest(request_id=request_id, job_id=job_id)
        again = scheduling_pb2.SubmitJobRequest(request_id=request_id, spec=self.queue.repeated_spec(job_id))
        return self.queue.repetition(request, again)

    def phase(self, job_id: str) -> Phase:
        return self.engine.state.jobs[job_id].phase

    def finish(self, job_id: str) -> None:
        job = self.engine.state.jobs[job_id]
        self.engine.handle(
            events.JobFinished(at_ms=9, job_id=job_id, attempt=job.attempt, fence=job.fence, steps_done=1)
        )

    def fail(self, job_id: str) -> None:
        job = self.engine.state.jobs[job_id]
        failed = {"exit_class": "error", "exit_code": 1}
        self.engine.handle(
            events.JobFailed(at_ms=9, job_id=job_id, attempt=job.attempt, fence=job.fence, **failed)  # type: ignore[arg-type]
        )


def a_spec(**spec: Any) -> scheduling_pb2.JobSpec:
    return scheduling_pb2.JobSpec(**{"name": "train", "command": ["python", "t.py"], **spec})


def test_a_failed_job_is_handed_in_again_and_names_the_first() -> None:
    scene = Scene()
    job_id = scene.submit(environment={"SEED": "1"}, priority=7, held=False)
    with pytest.raises(WrongJobPhaseError, match="starting; only a failed or cancelled"):
        scene.queue.repeated_spec(job_id)
    scene.fail(job_id)
    again = scene.queue.repeated_spec(job_id)
    assert (again.retry_of, again.environment["SEED"], again.priority) == (job_id, "1", 7)
    new_id = scene.do(scene.queue.submission(scheduling_pb2.SubmitJobRequest(spec=again)))
    message = job_message(scene.engine.state, scene.engine.state.jobs[new_id])
    assert (new_id, message.spec.retry_of) == ("job-2", "job-1")


def test_a_child_that_is_handed_in_again_waits_for_parents_that_live_or_were_handed_in_again() -> None:
    scene = Scene()
    failed, finished, running = scene.submit(), scene.submit(), scene.submit()
    child = scene.submit(after_job_ids=[failed, finished, running], after_any=True)
    scene.fail(failed)
    scene.finish(finished)
    scene.engine.handle(events.JobCancelled(at_ms=9, job_id=child))

    def waits_for() -> tuple[list[str], bool]:
        spec = scene.queue.repeated_spec(child)
        return list(spec.after_job_ids), spec.after_any

    assert waits_for() == ([running], True)
    first = scene.repeat(failed)
    assert waits_for() == ([first, running], True)
    for job_id in (running, first):
        scene.fail(job_id)
    assert waits_for() == ([], False)
    second = scene.repeat(first)
    assert waits_for() == ([second], True)


def test_a_job_is_not_handed_in_again_while_a_repetition_of_it_lives_under_whatever_id() -> None:
    scene = Scene()
    first = scene.submit()
    scene.fail(first)
    second = scene.repeat(first)
    with pytest.raises(WrongJobPhaseError, match=f"{first} was handed in again: {second} is starting; cancel"):
        scene.repeat(first)
    scene.fail(second)
    third = scene.repeat(first)
    for job_id in (first, second):
        with pytest.raises(WrongJobPhaseError, match=f"{third} is starting"):
            scene.repeat(job_id)
    scene.fail(third)
    assert scene.phase(scene.repeat(second)) is Phase.STARTING


def test_a_repetition_is_known_after_the_state_was_stored_and_forgotten_with_its_job() -> None:
    scene = Scene()
    first = scene.submit()
    scene.fail(first)
    second = scene.repeat(first)
    scene.fail(second)
    third = scene.repeat(second)
    scene.engine = SchedulerEngine.restore(scene.engine.snapshot(), make_policy=make_policy)
    scene.queue = replace(scene.queue, engine=scene.engine)
    with pytest.raises(WrongJobPhaseError, match=f"{third} is starting"):
        scene.repeat(first)
    scene.engine.state.ended_jobs_max = 1
    scene.fail(third)
    fourth = scene.repeat(third)
    assert scene.engine.state.register.repetitions_of(first) == (second,)
    scene.fail(fourth)
    assert sorted(scene.engine.state.jobs) == [third, fourth]
    assert scene.engine.state.register.repetitions_of(first) == ()


def test_the_same_request_for_a_repetition_is_known_again_although_its_parent_has_ended_meanwhile() -> None:
    scene = Scene()
    parent = scene.submit()
    child = scene.submit(after_job_ids=[parent])
    scene.engine.handle(events.JobCancelled(at_ms=9, job_id=child))
    before = scene.repetition(child, request_id="11111111-1111-4111-8111-111111111111")
    scene.finish(parent)
    after = scene.repetition(child, request_id="11111111-1111-4111-8111-111111111111")
    assert before.body_sha256 == after.body_sha256 != ""


def test_a_child_is_not_handed_in_again_before_the_parent_that_failed() -> None:
    scene = Scene()
    parent = scene.submit()
    child = scene.submit(after_job_ids=[parent])
    scene.fail(parent)
    with pytest.raises(WrongJobPhaseError, match=f"comes after {parent}, which has not finished: retry {parent} first"):
        scene.repeat(child)
    second = scene.repeat(parent)
    assert list(scene.queue.repeated_spec(child).after_job_ids) == [second]
    scene.fail(second)
    with pytest.raises(WrongJobPhaseError, match=f"comes after {parent}"):
        scene.repeat(child)
    # A request that was answered before the parent failed is answered as before.
    assert scene.queue.repeated_spec(child, is_answered=True).retry_of == child
    third = scene.repeat(parent)
    scene.finish(third)
    assert scene.phase(scene.repeat(child)) is Phase.STARTING


def test_what_was_altered_is_shown_and_the_rest_stays() -> None:
    scene = Scene()
    scene.submit()
    job_id = scene.submit(max_slowdown_ratio=0.4, time_limit_ms=5_000)
    request = scheduling_pb2.AlterJobRequest(job_id=job_id, priority=100, share=resources_pb2.SHARE_MODE_NEVER)
    scene.do(scene.queue.alter(request))
    shown = job_message(scene.engine.state, scene.engine.state.jobs[job_id]).spec
    assert (shown.priority, shown.share) == (100, resources_pb2.SHARE_MODE_NEVER)
    assert (shown.max_slowdown_ratio, shown.time_limit_ms) == (0.4, 5_000)
    with pytest.raises(WrongJobPhaseError, match="starting; only a pending job can be altered"):
        scene.do(scene.queue.alter(scheduling_pb2.AlterJobRequest(job_id="job-1", priority=1)))


def test_only_pending_jobs_are_held_and_twice_is_once() -> None:
    scene = Scene()
    running, waiting = scene.submit(), scene.submit()
    with pytest.raises(WrongJobPhaseError, match="only a pending job can be held"):
        scene.do(scene.queue.hold(scheduling_pb2.HoldJobRequest(job_id=running)))
    scene.do(scene.queue.hold(scheduling_pb2.HoldJobRequest(job_id=waiting)))
    assert scene.queue.hold(scheduling_pb2.HoldJobRequest(job_id=waiting)).propose().event is None
    scene.do(scene.queue.release(scheduling_pb2.ReleaseJobRequest(job_id=waiting)))
    assert scene.queue.release(scheduling_pb2.ReleaseJobRequest(job_id=waiting)).propose().event is None


def test_nobody_is_told_to_pause_or_cancel_what_has_ended() -> None:
    scene = Scene()
    ended = scene.submit()
    scene.fail(ended)
    told = r"is failed; .*; `cotenant retry` hands it in again$"
    with pytest.raises(WrongJobPhaseError, match=told):
        scene.do(scene.queue.hold(scheduling_pb2.HoldJobRequest(job_id=ended)))
    with pytest.raises(WrongJobPhaseError, match=told):
        scene.do(scene.queue.alter(scheduling_pb2.AlterJobRequest(job_id=ended, priority=1)))
    with pytest.raises(WrongJobPhaseError, match=told):
        scene.do(scene.queue.release(scheduling_pb2.ReleaseJobRequest(job_id=ended)))


def test_every_task_has_its_index_and_its_values_in_place_of_their_names() -> None:
    scene = Scene()
    command = ["python", "t.py", "--lr", "{lr}", "--seed={index}", "{sub_batch}", "{other}"]
    array_id, job_ids = scene.array(command=command, environment={"RUN": "r{index}"}, array_running_max=1)
    last = scene.engine.state.jobs[job_ids[-1]]
    shown = spec_message(last.submission.launch, None)
    assert list(shown.command) == ["python", "t.py", "--lr", "0.2", "--seed=2", "{sub_batch}", "{other}"]
    assert (shown.environment["RUN"], shown.name, shown.array_id) == ("r2", "train-2", array_id)
    assert [scene.phase(job_id) for job_id in job_ids] == [Phase.STARTING, Phase.PENDING, Phase.PENDING]


def test_a_value_that_looks_like_a_name_is_left_alone() -> None:
    scene = Scene()
    task = scheduling_pb2.ArrayTask(index=5, values={"a": "{b}", "b": "x"})
    scene.do(scene.queue.array(scheduling_pb2.SubmitArrayRequest(spec=a_spec(command=["p", "{a}{b}"]), tasks=[task])))
    assert list(spec_message(scene.engine.state.jobs["job-1"].submission.launch, None).command) == ["p", "{b}x"]


def test_an_array_is_cancelled_as_a_whole_and_starts_no_other_task_meanwhile() -> None:
    scene = Scene()
    array_id, job_ids = scene.array(array_running_max=1)
    other = scene.submit()
    named = scene.do(scene.queue.cancel_array(scheduling_pb2.CancelArrayRequest(array_id=array_id)))
    assert named.split(",") == job_ids
    assert [scene.phase(job_id) for job_id in job_ids] == [Phase.STOPPING, Phase.CANCELLED, Phase.CANCELLED]
    assert max(scene.engine.state.jobs[job_id].attempt for job_id in job_ids[1:]) == 0
    assert scene.phase(other) is Phase.PENDING


def test_a_job_may_wait_for_a_whole_array() -> None:
    scene = Scene()
    array_id, job_ids = scene.array(2)
    child = scene.submit(after_job_ids=[array_id])
    assert scene.engine.state.jobs[child].request.terms.after_job_ids == tuple(job_ids)
    scene.fail(job_ids[0])
    assert scene.phase(child) is Phase.CANCELLED


def test_a_repetition_stands_in_the_place_of_a_failed_task_for_whoever_waits_for_the_array() -> None:
    scene = Scene()
    array_id, job_ids = scene.array(2)
    scene.fail(job_ids[0])
    new_id = scene.repeat(job_ids[0])
    child = scene.submit(after_job_ids=[array_id])
    assert set(scene.engine.state.jobs[child].request.terms.after_job_ids) == {job_ids[1], new_id}
    with pytest.raises(WrongJobPhaseError, match=f"{job_ids[0]} is failed"):
        scene.submit(after_job_ids=[job_ids[0]])


@for_each(
    ("spec", "error", "why"),
    [
        ({"after_job_ids": ["job-99"]}, UnknownJobError, "job-99"),
        ({"after_job_ids": ["array-99"]}, UnknownJobError, "array-99"),
        ({"after_job_ids": ["job-1"]}, WrongJobPhaseError, "--after-any"),
        ({"after_job_ids": ["no/name"]}, InvalidRequestError, "must name"),
        ({"priority": 1_001}, InvalidRequestError, "-1,000 to 1,000"),
        ({"time_limit_ms": -1}, InvalidRequestError, "must be from 0"),
        ({"deadline_at_ms": -1}, InvalidRequestError, "must be from 0"),
        ({"allowed_devices": ["!"]}, InvalidRequestError, "types of devices"),
        ({"array_id": "array-1"}, InvalidRequestError, "set by the scheduler"),
        ({"retry_of": "job-1"}, InvalidRequestError, "set by the scheduler"),
    ],
)
def test_what_cannot_be_is_refused_with_its_remedy(spec: dict[str, Any], error: type[Exception], why: str) -> None:
    scene = Scene()
    scene.fail(scene.submit())
    with pytest.raises(error, match=why):
        scene.submit(**spec)


def test_a_job_may_wait_for_any_end_of_a_failed_one() -> None:
    scene = Scene()
    scene.fail(scene.submit())
    assert scene.phase(scene.submit(after_job_ids=["job-1"], after_any=True)) is Phase.STARTING


def test_nobody_waits_for_the_jobs_of_another_user_or_changes_their_arrays() -> None:
    scene = Scene(role=Role.USER, name="ann")
    array_id, _ = scene.array(owner="bob")
    with pytest.raises(NotPermittedError, match="another user's"):
        scene.submit(owner="ann", after_job_ids=["job-1"])
    with pytest.raises(NotPermittedError, match="another user's"):
        scene.queue.changeable_array(array_id)


def test_a_tenant_s_jobs_are_of_no_higher_class_than_its_rule_allows() -> None:
    scene = Scene(role=Role.USER, name="ann")
    rules = TenantRules(rules={"ann": TenantRule(priority_max=0)})
    scene.engine.handle(queue_events.TenantsChosen(at_ms=2, rules=rules))
    with pytest.raises(NotPermittedError, match="at most 0, not 1"):
        scene.submit(tenant="ann", priority=1)
    scene.submit(tenant="ann")
    waiting = scene.submit(tenant="ann")
    with pytest.raises(NotPermittedError, match="at most 0, not 100"):
        scene.do(scene.queue.alter(scheduling_pb2.AlterJobRequest(job_id=waiting, priority=100)))


def test_the_class_that_an_operator_gave_a_job_stands_in_the_way_of_nothing_else_that_its_owner_asks() -> None:
    scene = Scene(role=Role.USER, name="ann")
    rules = TenantRules(rules={"ann": TenantRule(priority_max=0)})
    scene.engine.handle(queue_events.TenantsChosen(at_ms=2, rules=rules))
    scene.submit(tenant="ann")
    waiting = scene.submit(tenant="ann")
    theirs = scene.queue
    carol = Caller(role=Role.OPERATOR, name="carol")
    scene.queue = QueueRequests(engine=scene.engine, numbers=theirs.numbers, caller=carol)
    scene.do(scene.queue.alter(scheduling_pb2.AlterJobRequest(job_id=waiting, priority=100)))
    scene.queue = theirs
    scene.do(scene.queue.alter(scheduling_pb2.AlterJobRequest(job_id=waiting, max_slowdown_ratio=0.1)))
    altered = scene.engine.state.jobs[waiting].request
    assert (altered.terms.priority, altered.max_slowdown_ratio) == (100, 0.1)
    scene.fail("job-1")
    scene.fail(waiting)
    new_id = scene.repeat(waiting)
    assert scene.engine.state.jobs[new_id].request.terms.priority == 100


def test_a_running_jobs_time_limit_is_altered_and_nothing_else() -> None:
    scene = Scene()
    job_id = scene.submit(time_limit_ms=5_000)
    scene.do(scene.queue.alter(scheduling_pb2.AlterJobRequest(job_id=job_id, time_limit_ms=9_000)))
    assert job_message(scene.engine.state, scene.engine.state.jobs[job_id]).spec.time_limit_ms == 9_000
    both = scheduling_pb2.AlterJobRequest(job_id=job_id, time_limit_ms=9_000, priority=3)
    with pytest.raises(WrongJobPhaseError, match=r"the time limit alone.*hold --stop"):
        scene.do(scene.queue.alter(both))


def test_a_running_job_is_held_only_where_it_may_be_stopped_for_that() -> None:
    scene = Scene()
    job_id = scene.submit()
    with pytest.raises(WrongJobPhaseError, match="hold --stop"):
        scene.do(scene.queue.hold(scheduling_pb2.HoldJobRequest(job_id=job_id)))
    scene.do(scene.queue.hold(scheduling_pb2.HoldJobRequest(job_id=job_id, stop_running=True)))
    assert scene.phase(job_id) is Phase.STOPPING
    scene.do(scene.queue.release(scheduling_pb2.ReleaseJobRequest(job_id=job_id)))
    assert not scene.engine.state.jobs[job_id].request.terms.is_held


def test_a_node_that_is_not_known_cannot_be_cordoned() -> None:
    scene = Scene()
    with pytest.raises(UnknownNodeError):
        scene.do(scene.queue.cordon(scheduling_pb2.CordonNodeRequest(node_id="n9")))
    with pytest.raises(UnknownNodeError):
        scene.do(scene.queue.uncordon(scheduling_pb2.UncordonNodeRequest(node_id="n9")))
    scene.submit()
    moving = scene.do(scene.queue.cordon(scheduling_pb2.CordonNodeRequest(node_id="n0", drain=True)))
    assert moving == "job-1"


def test_values_that_make_a_command_too_long_are_refused() -> None:
    scene = Scene()
    task = scheduling_pb2.ArrayTask(index=1, values={"a": "x" * 4_096})
    request = scheduling_pb2.SubmitArrayRequest(spec=a_spec(command=["p", "{a}" * 100]), tasks=[task])
    assert not list(spec_violations(request.spec))
    with pytest.raises(InvalidRequestError, match=r"spec\.command"):
        scene.do(scene.queue.array(request))


def test_a_deadline_that_cannot_be_met_is_told() -> None:
    scene = Scene()
    scene.engine.handle(events.TimerFired(at_ms=10_000))
    job_id = scene.submit(deadline_at_ms=4_000)
    kept = scene.submit(deadline_at_ms=10_000_000)
    shown = job_message(scene.engine.state, scene.engine.state.jobs[job_id])
    assert shown.deadline_missed_by_ms == 6_000
    assert not job_message(scene.engine.state, scene.engine.state.jobs[kept]).HasField("deadline_missed_by_ms")
