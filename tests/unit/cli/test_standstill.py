"""A scheduler that gives no orders says so wherever people look."""

from __future__ import annotations

import pytest

from cotenant.v1 import resources_pb2, scheduling_pb2
from tests.support.cli_cluster import CommandLine
from tests.support.fake_services import FakeScheduler

WARNING = resources_pb2.Warning(code="RESTORE_UNCONFIRMED", message="restored; say `cotenant nodes confirm`")


@pytest.mark.parametrize("verb", ["ps", "status", "nodes"])
def test_a_standstill_is_reported_next_to_the_list(cotenant: CommandLine, scheduler: FakeScheduler, verb: str) -> None:
    assert "RESTORE_UNCONFIRMED" not in cotenant(verb).err
    scheduler.standstill.append(WARNING)
    found = cotenant(verb)
    assert (found.code, WARNING.message in found.err) == (0, True)
    assert "RESTORE_UNCONFIRMED" not in cotenant(verb, "-o", "json").out


def test_doctor_calls_a_standstill_a_fault(cotenant: CommandLine, scheduler: FakeScheduler) -> None:
    scheduler.standstill.append(WARNING)
    found = cotenant("doctor")
    assert (found.code, "RESTORE_UNCONFIRMED" in found.out, WARNING.message in found.out) == (1, True, True)


@pytest.mark.parametrize(("code", "exit_code"), [("CLOCK_OFF", 0), ("STATE_UNWRITABLE", 1)])
def test_what_an_operator_should_look_after_is_told_by_nodes_and_doctor_and_not_to_everyone_who_lists_jobs(
    cotenant: CommandLine, scheduler: FakeScheduler, code: str, exit_code: int
) -> None:
    trouble = resources_pb2.Warning(code=code, message="look after it")
    assert code not in cotenant("doctor").out
    scheduler.troubles.append(trouble)
    assert f"warning: look after it [{code}]" in cotenant("nodes").err
    assert code in cotenant("nodes", "-o", "json").out
    assert code not in cotenant("ps").err
    found = cotenant("doctor")
    assert (found.code, f"{code}: look after it" in found.out, "remedy: look" in found.out) == (exit_code, True, False)


def test_doctor_says_why_gpus_take_no_job(cotenant: CommandLine, scheduler: FakeScheduler) -> None:
    gpu = scheduling_pb2.Gpu(gpu_id="g", device="d", fault="the disk of its state is full")
    node = scheduling_pb2.Node(node_id="node-9", connected=True, schedulable=True, gpus=[gpu, gpu])
    scheduler.nodes = [node]
    found = cotenant("doctor").out
    assert "node-9: 2 GPUs faulty" in found
    assert "the disk of its state is full" in found


def test_a_restore_is_confirmed_and_a_node_forgotten_by_one_verb(
    cotenant: CommandLine, scheduler: FakeScheduler
) -> None:
    confirmed = cotenant("nodes", "confirm")
    forgotten = cotenant("nodes", "forget", "node-1")
    assert (confirmed.code, "bbbbbbbb" in confirmed.err) == (0, True)
    assert (forgotten.code, "job-000001" in forgotten.err) == (0, True)
