"""Any sequence of facts, sensible or not, leaves the cluster right."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_service.core import events
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.errors import InvalidTransition
from scheduler_service.core.records import Phase, Share
from scheduler_service.core.state import ClusterState
from scheduler_service.policy_registry import POLICIES
from tests.support.engine_invariants import check
from tests.support.restless import make_restless_policy
from tests.support.scheduling import GIB, job, memory, node, pair, prediction

JOBS = ("a", "b", "c", "d")
NODES = ("n0", "n1")
EXIT_CLASSES = ("gpu_oom", "host_oom", "signal", "error", "lost", "fenced", "communication", "nonsense")

submissions = st.builds(
    lambda name, gpus, share, graph, key: ("submit", name, gpus, share, graph, key),
    st.sampled_from(JOBS),
    st.integers(1, 3),
    st.sampled_from(list(Share)),
    st.sampled_from(("", "graph")),
    st.sampled_from(("x", "y")),
)
reports = st.builds(
    lambda name, kind, steps, is_stale, end: ("report", name, kind, steps, is_stale, end),
    st.sampled_from(JOBS),
    st.sampled_from(
        (
            events.JobStarted,
            events.JobProgressed,
            events.JobStopped,
            events.JobFinished,
            events.JobFailed,
            events.LaunchRefused,
            events.AttemptPaused,
            events.AttemptResumed,
            events.PauseRefused,
        )
    ),
    st.integers(0, 12),
    st.booleans(),
    st.sampled_from(EXIT_CLASSES),
)
machines = st.builds(
    lambda what, name, lists_all: (what, name, lists_all),
    st.sampled_from(("join", "disconnect", "lose", "sick", "well")),
    st.sampled_from(NODES),
    st.booleans(),
)
others = st.builds(
    lambda what, name: (what, name),
    st.sampled_from(("cancel", "predict", "fail_prediction", "pairs", "timer", "policy", "crash")),
    st.sampled_from(JOBS),
)


def fact(engine: SchedulerEngine, at_ms: int, action: tuple[object, ...]) -> events.Event:  # noqa: C901 - one arm per kind of fact
    """Turn a drawn action into an event at this instant."""
    match action:
        case ("submit", str(name), int(gpus), Share() as share, str(graph), str(key)):
            request = job(name, gpus=gpus, share=share, key=key, restart_limit=3)
            return events.JobSubmitted(at_ms=at_ms, request=request, graph_sha256=graph)
        case ("report", str(name), type() as kind, int(steps), bool(is_stale), str(end)):
            return report(engine, at_ms, name, kind, steps, is_stale=is_stale, end=end)
        case ("join", str(name), bool(lists_all)):
            held = tuple(
                events.RunningAttempt(
                    job_id=one.job_id,
                    attempt=one.attempt,
                    fence=one.fence,
                    gpu_ids=one.gpu_ids,
                    is_paused=at_ms % 2_100 == 0,
                )
                for one in engine.state.jobs.values()
                if lists_all and one.holds_gpus and name in one.node_ids
            )
            return events.NodeJoined(at_ms=at_ms, node=node(name, 2, enforcements=("stop_signal",)), attempts=held)
        case ("disconnect", str(name), _):
            return events.NodeDisconnected(at_ms=at_ms, node_id=name)
        case ("lose", str(name), _):
            return events.NodeLost(at_ms=at_ms, node_id=name)
        case ("sick" | "well" as health, str(name), _):
            return events.GpuHealthChanged(at_ms=at_ms, gpu_id=f"{name}.0", healthy=health == "well")
        case ("cancel", str(name)):
            return events.JobCancelled(at_ms=at_ms, job_id=name)
        case ("predict", str(name)):
            key = "x" if name in "ab" else "y"
            return events.PredictionArrived(at_ms=at_ms, prediction=prediction(key, memory=memory(2, 4)))
        case ("fail_prediction", str(name)):
            return events.PredictionFailed(at_ms=at_ms, key="x" if name in "ab" else "y", device="standin", code="DOWN")
        case ("pairs", _):
            pairs = tuple(pair(one, two) for one in "xy" for two in "xy")
            return events.PairPredictionsArrived(at_ms=at_ms, pairs=pairs)
        case ("policy", str(name)):
            return events.PolicyChosen(at_ms=at_ms, policy=sorted(POLICIES)[ord(name) % len(POLICIES)])
    return events.TimerFired(at_ms=at_ms)


def report(
    engine: SchedulerEngine, at_ms: int, name: str, kind: type, steps: int, *, is_stale: bool, end: str
) -> events.Event:
    record = engine.state.jobs.get(name)
    attempt, fence = (record.attempt, record.fence) if record is not None else (1, 1)
    values: dict[str, object] = {"job_id": name, "attempt": attempt, "fence": fence + is_stale}
    if kind in (events.JobProgressed, events.JobFinished, events.JobStopped, events.JobFailed):
        values["steps_done"] = steps
    if kind in (events.JobStopped, events.JobFailed):
        values |= {"exit_class": end, "checkpoint_step": steps - 2}
    if kind is events.JobFailed:
        values["memory_available_bytes"] = 3 * GIB
    if kind in (events.LaunchRefused, events.PauseRefused):
        values["code"] = "OVER_CAPACITY"
    event: events.Event = kind(at_ms=at_ms, **values)
    return event


def held_by_paused(state: ClusterState) -> dict[tuple[str, str, int], tuple[frozenset[str], int]]:
    """For every GPU of a job that is or shall be paused: all jobs there, and what is reserved for it."""
    return {
        (gpu_id, one.job_id, one.fence): (frozenset(state.gpus[gpu_id].job_ids), one.bytes_on(gpu_id))
        for one in state.jobs.values()
        for gpu_id in one.gpu_ids
        if one.pause is not None and gpu_id in state.gpus
    }


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(submissions | reports | machines | others, st.booleans()), min_size=5, max_size=60),
    st.sampled_from((*sorted(POLICIES), *["pausing"] * 5)),
)
def test_nothing_that_can_be_reported_singly_or_together_breaks_the_cluster(
    actions: list[tuple[tuple[object, ...], bool]], policy: str
) -> None:
    engine = SchedulerEngine(make_policy=make_restless_policy, policy=policy)
    nodes: list[tuple[tuple[object, ...], bool]] = [(("join", name, False), False) for name in NODES]
    for turn, (action, is_followed) in enumerate([*nodes, *actions]):
        if action[0] == "crash":
            engine = SchedulerEngine.restore(
                json.loads(json.dumps(engine.snapshot())), make_policy=make_restless_policy
            )
        event = replace(fact(engine, turn * 700, action), is_followed=is_followed)
        if isinstance(event, events.JobSubmitted) and event.request.job_id in engine.state.jobs:
            continue
        paused = held_by_paused(engine.state)
        try:
            engine.handle(event)
        except InvalidTransition as error:
            raise AssertionError(f"a transition is missing: {error}") from error
        check(engine.state)
        assert not engine.state.rejected
        for (gpu_id, name, fence), (others, reserved_bytes) in held_by_paused(engine.state).items():
            before = paused.get((gpu_id, name, fence))
            assert before is None or (others <= before[0] and reserved_bytes == before[1])
        for one in engine.state.jobs.values():
            if one.phase is Phase.FINISHED and one.steps_done < one.request.steps_total:
                assert one.reason.code in {"FINISHED_EARLY", "FINISHED_UNCOUNTED"}
