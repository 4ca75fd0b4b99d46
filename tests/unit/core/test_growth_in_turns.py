"""Running jobs grow where nobody waits who could use the GPUs, and never before all lanes were asked."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_service.core import commands, events
from scheduler_service.core.queue.queue_terms import QueueTerms
from scheduler_service.core.records import Phase, Share
from tests.support.engine_play import Play
from tests.support.scheduling import gpu, node, prediction

POLICIES = ["drf", "elastic", "optimus", "pollux"]
STEP_MS = {(1, 4): 400.0, (2, 2): 200.0, (4, 1): 100.0}
HOUR_MS = 3_600_000


def submit(scene: Play, job_id: str, *, terms: QueueTerms | None = None, **changes: Any) -> None:
    """Submit a job of four samples, and answer what is asked about it."""
    fields: dict[str, Any] = {"share": Share.NEVER, "global_batch_size": 4, "steps_total": 1_000_000, **changes}
    orders = scene.submit(job_id, graph="f" * 64, terms=terms or QueueTerms(), **fields)
    for order in orders:
        if isinstance(order, commands.RequestPrediction):
            scene.tell(events.PredictionArrived, prediction=prediction(order.key, device=order.device, step_ms=STEP_MS))


def starts(scene: Play, *job_ids: str) -> None:
    for job_id in job_ids:
        assert scene.phase(job_id) is Phase.STARTING, scene.engine.state.decisions[job_id].reason
        scene.report(events.JobStarted, job_id)


def at_least_size(policy: str) -> Play:
    """A job that may have one, two or four of four GPUs runs on one, since another one has three."""
    scene = Play(policy, gpus=4)
    submit(scene, "other", gpus=3, terms=QueueTerms(priority=100))
    starts(scene, "other")
    submit(scene, "runs", allowed_gpus=(1, 2, 4), terms=QueueTerms(priority=100))
    starts(scene, "runs")
    assert gpus_of(scene, "runs") == 1
    scene.tell(events.TimerFired, after_ms=HOUR_MS)
    return scene


def gpus_of(scene: Play, job_id: str) -> int:
    job = scene.engine.state.jobs[job_id]
    target = job.moves.target
    return len(target.assignments if target is not None else job.assignments)


def leaves(scene: Play) -> None:
    scene.report(events.JobFinished, "other", steps_done=1_000_000)
    for _ in range(3):
        scene.tell(events.TimerFired, after_ms=HOUR_MS)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "waits",
    [
        {"gpus": 8},
        {"gpus": 8, "terms": QueueTerms(priority=-100)},
        {"gpus": 8, "terms": QueueTerms(priority=200)},
        {"terms": QueueTerms(devices=("h100",))},
    ],
)
def test_a_job_at_its_least_size_grows_although_one_waits_that_cannot_use_the_free_gpus(
    policy: str, waits: dict[str, Any]
) -> None:
    scene = at_least_size(policy)
    submit(scene, "waits", **waits)
    leaves(scene)
    assert scene.phase("waits") is Phase.PENDING
    assert gpus_of(scene, "runs") == (2 if policy == "pollux" else 4)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_grows_although_one_waits_for_devices_of_another_type_that_are_busy(policy: str) -> None:
    scene = at_least_size(policy)
    scene.tell(events.NodeJoined, node=node("n9", [gpu("n9.0", device="other-device")]))
    submit(scene, "holds", terms=QueueTerms(devices=("other-device",)))
    starts(scene, "holds")
    submit(scene, "waits", terms=QueueTerms(devices=("other-device",)))
    leaves(scene)
    assert scene.phase("waits") is Phase.PENDING
    assert gpus_of(scene, "runs") == (2 if policy == "pollux" else 4)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("others", [{"gpus": 8, "terms": QueueTerms(priority=100)}, None])
def test_a_job_of_a_lower_class_starts_before_one_of_a_higher_class_grows(
    policy: str, others: dict[str, Any] | None
) -> None:
    scene = at_least_size(policy)
    if others is not None:
        submit(scene, "too-wide", **others)
    submit(scene, "low", gpus=2)
    assert scene.phase("low") is Phase.PENDING
    scene.report(events.JobFinished, "other", steps_done=1_000_000)
    assert scene.phase("low") is Phase.STARTING
    assert gpus_of(scene, "runs") <= 2
