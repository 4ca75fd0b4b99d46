"""What changes a node says so to programs as well: one JSON object, or the node's name."""

from __future__ import annotations

import json

import pytest

from cotenant.v1 import scheduling_pb2
from tests.support.cli_cluster import CommandLine
from tests.support.fake_services import FakeScheduler


@pytest.mark.parametrize(
    ("verb", "became"), [("cordon", "cordoned"), ("drain", "draining"), ("uncordon", "uncordoned")]
)
def test_a_change_of_a_node_is_one_json_object(
    cotenant: CommandLine, scheduler: FakeScheduler, verb: str, became: str
) -> None:
    node_id = scheduler.nodes[0].node_id
    answer = json.loads(cotenant("nodes", verb, node_id, "-o", "json").out)
    assert (answer["node_id"], answer["became"]) == (node_id, became)
    assert isinstance(answer["job_ids"], list)
    assert cotenant("nodes", verb, node_id, "-o", "name").out == f"{node_id}\n"
    assert cotenant("nodes", verb, node_id).out == ""


def test_an_idle_gpu_that_takes_no_job_says_why(cotenant: CommandLine, scheduler: FakeScheduler) -> None:
    def states() -> list[str]:
        lines = [line.split() for line in cotenant("gpus").out.splitlines()]
        return [words[2] for words in lines if words and words[0].startswith("node-a/")]

    node = scheduler.nodes[0]
    assert states() == ["shared", "free"]
    node.schedulable, node.cordoned = False, True
    assert states() == ["shared", "cordoned"]
    node.gpus[1].healthy, node.gpus[1].fault = False, "XID 79: GPU has fallen off the bus"
    assert states() == ["shared", "faulty"]
    assert "XID 79: GPU has fallen off the bus" in cotenant("gpus").out
    assert "1 of 2 GPUs faulty: XID 79: GPU has fallen off the bus" in " ".join(cotenant("nodes").out.split())
    node.connected = False
    assert states() == ["lost", "lost"]


_UNSAVED = "warning: job-7 mine has written no checkpoint so far: unless its script writes one when it is asked to stop"


def _unsaved_job(scheduler: FakeScheduler) -> str:
    job = scheduling_pb2.Job(job_id="job-7", phase=scheduling_pb2.JOB_PHASE_RUNNING, node_id="node-a", ran_ms=840_000)
    job.spec.name, job.unsaved_steps, job.unsaved_ms = "mine", 1_200, 840_000
    scheduler.jobs[job.job_id] = job
    return job.job_id


@pytest.mark.parametrize(
    "words",
    [
        ("nodes", "drain", "node-a"),
        ("nodes", "drain", "node-a", "--dry-run"),
        ("hold", "--stop", "job-7"),
        ("hold", "--stop", "--dry-run", "job-7"),
        ("alter", "job-7", "--time-limit", "10m"),
    ],
)
def test_an_order_that_stops_a_job_without_a_checkpoint_says_what_is_lost_before_it_is_given(
    cotenant: CommandLine, scheduler: FakeScheduler, words: tuple[str, ...]
) -> None:
    _unsaved_job(scheduler)
    told = " ".join(cotenant(*words).err.split())
    assert f"{_UNSAVED}, 1,200 steps made in 14m00s would be lost" in told


@pytest.mark.parametrize("words", [("hold", "job-7"), ("alter", "job-7", "--time-limit", "4h"), ("cancel", "job-7")])
def test_an_order_that_stops_nothing_or_is_meant_to_end_a_job_warns_of_no_loss(
    cotenant: CommandLine, scheduler: FakeScheduler, words: tuple[str, ...]
) -> None:
    _unsaved_job(scheduler)
    assert "checkpoint" not in cotenant(*words).err


@pytest.mark.parametrize("words", [("nodes", "drain", "node-a"), ("hold", "--stop", "job-7")])
def test_a_dry_run_of_an_order_that_stops_jobs_gives_no_order(
    cotenant: CommandLine, scheduler: FakeScheduler, words: tuple[str, ...]
) -> None:
    _unsaved_job(scheduler)
    assert cotenant(*words, "--dry-run").code == 0
    orders = (scheduling_pb2.CordonNodeRequest, scheduling_pb2.HoldJobRequest)
    assert not [request for request in scheduler.seen if isinstance(request, orders)]
