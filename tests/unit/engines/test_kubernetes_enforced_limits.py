"""Pods with a limit of GPU memory get the number and the GPU, as kai-gpu-fractioning documents it; none was at hand."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from cotenant.engines.device_rules import DeviceRule
from cotenant.engines.kubernetes.adapter import KubernetesEngine
from cotenant.engines.kubernetes.enforced_limits import allocated_parts
from cotenant.engines.placement_notes import placed_note
from cotenant.engines.records import Placement
from tests.support.cases import for_each
from tests.support.fake_kubernetes import FakeKubernetes, node_row, only_job, pod_row, reached, served

GIB = 2**30
PREFIX = "nvidia.com/container"


def limited(name: str = "a", *, tag: str = "utilization=0.4", **stated: str) -> dict[str, Any]:
    row = pod_row(name, tag)
    keys = {f"{PREFIX}.{key.replace('__', '.').replace('_', '-')}": value for key, value in stated.items()}
    row["metadata"]["annotations"] |= keys
    return row


def placed(memory_bytes: int) -> Placement:
    note = placed_note("n1/g1", 25 if memory_bytes else 0)
    return Placement(job_id="team/a", node_id="n1", gpu_id="n1/g1", slots=25, note=note, memory_bytes=memory_bytes)


def limits(cluster: FakeKubernetes) -> dict[str, str]:
    annotations = cluster.pod("team/a")["metadata"]["annotations"]
    return {name.removeprefix(f"{PREFIX}.train."): text for name, text in annotations.items() if PREFIX in name}


@for_each(
    ("tag", "stated", "memory_bytes"),
    [
        ("utilization=0.4", {"train__gpu_memory__request": "6Gi"}, 6 * GIB),
        ("utilization=0.4", {"train__gpu_memory__limit": "6Gi"}, 6 * GIB),
        ("", {"train__gpu_memory__request": "4Gi", "train__gpu_memory__limit": "8Gi"}, 4 * GIB),
        ("memory=5GiB", {"train__gpu_memory__limit": "6Gi"}, 5 * GIB),
        (f"graph={'a' * 64} batch=8", {"train__gpu_memory__limit": "6Gi"}, 0),
    ],
)
def test_what_a_pod_states_as_its_limit_is_its_memory_unless_more_is_known_of_it(
    tag: str, stated: dict[str, str], memory_bytes: int
) -> None:
    cluster = FakeKubernetes()
    cluster.add(node_row("n1"))
    cluster.add(limited(tag=tag, **stated))
    rules = [DeviceRule(nodes="*", device="NVIDIA A10", memory_bytes=24 * GIB)]
    with served(cluster) as address, closing(reached(address)) as api:
        found = only_job(KubernetesEngine(api, rules)).tag
    assert found is not None
    assert (found.memory_bytes, found.complaints) == (memory_bytes, ())


def test_a_placed_pod_gets_what_was_reserved_as_its_limit_and_keeps_it_when_it_is_bound(
    cluster: FakeKubernetes, engine: KubernetesEngine
) -> None:
    cluster.add(limited(train__gpu_memory__request="2Gi", train__gpu_memory__limit="20Gi"))
    engine.place(placed(6 * GIB + 1))
    expected = {"gpus.devices": "g1", "gpu-memory.request": "6145Mi", "gpu-memory.limit": "6145Mi"}
    assert limits(cluster) == expected
    engine.release("team/a")
    assert limits(cluster) == expected
    assert dict(only_job(engine).held_slots) == {"n1/g1": 25}


def test_a_pod_with_the_whole_gpu_keeps_the_limit_that_it_states(
    cluster: FakeKubernetes, engine: KubernetesEngine
) -> None:
    cluster.add(limited(train__gpu_memory__limit="20Gi"))
    engine.place(placed(0))
    assert limits(cluster) == {"gpus.devices": "g1", "gpu-memory.limit": "20Gi"}


def test_a_placement_that_is_taken_back_takes_the_gpu_along_and_leaves_the_limit(
    cluster: FakeKubernetes, engine: KubernetesEngine
) -> None:
    cluster.add(limited(train__gpu_memory__limit="20Gi"))
    engine.place(placed(6 * GIB))
    engine.hold("team/a")
    assert limits(cluster) == {"gpu-memory.request": "6144Mi", "gpu-memory.limit": "6144Mi"}


def test_a_pod_without_a_limit_gets_none(cluster: FakeKubernetes, engine: KubernetesEngine) -> None:
    cluster.add(pod_row("a", "memory=6GiB"))
    engine.place(placed(6 * GIB))
    assert limits(cluster) == {}


@for_each(
    ("stated", "reason"),
    [
        (
            {"a__gpu_memory__limit": "1Gi", "b__gpu_memory__limit": "1Gi"},
            "limits of GPU memory for several containers (a, b)",
        ),
        ({"train__gpu_memory__limit": "much"}, "a limit of GPU memory that is no amount"),
        ({"train__gpu_memory__limit": "1Ki"}, "a limit of GPU memory that is no amount"),
    ],
)
def test_limits_that_cannot_be_written_keep_a_pod_waiting_with_the_reason(stated: dict[str, str], reason: str) -> None:
    cluster = FakeKubernetes()
    cluster.add(node_row("n1"))
    cluster.add(limited(**stated))
    rules = [DeviceRule(nodes="*", device="NVIDIA A10", memory_bytes=24 * GIB)]
    with served(cluster) as address, closing(reached(address)) as api:
        found = only_job(KubernetesEngine(api, rules))
    assert found.allowed_node_ids == ("",)
    assert found.tag is not None
    assert found.tag.complaints[0] == f"cotenant cannot place pods with {reason}"


def test_what_another_scheduler_gave_by_such_annotations_is_not_given_again(
    cluster: FakeKubernetes, engine: KubernetesEngine
) -> None:
    for name, note, given in (("a", placed_note("n1/g1", 25), "g0"), ("foreign", "", "g1,g0,elsewhere")):
        row = cluster.add(limited(name, train__gpu_memory__request="6Gi", train__gpus__devices=given))
        row["spec"]["nodeName"] = "n1"
        row["status"] = {"phase": "Running"}
        row["metadata"]["annotations"]["cotenant.io/note"] = note
    assert {job.job_id: dict(job.held_slots) for job in engine.read().jobs} == {
        # It was placed elsewhere by us: that disagrees, and what holds counts.
        "team/a": {"n1/g0": 25},
        "team/foreign": {"n1/g1": 25, "n1/g0": 25},
    }


@pytest.mark.parametrize("devices", ["all", "GPU-of-another-node", "nvidia.com/gpu=all"])
def test_where_it_is_unknown_which_gpus_another_scheduler_gave_all_of_the_node_are_closed(
    cluster: FakeKubernetes, engine: KubernetesEngine, devices: str
) -> None:
    row = cluster.add(limited("foreign", train__gpu_memory__request="6Gi", train__gpus__devices=devices))
    row["spec"]["nodeName"] = "n1"
    row["status"] = {"phase": "Running"}
    state = engine.read()
    assert dict(state.jobs[0].held_slots) == {"n1/g0": 0, "n1/g1": 0}
    assert any("team/foreign" in warning for warning in state.warnings)


@for_each(
    ("annotations", "parts"),
    [
        ({}, {}),
        # KAI's binder names devices as CDI does, where the node uses that.
        (
            {
                "train.gpus.devices": "k8s.device-plugin.nvidia.com/gpu=g0, nvidia.com/gpu=g1",
                "train.gpu-memory.limit": "6Gi",
            },
            {"n1/g0": 25, "n1/g1": 25},
        ),
        # It is ended beyond its limit only.
        (
            {"train.gpus.devices": "g0", "train.gpu-memory.request": "6Gi", "train.gpu-memory.limit": "12Gi"},
            {"n1/g0": 50},
        ),
        ({"train.gpus.devices": "g0"}, {}),
        ({"train.gpus.devices": "g0", "train.gpu-memory.limit": "6Gi"}, {"n1/g0": 25}),
        ({"train.gpus.devices": "g0", "train.gpu-memory.limit": "900Gi"}, {"n1/g0": 100}),
        ({"train.gpus.devices": "g0", "other.gpu-memory.limit": "6Gi"}, {}),
        ({"train.gpus.devices": "g0", "train.gpu-memory.limit": "-6Gi"}, {}),
        ({"train.gpus.devices": "all", "train.gpu-memory.limit": "6Gi"}, {}),
        ({"train.gpus.devices": 7, "train.gpu-memory.limit": ["6Gi"]}, {}),
        ({"train.gpus.devices": "g0," * 1_000, "train.gpu-memory.limit": "1Mi"}, {"n1/g0": 1}),
    ],
)
def test_such_annotations_are_read_with_doubt(annotations: dict[str, object], parts: dict[str, int]) -> None:
    gpus = {f"n1/g{index}": (100, 24 * GIB) for index in range(2)}
    row = {"metadata": {"annotations": {f"{PREFIX}.{name}": value for name, value in annotations.items()}}}
    assert allocated_parts(row, "n1", gpus) == parts
