"""GPUs with pods placed by claims are closed to others and opened again; answers as documented, of no real server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from cotenant.engines.device_rules import DeviceRule
from cotenant.engines.errors import EngineUnreachableError
from cotenant.engines.kubernetes.adapter import KubernetesEngine
from cotenant.engines.kubernetes.device_taints import RULES_PATH, SLICES_PATH, devices_of, make_rule, rule_name
from cotenant.engines.placement_notes import placed_note
from cotenant.engines.records import Placement
from tests.support.fake_kubernetes import FakeKubernetes, node_row, pod_row, reached, served

GIB = 2**30
PLACEMENT = Placement(
    job_id="team/a", node_id="n1", gpu_id="n1/GPU-1", slots=25, note=placed_note("n1/GPU-1", 25), memory_bytes=6 * GIB
)
RULE = f"{RULES_PATH}/cotenant-gpu-1"
Made = Callable[..., KubernetesEngine]


@pytest.fixture
def cluster() -> FakeKubernetes:
    made = FakeKubernetes()
    made.add(node_row("n1", uuids="GPU-0,GPU-1"))
    pod = pod_row("a", "memory=6GiB", scheduler="default-scheduler")
    pod["spec"]["schedulingGates"] = [{"name": "cotenant.io/gpu"}]
    pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "a-gpu"}]
    made.add(pod)
    made.objects[f"{SLICES_PATH}/n1"] = slice_of("n1", "GPU-0", "GPU-1")
    return made


@pytest.fixture
def start(cluster: FakeKubernetes) -> Iterator[Made]:
    rules = [DeviceRule(nodes="*", device="NVIDIA A10", memory_bytes=24 * GIB)]
    with served(cluster) as address, ExitStack() as stack:

        def started(**options: Any) -> KubernetesEngine:
            api = stack.enter_context(closing(reached(address)))
            return KubernetesEngine(api, rules, **{"closes_devices": True, **options})

        yield started


def slice_of(pool: str, *uuids: str, driver: str = "gpu.nvidia.com") -> dict[str, Any]:
    devices = [{"name": f"gpu-{index}", "attributes": {"uuid": {"string": uuid}}} for index, uuid in enumerate(uuids)]
    return {"kind": "ResourceSlice", "spec": {"driver": driver, "pool": {"name": pool}, "devices": devices}}


def closed(cluster: FakeKubernetes) -> list[str]:
    return sorted(path for path in cluster.objects if path.startswith(RULES_PATH))


def test_a_gpu_is_closed_before_its_pod_is_let_go_and_our_own_claims_tolerate_it(
    cluster: FakeKubernetes, start: Made
) -> None:
    start().place(PLACEMENT)
    assert cluster.objects[RULE]["spec"] == {
        "deviceSelector": {"driver": "gpu.nvidia.com", "pool": "n1", "device": "gpu-1"},
        "taint": {"key": "cotenant.io/placed", "effect": "NoSchedule"},
    }
    order = [path for method, path in cluster.requests if method in ("POST", "PATCH")]
    assert order[0] == RULES_PATH
    claim = cluster.objects["/apis/resource.k8s.io/v1/namespaces/team/resourceclaims/a-gpu"]
    [toleration] = claim["spec"]["devices"]["requests"][0]["exactly"]["tolerations"]
    assert toleration == {"key": "cotenant.io/placed", "operator": "Exists", "effect": "NoSchedule"}


def test_it_stays_closed_as_long_as_the_pod_lives_and_is_opened_by_whoever_comes_after_a_restart(
    cluster: FakeKubernetes, start: Made
) -> None:
    engine = start()
    engine.place(PLACEMENT)
    engine.release("team/a")
    engine.read()
    cluster.pod("team/a")["spec"]["nodeName"] = "n1"
    engine.read()
    assert closed(cluster) == [RULE]
    cluster.pod("team/a")["status"] = {"phase": "Succeeded"}
    assert start().read().warnings == ()
    assert closed(cluster) == []


def test_a_rule_that_somebody_removed_is_made_again_and_one_of_somebody_else_is_left_alone(
    cluster: FakeKubernetes, start: Made
) -> None:
    theirs = make_rule("GPU-0", {"device": "gpu-0"}) | {"metadata": {"name": rule_name("GPU-0"), "labels": {}}}
    cluster.objects[f"{RULES_PATH}/{rule_name('GPU-0')}"] = theirs
    engine = start()
    engine.place(PLACEMENT)
    del cluster.objects[RULE]
    engine.read()
    assert closed(cluster) == [f"{RULES_PATH}/cotenant-gpu-0", RULE]


def test_a_cluster_that_knows_no_taints_is_used_without_and_told_so_where_claims_are_held(
    cluster: FakeKubernetes, start: Made
) -> None:
    cluster.refused[f"GET {RULES_PATH}"] = (404, "the server could not find the requested resource")
    engine = start()
    assert engine.read().warnings == ()
    asked = len(cluster.requests)
    engine.read()
    assert not any("devicetaintrules" in path for _, path in cluster.requests[asked:])
    engine.place(PLACEMENT)
    [warning] = engine.read().warnings
    assert "are open to others: GET" in warning
    assert "404" in warning


def test_a_gpu_that_no_slice_names_is_said_and_keeps_no_pod_waiting(cluster: FakeKubernetes, start: Made) -> None:
    cluster.objects[f"{SLICES_PATH}/n1"] = slice_of("n1", "GPU-7")
    engine = start()
    engine.place(PLACEMENT)
    [warning] = engine.read().warnings
    assert "has a device with the uuid GPU-1" in warning


def test_whoever_only_looks_or_lacks_the_lease_closes_and_opens_nothing(cluster: FakeKubernetes, start: Made) -> None:
    start().place(PLACEMENT)
    cluster.pod("team/a")["status"] = {"phase": "Succeeded"}

    def refuse() -> None:
        raise EngineUnreachableError("another controller places pods")

    start(closes_devices=False).read()
    start(keep_lease=refuse).read()
    assert closed(cluster) == [RULE]


def test_devices_are_found_by_either_name_of_their_uuid_and_only_with_nvidias_driver() -> None:
    qualified = slice_of("n2", "GPU-2")
    qualified["spec"]["devices"][0]["attributes"] = {"gpu.nvidia.com/uuid": {"string": "GPU-2"}}
    odd = {"spec": {"driver": "gpu.nvidia.com", "devices": [{"name": 7, "attributes": {"uuid": "GPU-3"}}, "x"]}}
    found = devices_of([slice_of("n1", "GPU-1"), qualified, slice_of("n3", "GPU-4", driver="npu.example"), odd, {}])
    assert sorted(found) == ["GPU-1", "GPU-2"]
    assert found["GPU-2"]["pool"] == "n2"
