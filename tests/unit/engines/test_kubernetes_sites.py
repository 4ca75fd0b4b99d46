"""GPUs under other names than nvidia.com/gpu, and wishes written in the wrong place: none of it goes by in silence."""

from __future__ import annotations

from typing import Any

import pytest

from cotenant.engines.device_rules import DeviceRule
from cotenant.engines.kubernetes.nodes import PLACED_LABEL, PLACED_VALUE
from cotenant.engines.kubernetes.reading import KubernetesReading
from cotenant.engines.kubernetes.volumes import Volumes
from cotenant.engines.records import EnginePhase, EngineState
from tests.support.cases import for_each
from tests.support.fake_kubernetes import node_row, pod_row

DEVICES = [DeviceRule(nodes="*", device="NVIDIA A10", memory_bytes=24 * 2**30)]
Row = dict[str, Any]


def plugin_node(name: str, resources: dict[str, str], labels: dict[str, str] | None = None) -> Row:
    row = node_row(name, uuids="")
    row["metadata"]["labels"] = labels or {}
    row["status"]["allocatable"] |= resources
    return row


def asking(name: str, resource: str, amount: int = 1, *, node: str = "") -> Row:
    pod = pod_row(name, "memory=6GiB", scheduler="default-scheduler")
    pod["spec"]["containers"][0]["resources"]["requests"] |= {resource: str(amount)}
    pod["status"] = {"phase": "Running" if node else "Pending"}
    return pod | {"spec": pod["spec"] | ({"nodeName": node} if node else {})}


def read(nodes: list[Row], *pods: Row) -> EngineState:
    return KubernetesReading(nodes, pods, DEVICES, Volumes()).state()


def held(state: EngineState) -> dict[str, dict[str, int]]:
    return {job.job_id: dict(job.held_slots) for job in state.jobs if job.held_slots}


def test_parts_of_a_gpu_under_the_plugins_other_name_are_held_by_who_has_them() -> None:
    labels = {"nvidia.com/gpu.count": "1", "nvidia.com/gpu.replicas": "4"}
    nodes = [plugin_node("n1", {"nvidia.com/gpu": "0", "nvidia.com/gpu.shared": "4"}, labels)]
    running = asking("a", "nvidia.com/gpu.shared", node="n1")
    state = read(nodes, running, asking("b", "nvidia.com/gpu.shared"), asking("c", "nvidia.com/gpu"))
    assert held(state) == {"team/a": {"n1/0": 1}}
    assert {job.job_id: job.allowed_node_ids for job in state.jobs if job.phase is EnginePhase.WAITING} == {
        "team/b": (),
        "team/c": ("",),
    }


def test_gpus_of_amd_are_given_out_to_who_asks_for_them() -> None:
    nodes = [plugin_node("amd1", {"amd.com/gpu": "2"}), plugin_node("n1", {"nvidia.com/gpu": "2"})]
    state = read(nodes, asking("a", "amd.com/gpu", node="amd1"), asking("b", "amd.com/gpu"))
    assert [gpu.gpu_id for gpu in state.gpus.values()] == ["amd1/0", "amd1/1", "n1/0", "n1/1"]
    assert held(state) == {"team/a": {"amd1/0": 0}}
    assert state.jobs[1].allowed_node_ids == ("amd1",)


@pytest.mark.parametrize("placed", [{}, {PLACED_LABEL: PLACED_VALUE}])
def test_a_node_whose_gpus_are_cut_into_slices_takes_no_job_and_is_named(placed: dict[str, str]) -> None:
    labels = {"nvidia.com/gpu.count": "2", **placed}
    state = read([plugin_node("n1", {"nvidia.com/gpu": "0", "nvidia.com/mig-1g.5gb": "14"}, labels)])
    assert state.nodes == ()
    assert "in slices (nvidia.com/mig-1g.5gb)" in state.warnings[0]


def test_whole_gpus_beside_slices_are_those_that_the_plugin_counts() -> None:
    labels = {"nvidia.com/gpu.count": "2"}
    state = read([plugin_node("n1", {"nvidia.com/gpu": "1", "nvidia.com/mig-1g.5gb": "7"}, labels)])
    assert [*state.gpus] == ["n1/0"]


def test_who_asks_for_a_slice_is_told_that_it_is_left_to_kubernetes() -> None:
    state = read([plugin_node("n1", {"nvidia.com/gpu": "1"})], asking("a", "nvidia.com/mig-1g.5gb"))
    assert state.jobs[0].tag is not None
    assert "fixed slices of GPUs (nvidia.com/mig-1g.5gb)" in state.jobs[0].tag.complaints[0]


@for_each("job", [None, ""])
def test_a_pod_that_names_us_as_its_scheduler_waits_for_us_whatever_it_states(job: str | None) -> None:
    state = read([node_row("n1")], pod_row("a", job) | {"status": {"phase": "Pending"}})
    assert [one.phase for one in state.jobs] == [EnginePhase.HELD]


@pytest.mark.parametrize("is_annotated", [False, True])
def test_a_wish_in_a_label_is_named_unless_there_is_an_annotation_too(is_annotated: bool) -> None:
    pod = asking("a", "nvidia.com/gpu")
    pod["metadata"]["labels"] = {"cotenant.io/job": ""}
    if not is_annotated:
        del pod["metadata"]["annotations"]
    warnings = read([plugin_node("n1", {"nvidia.com/gpu": "1"})], pod).warnings
    assert ["as a label" in warning for warning in warnings] == ([] if is_annotated else [True])
