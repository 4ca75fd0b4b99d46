"""Which worker begins which file of tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.worker_lanes import LONG_FIRST, WAITING, next_file, refuse_alone

ROOT = Path(__file__).resolve().parents[2]
COMPUTES, WAITS = "tests/unit/core/test_engine.py", "tests/end_to_end/test_roles.py"


def test_a_worker_takes_files_of_its_own_kind_first_and_the_others_when_there_are_none() -> None:
    assert next_file([COMPUTES, WAITS], takes_waiting_first=True) == WAITS
    assert next_file([WAITS, COMPUTES], takes_waiting_first=False) == COMPUTES
    assert next_file([COMPUTES], takes_waiting_first=True) == COMPUTES


def test_a_long_file_is_begun_before_the_others_of_its_kind() -> None:
    assert next_file([WAITS, LONG_FIRST[0]], takes_waiting_first=True) == LONG_FIRST[0]
    assert next_file([COMPUTES, LONG_FIRST[0]], takes_waiting_first=False) == COMPUTES


def test_whole_programs_are_begun_before_parts_of_an_agent_which_fill_the_end() -> None:
    part = "tests/unit/agent/test_shim.py"
    assert next_file([COMPUTES, part, WAITS], takes_waiting_first=True) == WAITS
    assert next_file([part, COMPUTES], takes_waiting_first=True) == part


def test_every_file_and_folder_that_is_named_is_there() -> None:
    assert [name for name in (*WAITING, *LONG_FIRST) if not (ROOT / name).exists()] == []


@dataclass(frozen=True)
class MarkedTest:
    """What is asked of a collected test."""

    marks: tuple[str, ...]
    nodeid: str = "tests/test_this.py::test_that"

    def iter_markers(self) -> Iterator[pytest.Mark]:
        return (pytest.Mark(name, (), {}, _ispytest=True) for name in self.marks)


def test_a_test_that_needs_the_machine_to_itself_is_no_part_of_make_test() -> None:
    refuse_alone([MarkedTest(()), MarkedTest(("last_core",)), MarkedTest(("endurance", "alone"))])  # type: ignore[list-item]
    with pytest.raises(pytest.UsageError, match=r"test_this\.py::test_that is marked alone"):
        refuse_alone([MarkedTest(("slow", "alone"))])  # type: ignore[list-item]
