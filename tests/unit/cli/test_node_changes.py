"""What changes a node says so to programs as well: one JSON object, or the node's name."""

from __future__ import annotations

import json

import pytest

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
