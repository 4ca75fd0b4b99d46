"""Tests that run many cases: what fails is named, and nothing is passed over in silence."""

from __future__ import annotations

import inspect

import pytest

from tests.support.cases import ALWAYS, OTHERS, SHOWN_MAX, case_count, for_each, sampled


def failure_of(names: str, cases: list[object], body: object) -> BaseException:
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - whatever it is, the tests look at it
        for_each(names, cases)(body)()  # type: ignore[arg-type]
    return caught.value


def test_every_case_runs_whichever_fails_and_each_failure_names_its_case() -> None:
    seen = []

    def body(seed: int) -> None:
        seen.append(seed)
        assert seed % 2 == 0

    failure = failure_of("seed", list(range(5)), body)
    assert seen == [0, 1, 2, 3, 4]
    assert isinstance(failure, BaseExceptionGroup)
    assert str(failure).startswith("2 of 5 cases failed")
    assert [one.__notes__ for one in failure.exceptions] == [["case: seed=1"], ["case: seed=3"]]


def test_a_single_failure_is_raised_as_it_is() -> None:
    def body(name: str, seed: int) -> None:
        assert (name, seed) != ("b", 1)

    failure = failure_of("name, seed", [("a", 1), ("b", 1), ("b", 2)], body)
    assert isinstance(failure, AssertionError)
    assert failure.__notes__ == ["case: name='b', seed=1"]


def test_a_report_shows_some_failures_and_says_how_many_there_are() -> None:
    def body(seed: int) -> None:
        raise ValueError(seed)

    failure = failure_of("seed", list(range(100)), body)
    assert isinstance(failure, BaseExceptionGroup)
    assert str(failure).startswith("100 of 100 cases failed")
    assert len(failure.exceptions) == SHOWN_MAX


def test_a_timeout_ends_the_test_and_a_case_is_not_skipped_in_silence() -> None:
    seen = []

    def stuck(seed: int) -> None:
        seen.append(seed)
        pytest.fail("Timeout")

    assert isinstance(failure_of("seed", [0, 1], stuck), pytest.fail.Exception)
    assert seen == [0]

    def skipped(seed: int) -> None:
        if seed:
            pytest.skip("not here")

    assert "cannot be skipped" in str(failure_of("seed", [0, 1], skipped))


def test_where_what_every_case_needs_is_missing_the_test_is_skipped() -> None:
    @for_each("seed", [0, 1])
    def body(seed: int) -> None:
        pytest.skip("no public data")

    with pytest.raises(pytest.skip.Exception, match="no public data"):
        body()


def test_decorators_of_several_names_run_all_combinations_and_fixtures_are_asked_for() -> None:
    seen = []

    @for_each("left", [0, 1, 2])
    @for_each("right", "ab")
    def body(left: int, right: str, fixture: str) -> None:
        seen.append((left, right, fixture))

    body(fixture="f")
    assert list(inspect.signature(body).parameters) == ["fixture"]
    assert seen == [(left, right, "f") for left in range(3) for right in "ab"]
    assert case_count(body) == 6
    assert case_count(failure_of) == 1


def test_what_cannot_be_cases_of_one_test_is_refused_when_it_is_declared() -> None:
    def with_folder(seed: int, tmp_path: object) -> None: ...

    def plain(seed: int) -> None: ...

    with pytest.raises(ValueError, match="tmp_path"):
        for_each("seed", [1])(with_folder)
    with pytest.raises(ValueError, match="tests nothing"):
        for_each("seed", [])(plain)
    with pytest.raises(ValueError, match="no plain case"):
        for_each("seed", [pytest.param(1, marks=pytest.mark.slow)])
    with pytest.raises(ValueError, match="no plain case"):
        for_each("a, b", [(1, 2, 3)])
    with pytest.raises(ValueError, match="no argument"):
        for_each("sead", [1])(plain)


def test_of_cases_some_run_in_every_run_and_all_in_both_parts_together() -> None:
    seen: dict[str, list[tuple[int, str]]] = {ALWAYS: [], OTHERS: []}

    @for_each("seed", range(10), always=3)
    @for_each("letter", "ab")
    def body(seed: int, letter: str) -> None:
        seen[part].append((seed, letter))

    for part in (ALWAYS, OTHERS):
        body(part_of_seed=part)
        assert case_count(body, {"part_of_seed": part}) == len(seen[part])
    assert seen[ALWAYS] == [(seed, letter) for seed in (0, 3, 6) for letter in "ab"]
    assert sorted(seen[ALWAYS] + seen[OTHERS]) == [(seed, letter) for seed in range(10) for letter in "ab"]
    (mark,) = body.pytestmark  # type: ignore[attr-defined]
    every, others = mark.args[1]
    assert (every, others.values, [one.name for one in others.marks]) == (ALWAYS, (OTHERS,), ["endurance"])


def test_of_parameters_those_that_are_not_drawn_are_marked_for_test_all() -> None:
    drawn = sampled("abcd", 2)
    assert [one for one in drawn if isinstance(one, str)] == ["a", "c"]
    assert [(one.values, one.marks[0].name) for one in drawn if not isinstance(one, str)] == [
        (("b",), "endurance"),
        (("d",), "endurance"),
    ]
    for always in (0, 4, 5):
        with pytest.raises(ValueError, match=f"{always} of 4 cases"):
            sampled("abcd", always)
