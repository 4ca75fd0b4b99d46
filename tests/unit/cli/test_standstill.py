"""A scheduler that gives no orders says so wherever people look."""

from __future__ import annotations

import pytest

from cotenant.v1 import resources_pb2
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


def test_a_restore_is_confirmed_and_a_node_forgotten_by_one_verb(
    cotenant: CommandLine, scheduler: FakeScheduler
) -> None:
    confirmed = cotenant("nodes", "confirm")
    forgotten = cotenant("nodes", "forget", "node-1")
    assert (confirmed.code, "bbbbbbbb" in confirmed.err) == (0, True)
    assert (forgotten.code, "job-000001" in forgotten.err) == (0, True)
