"""Pods that HAMi limits get the uuid of their GPU and are let go; as HAMi documents it, with no HAMi at hand."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from cotenant.engines.device_rules import DeviceRule
from cotenant.engines.kubernetes.adapter import KubernetesEngine
from cotenant.engines.kubernetes.hami import allocated_parts
from cotenant.engines.placement_notes import placed_note
from cotenant.engines.records import EnginePhase, Placement
from tests.support.cases import for_each
from tests.support.fake_kubernetes import FakeKubernetes, node_row, only_job, pod_row, reached, served

GIB = 2**30
PLACEMENT = Placement(
    job_id="team/a", node_id="n1", gpu_id="n1/g1", slots=25, note=placed_note("n1/g1", 25), memory_bytes=6 * GIB
)
ALLOCATED = "hami.io/vgpu-devices-allocated"


def limited(name: str = "a", *, gpus: int = 1, is_gated: bool = True, **resources: str) -> dict[str, Any]:
    row = pod_row(name, "utilization=0.4", scheduler="hami-scheduler", gpus=gpus)
    asked = {f"nvidia.com/{key.replace('_', '-')}": value for key, value in resources.items()}
    row["spec"]["containers"][0]["resources"]["requests"] |= asked
    if is_gated:
        row["spec"]["schedulingGates"] = [{"name": "cotenant.io/gpu"}]
    return row


def test_it_waits_for_us_with_its_limit_as_its_memory_and_is_let_go_with_the_uuid_of_its_gpu(
    cluster: FakeKubernetes, engine: KubernetesEngine
) -> None:
    cluster.add(limited(gpumem="6144", gpucores="30"))
    found = only_job(engine)
    assert (found.phase, found.allowed_node_ids, found.gpus) == (EnginePhase.HELD, (), 1)
    assert found.tag is not None
    assert found.tag.memory_bytes == 6 * GIB
    engine.place(PLACEMENT)
    assert cluster.pod("team/a")["metadata"]["annotations"]["nvidia.com/use-gpuuuid"] == "g1"
    engine.release("team/a")
    assert not cluster.pod("team/a")["spec"]["schedulingGates"]
    assert (only_job(engine).phase, dict(only_job(engine).held_slots)) == (EnginePhase.PLACED, {"n1/g1": 25})
    assert not any("resourceclaims" in path for _, path in cluster.requests)


def test_a_placement_that_is_taken_back_takes_the_uuid_along(cluster: FakeKubernetes, engine: KubernetesEngine) -> None:
    cluster.add(limited(gpumem="6144"))
    engine.place(PLACEMENT)
    engine.hold("team/a")
    assert "nvidia.com/use-gpuuuid" not in cluster.pod("team/a")["metadata"]["annotations"]


@for_each(
    ("resources", "reason"),
    [
        ({}, "neither a claim of their own nor nvidia.com/gpumem"),
        ({"gpumem_percentage": "50"}, "an amount that does not depend on the GPU"),
        ({"gpumem": "-5"}, "neither a claim"),
        ({"gpumem": "many"}, "neither a claim"),
    ],
)
def test_a_gated_pod_that_nothing_limits_is_placed_nowhere_and_told_why(resources: dict[str, str], reason: str) -> None:
    cluster = FakeKubernetes()
    cluster.add(node_row("n1"))
    cluster.add(limited(**resources))  # type: ignore[arg-type]  # all of them are resources
    rules = [DeviceRule(nodes="*", device="NVIDIA A10", memory_bytes=24 * GIB)]
    with served(cluster) as address, closing(reached(address)) as api:
        found = only_job(KubernetesEngine(api, rules))
    assert found.allowed_node_ids == ("",)
    assert found.tag is not None
    assert reason in found.tag.complaints[0]


def test_what_hami_gave_counts_also_where_it_is_another_gpu_than_the_planned_one(
    cluster: FakeKubernetes, engine: KubernetesEngine
) -> None:
    for name, note, given in (
        ("a", placed_note("n1/g1", 25), "g0,NVIDIA,6144,30:;"),
        ("foreign", "", "g1,NVIDIA,12288,0:;"),
    ):
        row = cluster.add(limited(name, is_gated=False, gpumem="6144"))
        row["spec"]["nodeName"] = "n1"
        row["status"] = {"phase": "Running"}
        row["metadata"]["annotations"] |= {"cotenant.io/note": note, ALLOCATED: given}
    state = engine.read()
    assert {job.job_id: dict(job.held_slots) for job in state.jobs} == {
        "team/a": {"n1/g0": 25},
        "team/foreign": {"n1/g1": 50},
    }
    assert state.warnings == ()


@for_each(
    ("text", "parts"),
    [
        ("", {}),
        ("g0,NVIDIA,6144,30:;", {"n1/g0": 25}),
        ("g0,NVIDIA,6144,30:;g0,NVIDIA,6144,30:;", {"n1/g0": 50}),
        ("g0,NVIDIA,6144,30:g1,NVIDIA,1,0:;", {"n1/g0": 25, "n1/g1": 1}),
        ("g0,NVIDIA,999999999,30:;", {"n1/g0": 100}),
        ("g0,NVIDIA,9999999999,30:;", {}),
        ("g9,NVIDIA,6144,30:;", {}),
        ("g0,NVIDIA,-1,30:;", {}),
        ("g0;g1:,,,", {}),
        ("g0," * 1_000, {}),
    ],
)
def test_the_annotation_of_hami_is_read_with_doubt(text: str, parts: dict[str, int]) -> None:
    gpus = {f"n1/g{index}": (100, 24 * GIB) for index in range(2)}
    row = {"metadata": {"annotations": {ALLOCATED: text}}}
    assert allocated_parts(row, "n1", gpus) == parts
