"""Pods that our gate holds get a claim on one device and are let go; by answers as documented, of no real server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cotenant.engines.errors import EngineRefusedError
from cotenant.engines.kubernetes.adapter import KubernetesEngine
from cotenant.engines.placement_notes import placed_note
from cotenant.engines.records import EnginePhase, Placement
from tests.support.fake_kubernetes import FakeKubernetes, only_job, pod_row

GIB = 2**30
CLAIM = "/apis/resource.k8s.io/v1/namespaces/team/resourceclaims/train-gpu"
PLACEMENT = Placement(
    job_id="team/a", node_id="n1", gpu_id="n1/g1", slots=25, note=placed_note("n1/g1", 25), memory_bytes=6 * GIB
)


@pytest.fixture
def cluster(cluster: FakeKubernetes) -> FakeKubernetes:
    cluster.add(gated())
    return cluster


def gated(*, claim: str = "train-gpu", gates: tuple[str, ...] = ("cotenant.io/gpu",)) -> dict[str, Any]:
    row = pod_row("a", "memory=6GiB", scheduler="default-scheduler")
    row["spec"]["schedulingGates"] = [{"name": name} for name in gates]
    row["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": claim}]
    return row


def test_it_is_held_claimed_and_let_go_for_kube_scheduler_to_allocate(
    cluster: FakeKubernetes, engine: KubernetesEngine
) -> None:
    assert (only_job(engine).phase, only_job(engine).allowed_node_ids) == (EnginePhase.HELD, ())
    engine.place(PLACEMENT)
    [request] = cluster.objects[CLAIM]["spec"]["devices"]["requests"]
    assert request["exactly"]["selectors"][0]["cel"]["expression"] == (
        'device.attributes["gpu.nvidia.com"].uuid == "g1" && device.allowMultipleAllocations == true'
    )
    assert request["exactly"]["capacity"] == {"requests": {"memory": str(6 * GIB)}}
    assert only_job(engine).phase is EnginePhase.INTERRUPTED
    engine.release("team/a")
    assert not cluster.pod("team/a")["spec"]["schedulingGates"]
    assert "nodeName" not in cluster.pod("team/a")["spec"]
    assert (only_job(engine).phase, dict(only_job(engine).held_slots)) == (EnginePhase.PLACED, {"n1/g1": 25})


def test_a_claim_for_a_whole_gpu_takes_one_that_nobody_shares_as_well(
    cluster: FakeKubernetes, engine: KubernetesEngine
) -> None:
    engine.place(replace(PLACEMENT, slots=0, memory_bytes=0))
    [request] = cluster.objects[CLAIM]["spec"]["devices"]["requests"]
    assert request["exactly"]["selectors"][0]["cel"]["expression"] == 'device.attributes["gpu.nvidia.com"].uuid == "g1"'
    assert "capacity" not in request["exactly"]


def test_a_claim_of_an_earlier_plan_gives_way_and_one_of_somebody_else_does_not(
    cluster: FakeKubernetes, engine: KubernetesEngine
) -> None:
    engine.place(PLACEMENT)
    engine.place(PLACEMENT)
    cluster.objects[CLAIM]["metadata"]["labels"] = {}
    with pytest.raises(EngineRefusedError, match="already exists"):
        engine.place(PLACEMENT)


@pytest.mark.parametrize("gates", [("other",), ("cotenant.io/gpu", "other")])
def test_a_pod_that_another_gate_holds_too_is_left_alone(
    cluster: FakeKubernetes, engine: KubernetesEngine, gates: tuple[str, ...]
) -> None:
    cluster.add(gated(gates=gates))
    assert engine.read().jobs == ()
    with pytest.raises(EngineRefusedError):
        engine.place(PLACEMENT)


@pytest.mark.parametrize("claim", ["", "../../../pods/b", "A"])
def test_a_claim_without_a_proper_name_is_placed_nowhere(
    cluster: FakeKubernetes, engine: KubernetesEngine, claim: str
) -> None:
    cluster.add(gated(claim=claim))
    assert only_job(engine).allowed_node_ids == ("",)


def test_a_name_that_could_change_the_expression_is_refused(engine: KubernetesEngine) -> None:
    odd = Placement(job_id="team/a", node_id="n1", gpu_id='n1/g"||true', slots=0, note="x")
    with pytest.raises(EngineRefusedError, match="no uuid"):
        engine.place(odd)
