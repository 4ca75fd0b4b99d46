"""What the API server may have, read as nodes, pods that wait and pods that hold GPUs; pods may hold anything."""

from __future__ import annotations

from typing import Any

import pytest

from cotenant.engines.device_rules import DeviceRule
from cotenant.engines.kubernetes.reading import KubernetesReading
from cotenant.engines.kubernetes.volumes import Volumes
from cotenant.engines.records import EngineJob, EnginePhase, EngineState
from cotenant.engines.snapshots import make_snapshot
from cotenant.v1 import resources_pb2
from tests.support.cases import for_each
from tests.support.fake_kubernetes import FakeKubernetes, node_row, pod_row

GIB = 2**30
DEVICES = [DeviceRule(nodes="*", device="NVIDIA A10", memory_bytes=24 * GIB)]
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
Row = dict[str, Any]


def plugin_node(name: str, *, gpus: int, replicas: int = 1, labels: dict[str, str] | None = None) -> Row:
    row = node_row(name, uuids="")
    row["metadata"]["labels"] = {
        "nvidia.com/gpu.count": str(gpus),
        "nvidia.com/gpu.replicas": str(replicas),
        **(labels or {}),
    }
    row["status"]["allocatable"] = {**row["status"]["allocatable"], "nvidia.com/gpu": str(gpus * replicas)}
    return row


def bound(pod: Row, node: str, *, note: str = "", phase: str = "Running") -> Row:
    pod["spec"]["nodeName"] = node
    pod["status"] = {"phase": phase}
    if note:
        pod["metadata"].setdefault("annotations", {})["cotenant.io/note"] = note
    return pod


def read(*rows: Row, volumes: Volumes | None = None, devices: list[DeviceRule] = DEVICES) -> EngineState:
    stored = FakeKubernetes()
    for row in rows:
        status = row.get("status")
        stored.add(row)["status"] = status or {"phase": "Pending"}
    nodes = [row for row in stored.objects.values() if row["kind"] == "Node"]
    pods = [row for row in stored.objects.values() if row["kind"] == "Pod"]
    return KubernetesReading(nodes, pods, devices, volumes or Volumes()).state()


def only(*rows: Row, volumes: Volumes | None = None) -> EngineJob:
    [job] = read(*rows, volumes=volumes).jobs
    return job


def held(state: EngineState) -> dict[str, dict[str, int]]:
    return {job.job_id: dict(job.held_slots) for job in state.jobs if job.held_slots}


def test_a_pod_with_our_scheduler_waits_for_us_and_one_of_another_for_it() -> None:
    state = read(node_row("n1"), pod_row("a", "memory=6GiB"), pod_row("b", "", scheduler="default-scheduler", gpus=1))
    assert [(job.job_id, job.phase) for job in state.jobs] == [
        ("team/a", EnginePhase.HELD),
        ("team/b", EnginePhase.WAITING),
    ]
    assert (state.jobs[0].tenant, state.jobs[0].cpu_cores, state.jobs[0].host_memory_bytes) == ("team", 1, 100 * 2**20)
    assert state.jobs[0].submitted_at_ms == 1_795_413_600_000


def test_pods_that_are_gated_or_leave_or_have_ended_or_opted_out_are_left_alone() -> None:
    gated, leaving, ended = (pod_row(name, "") for name in ("gated", "leaving", "ended"))
    gated["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    leaving["metadata"]["deletionTimestamp"] = "2026-11-23T06:00:00Z"
    ended["status"] = {"phase": "Failed"}
    assert (
        read(node_row("n1"), gated, leaving, ended, pod_row("foreign", None, scheduler="default-scheduler")).jobs == ()
    )


def test_a_bound_pod_holds_what_its_note_says_and_is_placed_until_it_runs() -> None:
    state = read(
        node_row("n1"),
        bound(pod_row("a", ""), "n1", note="cotenant placed n1/g1 25: why"),
        bound(pod_row("b", ""), "n1", note="cotenant placed n1/g1 whole: why", phase="Pending"),
    )
    assert [(job.phase, dict(job.held_slots)) for job in state.jobs] == [
        (EnginePhase.RUNNING, {"n1/g1": 25}),
        (EnginePhase.PLACED, {"n1/g1": 0}),
    ]


def test_a_note_for_a_gpu_that_is_taken_or_gone_is_void() -> None:
    """Users can write annotations; and two controllers may have placed two pods at once."""
    taken, gone, first, second = (pod_row(name, "") for name in ("taken", "gone", "first", "second"))
    notes = ["n1/g0 whole: x", "n9/g0 1: x", "n1/g1 60: x", "n1/g1 60: x"]
    for pod, note in zip((taken, gone, first, second), notes, strict=True):
        pod["metadata"]["annotations"]["cotenant.io/note"] = f"cotenant placed {note}"
    running = bound(pod_row("running", ""), "n1", note="cotenant placed n1/g0 1: x")
    state = read(node_row("n1"), taken, gone, first, second, running)
    assert held(state) == {"team/first": {"n1/g1": 60}, "team/running": {"n1/g0": 1}}
    assert {job.job_id for job in state.jobs if job.phase is EnginePhase.HELD} == {
        "team/taken",
        "team/gone",
        "team/second",
    }
    assert len(state.warnings) == 3


def test_a_note_for_a_node_that_was_closed_meanwhile_is_void() -> None:
    pod = pod_row("a", "")
    pod["metadata"]["annotations"]["cotenant.io/note"] = "cotenant placed n1/g0 1: x"
    state = read(node_row("n1") | {"spec": {"unschedulable": True}}, pod)
    assert [job.phase for job in state.jobs] == [EnginePhase.HELD]
    assert "which is closed" in state.warnings[0]


def test_what_a_device_plugin_gave_out_closes_the_gpus_that_cotenant_gives_out() -> None:
    state = read(node_row("n1"), bound(pod_row("a", None, gpus=1), "n1"))
    assert held(state) == {"team/a": {"n1/g0": 0, "n1/g1": 0}}
    assert "device plugin" in state.warnings[0]


def test_a_claim_that_is_none_of_ours_closes_the_gpus_that_cotenant_gives_out() -> None:
    claims = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "theirs"}]}
    foreign, ours = bound(pod_row("a", None), "n1"), bound(pod_row("b", ""), "n2", note="cotenant placed n2/g0 1: x")
    for pod in (foreign, ours):
        pod["spec"] |= claims
    state = read(node_row("n1"), node_row("n2"), foreign, ours)
    assert held(state) == {"team/a": {"n1/g0": 0, "n1/g1": 0}, "team/b": {"n2/g0": 1}}
    assert [warning for warning in state.warnings if "team/a" in warning and "claim" in warning]


def test_whole_gpus_of_a_device_plugin_are_counted_and_never_twice() -> None:
    first, second, third = (pod_row(name, None, gpus=count) for name, count in (("a", 1), ("b", 2), ("c", 1)))
    noted = bound(pod_row("d", "", gpus=1), "n1", note="cotenant placed n1/1 whole: x")
    state = read(plugin_node("n1", gpus=4), bound(first, "n1"), bound(second, "n1"), bound(third, "n2"), noted)
    assert held(state) == {"team/a": {"n1/0": 0}, "team/b": {"n1/2": 0, "n1/3": 0}, "team/d": {"n1/1": 0}}


def test_a_single_time_sliced_gpu_has_its_replicas_as_parts() -> None:
    state = read(plugin_node("n1", gpus=1, replicas=4), bound(pod_row("a", None, gpus=1), "n1"))
    assert [gpu.slots for gpu in state.gpus.values()] == [4]
    assert held(state) == {"team/a": {"n1/0": 1}}


@for_each(
    ("strategy", "sharing"),
    [
        ("mps", resources_pb2.DEVICE_SHARING_MPS),
        ("time-slicing", resources_pb2.DEVICE_SHARING_TIME_SLICING),
        ("none", resources_pb2.DEVICE_SHARING_UNSPECIFIED),
    ],
)
def test_a_node_says_by_the_label_of_feature_discovery_how_its_gpus_are_shared(
    strategy: str, sharing: resources_pb2.DeviceSharing.ValueType
) -> None:
    labels = {"nvidia.com/gpu.sharing-strategy": strategy}
    state = read(plugin_node("n1", gpus=1, replicas=4, labels=labels), plugin_node("n2", gpus=1))
    made = make_snapshot(state, (), now_ms=0)
    assert [node.gpus[0].sharing for node in made.nodes] == [sharing, resources_pb2.DEVICE_SHARING_UNSPECIFIED]


def test_no_job_of_another_engine_is_tried_or_started_in_passes() -> None:
    state = read(plugin_node("n1", gpus=2), bound(pod_row("a", None, gpus=1), "n1"), pod_row("b", None, gpus=1))
    made = make_snapshot(state, [job for job in state.jobs if not job.held_slots], now_ms=0)
    rows = [*(row.job for row in made.running), *(row.job for row in made.pending)]
    assert [(row.job_id, row.no_trial, row.takes_whole_batch) for row in rows] == [
        ("team/a", True, True),
        ("team/b", True, True),
    ]


def test_several_time_sliced_gpus_are_not_given_out_and_that_is_said() -> None:
    state = read(plugin_node("n1", gpus=2, replicas=4))
    assert state.nodes == ()
    assert "time-sliced" in state.warnings[0]


def test_device_and_memory_come_from_the_labels_where_no_flag_names_them() -> None:
    labels = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-SHARED", "nvidia.com/gpu.memory": "81920"}
    state = read(plugin_node("n1", gpus=1, labels=labels), plugin_node("n2", gpus=1), devices=[])
    [gpu] = state.gpus.values()
    assert (gpu.device, gpu.memory_bytes) == ("NVIDIA-A100-SXM4-80GB", 80 * GIB)
    assert state.warnings == ("node n2 has GPUs and neither --gpu nor its labels say which; no job is placed there",)


def test_cores_and_memory_of_pods_without_gpus_are_taken_off() -> None:
    node = read(node_row("n1"), bound(pod_row("web", None), "n1")).nodes[0]
    assert (node.cpu_cores, node.host_memory_bytes) == (15, 64 * GIB - 100 * 2**20)


@for_each(
    ("more", "cores"),
    [
        ({"initContainers": [{"resources": {"requests": {"cpu": "3"}}}]}, 3),
        ({"initContainers": [{"resources": {"requests": {"cpu": "500m"}}}]}, 1),
        ({"initContainers": [{"restartPolicy": "Always", "resources": {"requests": {"cpu": "3"}}}]}, 4),
        ({"resources": {"requests": {"cpu": "6"}}}, 6),
        ({"overhead": {"cpu": "250m"}}, 1.25),
    ],
)
def test_a_pod_asks_for_what_its_containers_ask_for_at_once(more: Row, cores: float) -> None:
    pod = pod_row("a", "")
    pod["spec"] |= more
    assert only(node_row("n1"), pod).cpu_cores == cores


@pytest.mark.parametrize(
    "change",
    [
        {"spec": {"unschedulable": True}},
        {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}},
        {"status": {"conditions": []}},
        {"status": {"allocatable": {"pods": "0", "cpu": "1"}, "conditions": [{"type": "Ready", "status": "True"}]}},
    ],
)
def test_a_node_that_takes_no_pods_is_not_usable(change: Row) -> None:
    assert [node.is_usable for node in read(node_row("n1") | change).nodes] == [False]


@pytest.mark.parametrize(
    ("wish", "allowed"),
    [
        ({}, ()),
        ({"nodeSelector": {"zone": "a"}}, ("n1",)),
        ({"nodeSelector": {"zone": "c"}}, ("",)),
        ({"tolerations": [{"operator": "Exists"}]}, ()),
    ],
)
def test_selectors_and_taints_say_where_a_pod_may_run(wish: Row, allowed: tuple[str, ...]) -> None:
    pod = pod_row("a", "")
    pod["spec"] |= wish
    assert only(node_row("n1", zone="a"), node_row("n2", zone="b"), pod).allowed_node_ids == allowed


@for_each(
    ("tolerations", "allowed"),
    [
        ([], ("n2",)),
        ([{"key": "gpu", "operator": "Exists"}], ()),
        ([{"key": "gpu", "value": "yes"}], ()),
        ([{"key": "gpu", "value": "yes", "effect": "NoSchedule"}], ()),
        ([{"key": "gpu", "value": "yes", "effect": "NoExecute"}], ("n2",)),
        ([{"key": "gpu", "value": "no"}], ("n2",)),
        ([{"value": "yes"}], ("n2",)),
    ],
)
def test_a_taint_needs_a_toleration_that_matches_it(tolerations: list[Row], allowed: tuple[str, ...]) -> None:
    tainted, pod = node_row("n1"), pod_row("a", "")
    tainted["spec"]["taints"] = [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]
    tainted["spec"]["taints"].append({"key": "old", "effect": "PreferNoSchedule"})
    pod["spec"]["tolerations"] = tolerations
    assert only(tainted, node_row("n2"), pod).allowed_node_ids == allowed


@for_each(
    ("rule", "allowed"),
    [
        ({"key": "zone", "operator": "In", "values": ["a", "x"]}, ("n1",)),
        ({"key": "zone", "operator": "NotIn", "values": ["a"]}, ("n2",)),
        ({"key": "disk", "operator": "Exists"}, ("",)),
        ({"key": "disk", "operator": "DoesNotExist"}, ()),
        ({"key": "size", "operator": "Gt", "values": ["5"]}, ("n2",)),
        ({"key": "size", "operator": "Lt", "values": ["5"]}, ("n1",)),
        ({"key": "size", "operator": "Gt", "values": ["many"]}, ("",)),
        ({"key": "zone", "operator": "Near", "values": ["a"]}, ("",)),
    ],
)
def test_required_affinity_is_kept(rule: Row, allowed: tuple[str, ...]) -> None:
    pod = pod_row("a", "")
    terms = {"nodeSelectorTerms": [{"matchExpressions": [rule]}, {}]}
    pod["spec"]["affinity"] = {"nodeAffinity": {REQUIRED: terms}}
    job = only(node_row("n1", zone="a", size="3"), node_row("n2", zone="b", size="7"), pod)
    assert job.allowed_node_ids == allowed


@for_each(
    ("wish", "said"),
    [
        ({"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]}, "topologySpreadConstraints"),
        (
            {"affinity": {"podAntiAffinity": {REQUIRED: [{}]}}},
            "podAntiAffinity",
        ),
        ({"resourceClaims": [{"name": "gpu"}]}, "resourceClaims"),
        ({"containers": [{"ports": [{"hostPort": 80}]}]}, "host ports"),
        ({"volumes": [{"persistentVolumeClaim": {"claimName": "data"}}]}, "the claim data"),
        ({"volumes": [{"name": "scratch", "ephemeral": {}}]}, "the claim a-scratch"),
    ],
)
def test_a_wish_that_is_not_understood_closes_all_nodes_and_is_told(wish: Row, said: str) -> None:
    pod = pod_row("a", "")
    pod["spec"] |= wish
    job = only(node_row("n1"), pod)
    assert job.allowed_node_ids == ("",)
    assert job.tag is not None
    assert said in job.tag.complaints[0]


def test_a_bound_volume_ties_its_pod_to_the_nodes_that_reach_it() -> None:
    claim = {"metadata": {"namespace": "team", "name": "data"}, "spec": {"volumeName": "pv1"}}
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}]
    volume = {"metadata": {"name": "pv1"}, "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}}
    pod = pod_row("a", "")
    pod["spec"]["volumes"] = [{"persistentVolumeClaim": {"claimName": "data"}}]
    volumes = Volumes([claim | {"status": {"phase": "Bound"}}], [volume])
    assert only(node_row("n1"), node_row("n2"), pod, volumes=volumes).allowed_node_ids == ("n2",)


def test_pods_that_ask_the_plugin_and_those_that_do_not_go_to_different_nodes() -> None:
    rows = (node_row("ours"), plugin_node("plain", gpus=1))
    assert only(*rows, pod_row("a", "")).allowed_node_ids == ("ours",)
    assert only(*rows, pod_row("a", "", gpus=1)).allowed_node_ids == ("plain",)


def test_other_resources_must_be_left() -> None:
    pod, other = pod_row("a", ""), pod_row("b", None)
    for row in (pod, other):
        row["spec"]["containers"][0]["resources"]["requests"]["rdma/hca"] = "1"
    with_hca, full = node_row("n1"), node_row("n2")
    for row in (with_hca, full):
        row["status"]["allocatable"] = {**row["status"]["allocatable"], "rdma/hca": "1"}
    assert only(with_hca, full, node_row("n3"), pod, bound(other, "n2")).allowed_node_ids == ("n1",)


@pytest.mark.parametrize("uuids", ["a b,c/d,e:f", ",,,", " "])
def test_names_of_gpus_that_a_note_could_not_hold_are_left_out(uuids: str) -> None:
    assert read(node_row("n1", uuids=uuids)).nodes == ()


@for_each("odd", [None, 7, "x", [], [None], {"containers": "no"}, {"containers": [{"resources": 3}]}])
def test_fields_of_odd_types_count_as_absent(odd: object) -> None:
    pod, node = pod_row("a", ""), node_row("n1")
    pod["spec"] = {"schedulerName": "cotenant", "affinity": odd, "tolerations": odd, "containers": odd, "volumes": odd}
    node["status"]["conditions"], node["spec"] = odd, odd
    state = read(node, pod)
    assert [job.cpu_cores for job in state.jobs] == [0]
    assert not state.nodes[0].is_usable
