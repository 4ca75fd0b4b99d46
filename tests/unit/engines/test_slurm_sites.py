"""What sites have and their users ask for, in rows as Slurm 22.05 writes them: several types, features, MPS, sums."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from cotenant.engines.bridge import Bridge
from cotenant.engines.device_rules import read_device_rule
from cotenant.engines.records import EngineJob, EnginePhase, EngineState, Placement
from cotenant.engines.slurm.adapter import SlurmEngine
from cotenant.engines.slurm.features import fits_features
from cotenant.engines.slurm.gres import Gres, read_gres
from cotenant.engines.slurm.node_gpus import type_of
from cotenant.engines.slurm.reading import SlurmReading
from cotenant.v1 import scheduling_pb2
from tests.support.cases import for_each
from tests.support.fake_slurm import FakeSlurm

RECORDED = Path(__file__).parent / "recorded"
RULES = [read_device_rule(text) for text in ("x1/a100=A100:40GiB", "x1/t4=T4:16GiB", "*=V100:32GiB")]
TAG = "cotenant memory=6GiB"
GIB = 2**30


def node(name: str, gres: str, **changes: object) -> dict[str, Any]:
    row: dict[str, Any] = json.loads((RECORDED / "sinfo_22_05.json").read_text())["nodes"][0]
    return {**row, "name": name, "gres": gres, "alloc_cpus": 0, "alloc_memory": 0, **changes}


def job(number: int = 7, **changes: object) -> dict[str, Any]:
    row: dict[str, Any] = json.loads((RECORDED / "squeue_22_05.json").read_text())["jobs"][0]
    return {**row, "job_id": number, "comment": TAG, **changes}


def waiting(**changes: Any) -> dict[str, Any]:
    return job(priority=1, admin_comment="", state_reason="Resources", **changes)


def running(number: int, node_id: str, detail: str, **changes: object) -> dict[str, Any]:
    return job(number, job_state="RUNNING", nodes=node_id, gres_detail=[detail], **changes)


def read(nodes: Sequence[Mapping[str, Any]], *jobs: Mapping[str, Any]) -> EngineState:
    return SlurmReading({"nodes": [*nodes]}, {"jobs": [*jobs]}, RULES).state()


def only(row: Mapping[str, Any], *nodes: Mapping[str, Any]) -> EngineJob:
    [found] = read(nodes or [node("n1", "gpu:4")], row).jobs
    return found


@for_each(
    ("asked", "gpus"),
    [
        ({"tres_per_node": "gres:gpu:a100:2"}, 2),
        ({"tres_per_node": "gres:gpu:1", "node_count": 2}, 2),
        ({"tres_per_task": "gres:gpu:1", "tasks": 4}, 4),
        ({"tres_per_job": "gres:gpu:4", "tres_per_node": "gres:gpu:2", "node_count": 2}, 4),
        ({"tres_per_socket": "gres:gpu:2", "sockets_per_node": 2}, 4),
        ({"tres_per_node": "gres:gpu:1", "tres_req_str": "cpu=1,node=1,gres/gpu=3"}, 3),
        ({"tres_per_node": "gres:shard:3"}, 1),
        ({"tres_per_node": "gres:mps:50"}, 1),
    ],
)
def test_the_gpus_of_a_job_are_those_of_all_its_nodes_and_tasks(asked: dict[str, Any], gpus: int) -> None:
    assert only(waiting(**{"tres_req_str": "", **asked})).gpus == gpus


@for_each(
    ("changes", "cores", "memory_bytes"),
    [
        # As of a job that Slurm has looked at: only the sum has its numbers.
        ({"cpus": None, "memory_per_cpu": 100, "tres_req_str": "cpu=8,mem=1500M,node=1"}, 8, 1500 * 2**20),
        ({"cpus": 1, "memory_per_cpu": None, "tres_req_str": "cpu=1,mem=8000M,node=1"}, 1, 8000 * 2**20),
        ({"cpus": 1, "memory_per_cpu": 100, "tres_req_str": "cpu=1,mem=1.50G,node=1"}, 1, 3 * GIB // 2),
        ({"cpus": 2, "memory_per_cpu": 100, "tres_req_str": ""}, 2, 200 * 2**20),
        ({"cpus": 2, "memory_per_cpu": 100, "tres_req_str": "cpu=x,mem=-4G"}, 2, 200 * 2**20),
    ],
)
def test_cores_and_memory_are_those_of_slurms_own_sum(changes: dict[str, Any], cores: int, memory_bytes: int) -> None:
    found = only(waiting(memory_per_node=None, **changes))
    assert (found.cpu_cores, found.host_memory_bytes) == (cores, memory_bytes)


def test_memory_of_jobs_without_a_gpu_is_not_there_for_others() -> None:
    nodes = [node("n1", "gpu:2", real_memory=8000, alloc_memory=7000, cpus=16, alloc_cpus=3)]
    state = read(nodes, running(1, "n1", "gpu:1(IDX:0)", cpus=2, tres_alloc_str="cpu=2,mem=1000M"))
    assert (state.nodes[0].cpu_cores, state.nodes[0].host_memory_bytes) == (15, 2000 * 2**20)


@for_each(
    ("text", "entries"),
    [
        ("gpu:2080ti:4", [Gres("gpu", "2080ti", 4)]),
        ("gpu:3090:8(S:0-1)", [Gres("gpu", "3090", 8)]),
        ("gpu:4", [Gres("gpu", "", 4)]),
        ("gres/gpu:1g.5gb:7", [Gres("gpu", "1g.5gb", 7)]),
        ("gres:gpu:3090", [Gres("gpu", "", 3090)]),
        ("gpu:(null):2(IDX:0,3)", [Gres("gpu", "", 2, (0, 3))]),
        ("gres/gpu=2,gres/gpu:a100=2", [Gres("gpu", "", 2), Gres("gpu", "a100", 2)]),
        ("shard:g0:2(2/8,0/8),gpu:1", [Gres("shard", "g0", 2, (0,)), Gres("gpu", "", 1)]),
        ("nogpu:4,gpux:2", []),
    ],
)
def test_every_name_of_a_type_is_told_from_a_count(text: str, entries: list[Gres]) -> None:
    assert read_gres(text) == entries


def test_what_slurm_24_11_wrote_is_understood() -> None:
    nodes, jobs = (json.loads((RECORDED / f"{name}_24_11.json").read_text()) for name in ("scontrol_nodes", "squeue"))
    state = SlurmReading(nodes, jobs, [read_device_rule("p1=A10:24GiB"), *RULES]).state()
    assert [*state.gpus] == ["a1/0", "a1/1", "a1/2", "a1/3", "p1/g0", "p1/g1"] + [
        f"x1/{name}" for name in ("a100:0", "a100:1", "t4:2", "t4:3")
    ]
    held = {job.job_id: (job.phase.value, dict(job.held_slots), job.obstacle[:11]) for job in state.jobs}
    assert held == {
        "1": ("running", {"a1/0": 0}, ""),
        "2": ("running", {"p1/g0": 2}, ""),
        "3": ("running", {"x1/a100:0": 0, "x1/a100:1": 0}, ""),
        "4": ("held", {}, "--exclusive"),
        "5_3": ("held", {}, ""),
        "5_1": ("running", {"a1/2": 0}, ""),
        "9": ("waiting", {}, ""),
    }
    [constrained] = [job for job in state.jobs if job.job_id == "9"]
    assert (constrained.gpus, constrained.excluded_node_ids) == (2, ("p1", "x1"))
    assert {node.node_id: node.is_usable for node in state.nodes} == {"a1": True, "p1": True, "x1": True}
    assert state.warnings == ()


def test_a_job_on_mps_holds_its_gpu() -> None:
    state = read([node("m1", "gpu:l4:2,mps:l4:200")], running(1, "m1", "mps:50(IDX:1)"))
    assert [dict(one.held_slots) for one in state.jobs] == [{"m1/1": 0}]


@for_each(
    ("changes", "excluded"),
    [
        ({"features": "volta"}, ("a1", "r1")),
        ({"features": "ampere&big"}, ("v1", "r1")),
        ({"features": "ampere&volta"}, ("a1", "v1", "r1")),
        ({"features": "[ampere|volta]"}, ("r1",)),
        ({"features": "", "tres_per_node": "gres:gpu:a100:1"}, ("v1", "r1")),
        ({"features": "", "tres_per_node": "gres:shard:1"}, ("a1", "r1")),
        ({"features": "", "tres_per_node": "gres:gpu:1"}, ("r1",)),
        ({"features": "", "resv_name": "course"}, ("a1", "v1")),
        ({"features": "volta", "excluded_nodes": "a1"}, ("a1", "r1")),
    ],
)
def test_a_job_is_kept_off_nodes_without_what_it_asks_for(changes: dict[str, Any], excluded: tuple[str, ...]) -> None:
    nodes = [
        node("a1", "gpu:a100:4", active_features="ampere,big"),
        node("v1", "gpu:v100:2,shard:v100:8", active_features="volta"),
        node("r1", "gpu:2", state_flags=["RESERVED"]),
    ]
    assert only(waiting(**changes), *nodes).excluded_node_ids == excluded


def test_a_reservation_is_another_one_where_slurm_names_both() -> None:
    nodes = [node(name, "gpu:2", state=["IDLE", "RESERVED"], reservation=name) for name in ("course", "maint")]
    assert only(waiting(resv_name="course"), *nodes).excluded_node_ids == ("maint",)
    assert only(waiting(resv_name="night,course"), *nodes).excluded_node_ids == ("maint",)


@for_each("constraint", ["ampere*2&volta", "(a|b)&c", "a|b&c", "[a&b]", "a b", "&", "a" * 2_000])
def test_a_constraint_that_is_not_understood_places_a_job_nowhere(constraint: str) -> None:
    with pytest.raises(ValueError, match="constraint"):
        fits_features(constraint, ["ampere"])
    state = read([node("n1", "gpu:2")], waiting(features=constraint))
    assert state.jobs[0].allowed_node_ids == ("",)
    assert "it is placed nowhere" in state.warnings[0]


def test_gpus_of_several_types_on_a_node_are_told_apart() -> None:
    nodes = [node("x1", "gpu:a100:2,gpu:t4:1")]
    state = read(nodes, running(1, "x1", "gpu:a100:0(IDX:),gpu:t4:1(IDX:2)"), waiting(tres_per_node="gres:gpu:a100:1"))
    assert [(gpu.gpu_id, gpu.device) for gpu in state.gpus.values()] == [
        ("x1/a100:0", "A100"),
        ("x1/a100:1", "A100"),
        ("x1/t4:2", "T4"),
    ]
    assert [dict(one.held_slots) for one in state.jobs] == [{"x1/t4:2": 0}, {}]
    assert state.jobs[1].allowed_devices == ("A100",)


def test_one_rule_for_gpus_of_several_types_is_refused_with_the_remedy() -> None:
    state = read([node("y1", "gpu:a100:2,gpu:t4:1")])
    assert state.nodes == ()
    assert any("--gpu 'y1/t4=DEVICE:MEMORY'" in warning for warning in state.warnings)


def test_one_gpu_each_of_two_types_that_are_numbers_are_told_apart() -> None:
    rules = [read_device_rule(text) for text in ("x1/3090=RTX 3090:24GiB", "x1/4090=RTX 4090:24GiB")]
    state = SlurmReading({"nodes": [node("x1", "gpu:3090:1,gpu:4090:1")]}, {"jobs": []}, rules).state()
    assert [(type_of(gpu_id), gpu.device) for gpu_id, gpu in state.gpus.items()] == [
        ("3090", "RTX 3090"),
        ("4090", "RTX 4090"),
    ]


def test_a_single_gpu_whose_type_is_a_number_keeps_its_shards_and_a_type_without_gpus_changes_nothing() -> None:
    state = read([node("n1", "gpu:3090:1,shard:3090:8"), node("p1", "gpu:g0:1,gpu:g1:0")])
    assert [(gpu.gpu_id, gpu.slots) for gpu in state.gpus.values()] == [("n1/3090", 8), ("p1/g0", 0)]


def test_an_order_for_one_of_several_types_names_its_type() -> None:
    slurm = site([], job(7))
    SlurmEngine(slurm, RULES).place(Placement(job_id="7", node_id="x1", gpu_id="x1/t4:2", slots=0, note="cotenant"))
    assert slurm.jobs["7"]["tres_per_node"] == "gres:gpu:t4:1"


def site(nodes: list[dict[str, Any]], *jobs: dict[str, Any]) -> FakeSlurm:
    slurm = FakeSlurm()
    slurm.nodes, slurm.jobs = nodes, {str(row["job_id"]): row for row in jobs}
    return slurm


class NewerSlurm(FakeSlurm):
    """Writes as data_parser v0.0.40 and later: numbers as objects, states as lists, and nodes by scontrol only."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def query(self, command: Sequence[str]) -> Mapping[str, Any]:
        self.asked.append(command[0])
        if command[0] == "sinfo":
            return {"sinfo": [{"node": {"state": ["IDLE"]}, "nodes": {"nodes": ["n1"]}}], "errors": []}
        if command[0] == "scontrol":
            return {"nodes": [row | {"state": [row["state"].upper()]} for row in self.nodes], "errors": []}
        return {"jobs": [{name: _newer(name, value) for name, value in row.items()} for row in self.jobs.values()]}


def _newer(name: str, value: object) -> object:
    if name == "job_state":
        return [value]
    is_number = isinstance(value, int) and not isinstance(value, bool) and name != "job_id"
    return {"set": True, "infinite": False, "number": value} if is_number else value


def test_a_newer_slurm_is_asked_for_its_nodes_by_the_command_that_lists_them() -> None:
    slurm = NewerSlurm()
    slurm.nodes = [node("n1", "gpu:a100:2(S:0-1)")]
    slurm.jobs = {
        "1": running(1, "n1", "gpu:a100:1(IDX:1)"),
        "2": waiting(tres_per_node="gres/gpu:a100:1"),
        "3": job(3, exclusive=["true"], shared=[]),
    }
    engine = SlurmEngine(slurm, RULES)
    state = engine.read()
    assert [(one.job_id, one.phase, dict(one.held_slots)) for one in state.jobs] == [
        ("1", EnginePhase.RUNNING, {"n1/1": 0}),
        ("7", EnginePhase.WAITING, {}),
        ("3", EnginePhase.HELD, {}),
    ]
    assert state.jobs[2].obstacle.startswith("--exclusive")
    assert [*state.gpus] == ["n1/0", "n1/1"]
    assert state.nodes[0].is_usable
    engine.read()
    assert slurm.asked.count("sinfo") == 1


def test_a_slurm_that_becomes_newer_while_the_bridge_runs_is_read_on() -> None:
    older, newer = site([node("n1", "gpu:2")]), NewerSlurm()
    newer.nodes = older.nodes
    engine = SlurmEngine(older, RULES)
    assert len(engine.read().gpus) == 2
    older.query = newer.query  # type: ignore[method-assign]
    assert len(engine.read().gpus) == 2


def placed(number: int, gpu_id: str, **changes: Any) -> dict[str, Any]:
    note = f"cotenant placed {gpu_id} whole: alone"
    return job(
        number,
        **{"admin_comment": note, "tres_per_node": "gres:gpu:1", "priority": 1, "state_reason": "None", **changes},
    )


def disagreements(slurm: FakeSlurm) -> list[str]:
    def ask(request: scheduling_pb2.DecideRequest) -> scheduling_pb2.DecideResponse:
        raise AssertionError(f"no job waits to be decided about: {request}")

    bridge = Bridge(SlurmEngine(slurm, RULES), ask, policy="horus", places=True)
    return bridge.run_round(now_ms=1).disagreements


def test_a_job_that_slurm_gave_another_gpu_of_its_node_is_where_it_was_planned() -> None:
    started = placed(1, "n1/1", job_state="RUNNING", nodes="n1", gres_detail=["gpu:1(IDX:0)"])
    slurm = site([node("n1", "gpu:3")], started, placed(2, "n1/0"))
    assert disagreements(slurm) == []
    jobs = SlurmEngine(slurm, RULES).read().jobs
    assert [(one.phase, dict(one.held_slots)) for one in jobs] == [
        (EnginePhase.RUNNING, {"n1/0": 0}),
        (EnginePhase.PLACED, {"n1/1": 0}),
    ]


@for_each(
    ("gres", "started", "promised", "settled"),
    [
        ("gpu:4", "gpu:1(IDX:2)", ["n1/0", "n1/1"], ["n1/0", "n1/1"]),
        ("gpu:4", "gpu:2(IDX:0-1)", ["n1/0", "n1/1"], ["n1/2", "n1/3"]),
        ("gpu:4", "gpu:1(IDX:0)", ["n1/0", "n1/0"], ["n1/1", "n1/2"]),
        # By its name each is ordered as itself, and Slurm does not choose: the job waits for it.
        ("gpu:g0:1,gpu:g1:1", "gpu:g0:1(IDX:0)", ["n1/g0"], ["n1/g0"]),
    ],
)
def test_promises_move_off_what_slurm_gave_to_others_each_to_a_gpu_of_its_own(
    gres: str, started: str, promised: list[str], settled: list[str]
) -> None:
    asked = "gres:gpu:1" if gres[4].isdigit() else f"gres:gpu:{promised[0][3:]}:1"
    waits = [placed(2 + place, gpu_id, tres_per_node=asked) for place, gpu_id in enumerate(promised)]
    jobs = read([node("n1", gres)], running(1, "n1", started), *waits).jobs
    assert [[*one.held_slots] for one in jobs if one.phase is EnginePhase.PLACED] == [[one] for one in settled]


def test_a_job_that_slurm_started_on_another_node_is_a_disagreement() -> None:
    started = placed(1, "n1/1", job_state="RUNNING", nodes="n2", gres_detail=["gpu:1(IDX:1)"])
    assert disagreements(site([node("n1", "gpu:2"), node("n2", "gpu:2")], started)) == ["1"]
