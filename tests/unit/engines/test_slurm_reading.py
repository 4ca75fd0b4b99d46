"""What Slurm 22.05 really wrote, read and answered; and what other sites and versions may write."""

from __future__ import annotations

import copy
import functools
import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from cotenant.engines.device_rules import DeviceRule
from cotenant.engines.errors import EngineDeniedError, EngineRefusedError, EngineUnreachableError
from cotenant.engines.records import EngineJob, EnginePhase, EngineState, Placement
from cotenant.engines.slurm.adapter import SlurmEngine
from cotenant.engines.slurm.commands import InstalledCommands
from cotenant.engines.slurm.reading import SlurmReading
from cotenant.errors import InputError
from tests.support.cases import for_each

RECORDED = Path(__file__).parent / "recorded"
GIB = 2**30
DEVICES = [DeviceRule(nodes="n*", device="NVIDIA A10", memory_bytes=24 * GIB)]


def recorded(name: str) -> dict[str, Any]:
    return copy.deepcopy(_recorded(name))


@functools.cache
def _recorded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RECORDED / f"{name}_22_05.json").read_text())
    return found


def read(
    jobs: Sequence[Mapping[str, Any]] | None = None, nodes: Sequence[Mapping[str, Any]] | None = None
) -> EngineState:
    rows = {"jobs": jobs} if jobs is not None else recorded("squeue")
    return SlurmReading({"nodes": nodes} if nodes is not None else recorded("sinfo"), rows, DEVICES).state()


def job(job_id: str, **changes: object) -> dict[str, Any]:
    row = next(row for row in recorded("squeue")["jobs"] if str(row["job_id"]) == job_id)
    return {**row, **changes}


def only(row: Mapping[str, Any]) -> EngineJob | None:
    return next(iter(read([row]).jobs), None)


def test_what_slurm_wrote_is_understood() -> None:
    state = read()
    assert [[gpu.gpu_id for gpu in node.gpus] for node in state.nodes] == [["n1/g0", "n1/g1"], ["n2/g0", "n2/g1"]]
    assert {gpu.slots for gpu in state.gpus.values()} == {4}
    assert [(one.job_id, one.phase, dict(one.held_slots)) for one in state.jobs] == [
        ("1", EnginePhase.HELD, {}),
        ("2", EnginePhase.RUNNING, {"n1/g0": 0}),
        ("3", EnginePhase.RUNNING, {"n1/g1": 2}),
        ("4", EnginePhase.RUNNING, {"n2/g0": 0}),
    ]
    waiting = state.jobs[0]
    assert waiting.tag is not None
    assert (waiting.tag.memory_bytes, waiting.queues, waiting.cpu_cores, waiting.host_memory_bytes) == (
        6 * GIB,
        ("gpu",),
        1,
        100 * 2**20,
    )
    assert state.warnings == ()


@for_each(
    ("changes", "phase"),
    [
        ({}, EnginePhase.HELD),
        ({"admin_comment": ""}, EnginePhase.WAITING),
        ({"priority": 5, "state_reason": "Resources"}, EnginePhase.WAITING),
        ({"tres_per_node": "gres:shard:g1:1", "admin_comment": "cotenant placed n1/g1 1: x"}, EnginePhase.INTERRUPTED),
        (
            {"tres_per_node": "gres:shard:g1:1", "admin_comment": "cotenant placed n1/g1 1: x", "priority": 9},
            EnginePhase.PLACED,
        ),
        # A gres that is not the one of our note is somebody else's.
        ({"tres_per_node": "gres:shard:g0:1", "admin_comment": "cotenant placed n1/g1 1: x"}, EnginePhase.WAITING),
        ({"tres_per_node": "gres:gpu:1", "admin_comment": "cotenant: x"}, EnginePhase.WAITING),
        ({"tres_per_node": "gres:shard:g1:1", "admin_comment": "cotenant placed n9/g1 1: x"}, EnginePhase.WAITING),
        ({"job_state": ["PENDING"], "priority": {"set": True, "infinite": False, "number": 0}}, EnginePhase.HELD),
        ({"comment": "mine"}, None),
        ({"job_state": "COMPLETED"}, None),
    ],
)
def test_the_engine_itself_says_where_a_job_is(changes: dict[str, object], phase: EnginePhase | None) -> None:
    found = only(job("1", **changes))
    assert (found.phase if found is not None else None) is phase


def test_a_running_job_whose_gpu_is_not_identified_closes_its_node() -> None:
    state = read([job("2", gres_detail=["gpu:h100:1(IDX:7)"])])
    assert dict(state.jobs[0].held_slots) == {"n1/g0": 0, "n1/g1": 0}
    assert "no GPU known" in state.warnings[0]


def test_sites_without_one_type_per_gpu_have_gpus_by_index_that_are_never_shared() -> None:
    nodes = recorded("sinfo")["nodes"]
    nodes[0]["gres"] = "gpu:a100:4,shard:16"
    state = read([job("2", gres_detail=["gpu:a100:2(IDX:1-2)"])], nodes[:1])
    assert [(gpu.gpu_id, gpu.slots) for gpu in state.nodes[0].gpus] == [(f"n1/{index}", 0) for index in range(4)]
    assert dict(state.jobs[0].held_slots) == {"n1/1": 0, "n1/2": 0}


@for_each(
    ("changes", "is_usable"),
    [
        ({}, True),
        ({"state": "idle"}, True),
        ({"state_flags": ["DRAIN"]}, False),
        ({"state": "down"}, False),
        ({"state": "unknown"}, False),
        ({"state": ["IDLE", "MAINTENANCE"]}, False),
        ({"state": ["MIXED"]}, True),
        ({"state_flags": ["NOT_RESPONDING"]}, False),
    ],
)
def test_only_nodes_that_run_jobs_take_one(changes: dict[str, object], is_usable: bool) -> None:
    [row, *_] = recorded("sinfo")["nodes"]
    assert read([], [{**row, **changes}]).nodes[0].is_usable is is_usable


def test_what_jobs_without_gpus_use_of_a_node_is_not_offered() -> None:
    [row, *_] = recorded("sinfo")["nodes"]
    assert read([job("2")], [{**row, "alloc_cpus": 13}]).nodes[0].cpu_cores == 16 - 12


def test_nodes_without_a_device_rule_take_no_job_and_are_named() -> None:
    state = SlurmReading(recorded("sinfo"), {"jobs": []}, [DeviceRule(nodes="n1", device="A", memory_bytes=1)]).state()
    assert [node.node_id for node in state.nodes] == ["n1"]
    assert state.warnings == ("node n2 has GPUs and no --gpu names their type; no job is placed there",)


def test_partitions_and_wished_nodes_become_places() -> None:
    found = only(job("1", partition="gpu,other", excluded_nodes="n[2-3]"))
    assert found is not None
    assert (found.allowed_node_ids, found.excluded_node_ids) == (("n1", "n2"), ("n2", "n3"))
    wished = only(job("1", required_nodes="n[1"))
    assert wished is not None
    assert wished.allowed_node_ids == ("",)


@pytest.mark.parametrize("document", [{}, {"jobs": None}, {"jobs": [None, 7, {}]}, {"jobs": [{"job_state": {}}]}])
def test_odd_tables_are_no_jobs(document: dict[str, Any]) -> None:
    assert SlurmReading({"nodes": "none"}, document, DEVICES).state() == EngineState()


def test_mutated_rows_never_break_the_reading() -> None:
    odd = [None, -1, 2**70, float("nan"), "", "x" * 10_000, [], {}, [None], {"number": "x"}, "n[1-5", True]
    rows = [*recorded("squeue")["jobs"], *recorded("sinfo")["nodes"]]
    squeue, sinfo = recorded("squeue"), recorded("sinfo")
    for number, row in enumerate(rows):
        for name, value in itertools.product(row, odd):
            changed = [row | {name: value}]
            jobs, nodes = ({"jobs": changed}, sinfo) if number < 4 else (squeue, {"nodes": changed})
            SlurmReading(nodes, jobs, DEVICES).state()


class RecordingCommands:
    """Answers with what was recorded, and notes orders."""

    def __init__(self) -> None:
        self.orders: list[list[str]] = []

    def query(self, command: Sequence[str]) -> Mapping[str, Any]:
        return recorded(command[0])

    def order(self, command: Sequence[str]) -> None:
        self.orders.append([*command])


def test_a_placement_is_one_order_and_its_release_another() -> None:
    commands = RecordingCommands()
    engine = SlurmEngine(commands, DEVICES)
    engine.place(Placement(job_id="1", node_id="n1", gpu_id="n1/g1", slots=2, note="cotenant placed\n n1/g1 2"))
    engine.place(Placement(job_id="1", node_id="n1", gpu_id="n1/g1", slots=0, note=""))
    engine.place(Placement(job_id="1", node_id="n1", gpu_id="n1/3", slots=0, note=""))
    engine.release("1")
    assert [order[3:-1] for order in commands.orders[:3]] == [
        ["ReqNodeList=n1", "Gres=shard:g1:2"],
        ["ReqNodeList=n1", "Gres=gpu:g1:1"],
        ["ReqNodeList=n1", "Gres=gpu:1"],
    ]
    assert commands.orders[0][-1] == "AdminComment=cotenant placed n1/g1 2"
    assert commands.orders[3] == ["scontrol", "release", "1"]


@for_each("job_id", ["1,2", "1_[0-9]", "", "1 AdminComment=x", "-1"])
def test_an_order_is_about_one_job(job_id: str) -> None:
    commands = RecordingCommands()
    with pytest.raises(EngineRefusedError):
        SlurmEngine(commands, DEVICES).annotate(job_id, "x")
    assert commands.orders == []


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        (["sh", "-c", "echo no"], "wrote no JSON object"),
        (["sh", "-c", "echo '[1]'"], "wrote no JSON object"),
        (["sh", "-c", "echo unable to contact slurm controller >&2; exit 1"], "unable to contact slurm controller"),
        (["sleep", "30"], "did not answer within 0.2 s"),
    ],
)
def test_an_engine_that_does_not_answer_is_named_with_the_remedy(
    script: list[str], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if script[0] == "sleep":
        monkeypatch.setattr("cotenant.engines.slurm.commands.TIMEOUT_S", 0.2)
    with pytest.raises(EngineUnreachableError, match=complaint) as caught:
        InstalledCommands().query(script)
    assert caught.value.remedy
    assert not isinstance(caught.value, EngineDeniedError)


@pytest.mark.parametrize("command", ["no-such-command-of-slurm", str(RECORDED / "squeue_22_05.json")])
def test_a_command_that_is_not_there_or_may_not_be_run_is_a_fault_of_this_machine(command: str) -> None:
    for run in (InstalledCommands().query, InstalledCommands().order):
        with pytest.raises(InputError, match="is not installed here") as caught:
            run([command])
        assert "client commands" in caught.value.remedy


@pytest.mark.parametrize("run", [InstalledCommands().query, InstalledCommands().order])
def test_a_command_that_the_machine_cannot_start_now_is_asked_again(
    run: Callable[[Sequence[str]], object], tmp_path: Path
) -> None:
    program = tmp_path / "squeue"
    program.write_bytes(b"\x7fELF")
    program.chmod(0o755)
    with pytest.raises(EngineUnreachableError, match="could not be started") as caught:
        run([str(program)])
    assert "ulimit" in caught.value.remedy


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("scancel: error: Unable to contact slurm controller (connect failure)", EngineUnreachableError),
        ("scancel: fatal: Could not establish a configuration source", EngineUnreachableError),
        ("scancel: error: Kill job error on job id 7: Invalid job id specified", EngineRefusedError),
        ("scontrol: error: Access/permission denied", EngineRefusedError),
    ],
)
def test_an_order_that_nobody_heard_is_told_from_a_refused_one(said: str, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=re.escape(said)) as caught:
        InstalledCommands().order(["sh", "-c", f"echo '{said}' >&2; exit 1"])
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    "said",
    [
        "slurm_load_jobs error: Access/permission denied",
        "slurm_load_jobs error: Protocol authentication error",
        "error: Invalid authentication credential",
    ],
)
@pytest.mark.parametrize("form", ["echo '{}' >&2; exit 1", """echo '{{"errors": [{{"error": "{}"}}]}}'"""])
def test_a_slurm_that_lets_us_not_in_is_told_from_one_that_does_not_answer(said: str, form: str) -> None:
    with pytest.raises(EngineDeniedError, match=said) as caught:
        InstalledCommands().query(["sh", "-c", form.format(said)])
    assert "munge" in caught.value.remedy
