"""The points of the attack name tests and checks that are there."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.attack_mutants import changed, listed
from benchmarks.attack_points import MUTANTS, POINTS, Mutant
from tests.support.cases import for_each

ROOT = Path(__file__).parents[3]


def test_every_point_says_what_happened_and_has_a_test() -> None:
    assert set(POINTS) == {"1A", "1B", "1C", "1D", *(str(number) for number in range(2, 19))}
    assert {mutant.point for mutant in MUTANTS} == set(POINTS)
    assert all(POINTS.values())


def test_the_list_names_every_test_below_its_point() -> None:
    tests = [line.strip() for line in listed().splitlines() if line.startswith("    ")]
    assert tests == [mutant.test for point in POINTS for mutant in MUTANTS if mutant.point == point]


@for_each("mutant", MUTANTS)
def test_each_test_and_the_check_behind_it_are_there(mutant: Mutant) -> None:
    file, _, name = mutant.test.partition("::")
    assert f"def {name.partition('[')[0]}(" in (ROOT / file).read_text()
    assert (ROOT / mutant.file).read_text().count(mutant.line) == 1


def test_a_check_that_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("one\n")
    mutant = Mutant(point="1A", test="t", file="a.py", line="two", instead="")
    with pytest.raises(LookupError, match=r"a\.py has 0 times 'two'"), changed(tmp_path, mutant):
        pass


def test_a_changed_line_comes_back(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("one\ntwo\n")
    with changed(tmp_path, Mutant(point="1A", test="t", file="a.py", line="two\n", instead="")):
        assert (tmp_path / "a.py").read_text() == "one\n"
    assert (tmp_path / "a.py").read_text() == "one\ntwo\n"
