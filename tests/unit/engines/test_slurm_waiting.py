"""Held jobs of Slurm of which a state says more: tasks of arrays, jobs that may not start yet, those held by others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cotenant.engines.bridge import Bridge, RoundReport
from cotenant.engines.device_rules import DeviceRule
from cotenant.engines.errors import EngineUnreachableError
from cotenant.engines.records import EngineJob, EnginePhase
from cotenant.engines.slurm.adapter import SlurmEngine
from cotenant.engines.slurm.commands import InstalledCommands
from cotenant.engines.slurm.reading import SlurmReading
from cotenant.engines.slurm.waiting import TASKS_MAX, JobsByName, tasks_of
from cotenant.v1 import scheduling_pb2
from scheduler_service.grpc_api.snapshots.decide import decide
from tests.support.cases import for_each
from tests.support.fake_slurm import FakeSlurm

DEVICES = [DeviceRule(nodes="*", device="NVIDIA A10", memory_bytes=24 * 2**30)]
HEAVY = "cotenant memory=6GiB utilization=0.9 slowdown=0.9 max_slowdown=0.1"
PLACED = {"tres_per_node": "gres:shard:g1:1", "admin_comment": "cotenant placed n1/g1 1: x"}


def run_round(slurm: FakeSlurm, *, now_ms: int = 1_000, asked: list[str] | None = None) -> RoundReport:
    def ask(request: scheduling_pb2.DecideRequest) -> scheduling_pb2.DecideResponse:
        if asked is not None:
            asked.extend(row.job.job_id for row in request.snapshot.pending)
        return asyncio.run(decide(request, predictor=None, seconds_left=60))

    return Bridge(SlurmEngine(slurm, DEVICES), ask, policy="horus", places=True).run_round(now_ms=now_ms)


def slurm_with(*jobs: Mapping[str, Any]) -> FakeSlurm:
    """A Slurm with held jobs 1, 2, ... in which some fields are otherwise."""
    slurm = FakeSlurm()
    for number, changes in enumerate(jobs, start=1):
        slurm.submit(str(number), HEAVY)
        slurm.jobs[str(number)] |= changes
    return slurm


def read(slurm: FakeSlurm) -> list[EngineJob]:
    return list(SlurmEngine(slurm, DEVICES).read().jobs)


@for_each(
    ("text", "tasks"),
    [
        ("0-3", ("0", "1", "2", "3")),
        ("2-7%2", ("2", "3", "4", "5", "6", "7")),
        ("1,5,9-13:2", ("1", "5", "9", "11", "13")),
        ("[0,4-5%7]", ("0", "4", "5")),
        ("0-2,7,...", ("0", "1", "2", "7")),
        ("", ("8",)),
        ("x-y,,-", ()),
    ],
)
def test_tasks_that_wait_together_are_named_one_by_one(text: str, tasks: tuple[str, ...]) -> None:
    assert tasks_of({"array_job_id": 4, "array_task_id": 8, "array_task_string": text}) == tasks


def test_no_more_tasks_are_looked_at_than_a_round_decides_about() -> None:
    assert len(tasks_of({"array_job_id": 4, "array_task_string": "0-4000000"})) == TASKS_MAX
    assert tasks_of({"array_job_id": 0, "array_task_string": "0-3"}) == ()


def test_every_task_of_an_array_gets_a_gpu_of_its_own() -> None:
    slurm = slurm_with({"array_job_id": 1, "array_task_string": "0,1,2,3,4"})
    assert run_round(slurm).placed == ["1_0", "1_1", "1_2", "1_3"]
    held = {job.job_id: [*job.held_slots] for job in read(slurm)}
    assert held == {"1_0": ["n1/g0"], "1_1": ["n1/g1"], "1_2": ["n2/g0"], "1_3": ["n2/g1"], "1_4": []}
    [line] = run_round(slurm).lines
    assert line.startswith("job 1_4: ")
    assert line.endswith("[SLOWDOWN_TOO_HIGH]")
    assert run_round(slurm).lines == []


def test_no_more_tasks_are_placed_than_may_run_at_once() -> None:
    running = {"array_job_id": 9, "array_task_id": 0, "job_state": "RUNNING", "nodes": "n1", "array_max_tasks": 2}
    slurm = slurm_with(
        running | {"gres_detail": ["shard:g0:1(IDX:0)"], "priority": 1},
        {"array_job_id": 9, "array_task_string": "1-5%2", "array_max_tasks": 2},
    )
    snapshot_ids: list[str] = []
    run_round(slurm, asked=snapshot_ids)
    # The others could not start whatever is free.
    assert snapshot_ids == ["9_1", "9_2"]
    jobs = {job.job_id: job for job in read(slurm)}
    assert {(job.array_id, job.array_running_max) for job in jobs.values()} == {("9", 2)}


def test_one_waiting_task_of_an_array_says_why_and_the_others_stay_one_row() -> None:
    together = {"array_job_id": 9, "array_task_string": "1-3"}
    assert [job.takes_notes for job in read(slurm_with(together))] == [True, False, False]
    apart = {"array_job_id": 9, "array_task_id": 0}
    assert [job.takes_notes for job in read(slurm_with(apart, together))] == [True, False, False, False]


@for_each(
    ("dependency", "awaits"),
    [
        ("", False),
        ("afterok:1(unfulfilled)", True),
        ("afterany:2(unfulfilled)", False),
        ("afterok:1(unfulfilled),afterok:2(unfulfilled)", True),
        ("afterok:1(unfulfilled)?afterok:2(unfulfilled)", False),
        ("after:1(unfulfilled)", False),
        ("after:3+5(unfulfilled)", True),
        ("afterok:77(unfulfilled)", False),
        ("afterany:9_*(unfulfilled)", True),
        ("afterany:9_4(unfulfilled)", False),
        ("aftercorr:9_5(unfulfilled)", True),
        ("singleton(unfulfilled)", True),
        ("what is this", False),
    ],
)
def test_slurm_does_not_look_at_what_a_held_job_depends_on(dependency: str, awaits: bool) -> None:
    rows = [
        {"job_id": 1, "job_state": "RUNNING", "name": "other"},
        {"job_id": 2, "job_state": "FAILED", "name": "mine"},
        {"job_id": 3, "job_state": "PENDING", "name": "mine"},
        {"job_id": 12, "array_job_id": 9, "array_task_id": 4, "job_state": "COMPLETED"},
        {"job_id": 9, "array_job_id": 9, "array_task_string": "5-6", "job_state": "PENDING"},
        {"job_id": 20, "job_state": "PENDING", "name": "mine", "dependency": dependency},
    ]
    assert JobsByName(rows).awaits(rows[-1]) is awaits


@for_each(
    ("changes", "words"),
    [
        ({"state_reason": "JobHeldAdmin"}, ("operator", "scontrol uhold 1")),
        ({"het_job_id": 1}, ("heterogeneous", "scontrol release 1")),
        ({"node_count": 2}, ("several nodes", "scontrol release 1")),
        ({"node_count": {"set": True, "number": 2}}, ("several nodes",)),
        ({"shared": "none"}, ("--exclusive", "--gres")),
        ({"shared": ["none"]}, ("--exclusive",)),
        ({"dependency": "singleton(unfulfilled)", "job_id": 3}, ("depends",)),
    ],
)
def test_a_job_that_cannot_be_placed_is_told_so_once_and_gets_no_gpu(
    changes: dict[str, Any], words: tuple[str, ...]
) -> None:
    slurm, asked = slurm_with(changes), list[str]()
    slurm.jobs["2"] = {
        **slurm.jobs["1"],
        "job_id": 2,
        "comment": "",
        "state_reason": "None",
        "priority": 1,
        "shared": None,
    }
    if "job_id" in changes:
        slurm.jobs["3"] = slurm.jobs.pop("1")
    report = run_round(slurm, asked=asked)
    assert (asked, report.placed) == ([], [])
    [note] = [row["admin_comment"] for row in slurm.jobs.values() if row["comment"]]
    assert note.startswith("cotenant: waits: ")
    assert all(word in note for word in words)
    assert run_round(slurm).lines == []


def test_a_job_that_begins_later_keeps_no_gpu_until_then() -> None:
    slurm = slurm_with({"eligible_time": 3_600})
    assert run_round(slurm, now_ms=1_000).placed == []
    assert slurm.jobs["1"]["admin_comment"] == "cotenant: The job asks not to start within the next 1h. [NOT_BEFORE]"
    assert run_round(slurm, now_ms=3_600_001).placed == ["1"]


@for_each(
    ("changes", "phase", "held"),
    [
        ({}, EnginePhase.INTERRUPTED, ["n1/g1"]),
        ({"accrue_time": 1_700_000_000}, EnginePhase.PLACED, ["n1/g1"]),
        ({"state_reason": "JobHeldAdmin"}, EnginePhase.PLACED, ["n1/g1"]),
        ({"state_reason": "DependencyNeverSatisfied", "priority": 7}, EnginePhase.WAITING, []),
    ],
)
def test_a_placed_job_that_others_hold_is_not_released_and_one_that_never_starts_holds_nothing(
    changes: dict[str, Any], phase: EnginePhase, held: list[str]
) -> None:
    slurm = slurm_with(PLACED | changes)
    [job] = read(slurm)
    assert (job.phase, [*job.held_slots]) == (phase, held)
    run_round(slurm)
    assert (slurm.jobs["1"]["job_state"] == "RUNNING") is (phase is EnginePhase.INTERRUPTED)


def test_a_placed_job_whose_gpu_is_gone_or_closed_is_told_of() -> None:
    slurm = slurm_with(PLACED | {"priority": 5})
    slurm.nodes[0]["state_flags"] = ["DRAIN"]
    report = run_round(slurm)
    assert report.disagreements == ["1"]
    assert report.lines == ["disagreement: job 1 was placed on n1/g1, whose node takes no job now, and waits"]
    del slurm.nodes[0]
    [line] = run_round(slurm).lines
    assert line == "warning: job 1 waits for n1/g1, which is no more; a gres is never altered: submit it again"


def test_what_is_wrong_with_a_comment_is_said_of_a_placed_job_too() -> None:
    slurm = slurm_with({"comment": "cotenant memory=6Gigs"})
    [line] = run_round(slurm).lines
    assert "placed" in line
    assert "memory=6Gigs is not a size such as 8GiB" in line


def test_bytes_that_are_no_text_in_one_job_do_not_hide_the_others(tmp_path: Path) -> None:
    row = json.dumps({"jobs": [{"job_id": 1, "name": "@"}, {"job_id": 2}]}).encode().replace(b"@", b"\xff\xfe")
    (tmp_path / "table").write_bytes(row)
    found = InstalledCommands().query(["cat", str(tmp_path / "table")])
    assert [job["job_id"] for job in found["jobs"]] == [1, 2]


def test_an_empty_table_without_slurmctld_is_not_taken_for_an_empty_cluster() -> None:
    said = {"errors": [{"description": "Failed while looking for jobs", "error": "Unspecified error"}], "jobs": []}
    with pytest.raises(EngineUnreachableError, match="Failed while looking for jobs") as caught:
        InstalledCommands().query(["echo", json.dumps(said)])
    assert "slurmctld" in caught.value.remedy
    assert InstalledCommands().query(["echo", json.dumps({"errors": [], "jobs": []})])["jobs"] == []


def test_mutated_rows_of_arrays_and_chains_never_break_the_reading() -> None:
    slurm = slurm_with({"array_job_id": 1, "array_task_string": "0-3", "dependency": "afterok:7(unfulfilled)"})
    odd = [None, -1, 2**70, float("nan"), "", "x" * 10_000, "1-", "9-1", "0-9:0", [], {}, [None], {"number": "x"}, True]
    names = ("array_job_id", "array_task_id", "array_task_string", "dependency", "het_job_id", "node_count", "shared")
    for name in (*names, "accrue_time", "eligible_time", "array_max_tasks", "user_name", "name"):
        for value in odd:
            SlurmReading({"nodes": slurm.nodes}, {"jobs": [slurm.jobs["1"] | {name: value}]}, DEVICES).state()
