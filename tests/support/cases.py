"""One test that runs many cases, e.g. seeds or the rows of a table, where a test of its own for each would cost more.

What pytest and its workers do for each test takes milliseconds, in every worker again when tests are collected: more
than most cases take. Cases that need a fresh folder, monkeypatching or captured output are tests of their own.

Where cases are many and alike, a few that are spread over them run in every run, and all in `make test-all`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import pytest

Test: TypeAlias = Callable[..., None]
OF_ONE_CASE: Final = frozenset({"tmp_path", "monkeypatch", "capsys", "capfd", "caplog", "recwarn"})
"""Fixtures whose state one case would leave to the next."""
SHOWN_MAX: Final = 10
"""Failures that one report shows; their number is said in any case."""
TEXT_MAX: Final = 300
ALWAYS, OTHERS = "every_run", "others"
"""The parts of cases of which some run in every run."""


def for_each(names: str | Sequence[str], cases: Iterable[Any], *, always: int | None = None) -> Callable[[Test], Test]:
    """Returns a decorator like `pytest.mark.parametrize` whose cases run in one test; a failure names its case.

    All cases run, whichever of them fail; only `pytest.fail` ends the test at once, as a timeout does.

    Args:
        names: The arguments that a case gives a value for, as a sequence or separated by commas.
        cases: At least one: a value where there is one name, else a sequence of values.
        always: How many of them run in every run; the others are a test of their own in `make test-all`. None = all.

    Raises:
        ValueError: There is no case, one does not fit the names or is marked, or the test
            lacks an argument or uses a fixture of one case; `always` leaves none for one of the parts.
    """
    arguments = _names_of(names)
    rows = [_row_of(arguments, case, is_alone=isinstance(names, str) and "," not in names) for case in cases]
    if not rows:
        raise ValueError("a test without a case tests nothing")
    part_name = f"part_of_{'_'.join(arguments)}"
    parts = {ALWAYS: rows} if always is None else _parted(rows, always)

    def decorate(test: Test) -> Test:
        signature = inspect.signature(test)
        if not set(arguments) <= signature.parameters.keys():
            raise ValueError(f"{test.__name__} has no argument for one of {arguments}")
        if unfit := OF_ONE_CASE.intersection(signature.parameters):
            raise ValueError(f"{test.__name__}: {sorted(unfit)} belong to one case; use pytest.mark.parametrize")

        @functools.wraps(test)
        def run_cases(*fixtures: Any, **named_fixtures: Any) -> None:
            __tracebackhide__ = True
            part = parts[named_fixtures.pop(part_name, ALWAYS)]
            _run(functools.partial(test, *fixtures, **named_fixtures), part)

        def count(chosen: Mapping[str, object]) -> int:
            return len(parts[str(chosen.get(part_name, ALWAYS))]) * case_count(test, chosen)

        kept = [one for name, one in signature.parameters.items() if name not in arguments]
        if len(parts) > 1:
            kept.append(inspect.Parameter(part_name, inspect.Parameter.KEYWORD_ONLY))
        run_cases.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        run_cases.count_cases = count  # type: ignore[attr-defined]
        return run_cases if len(parts) == 1 else pytest.mark.parametrize(part_name, sampled(parts, 1))(run_cases)

    return decorate


def sampled(values: Iterable[Any], always: int) -> list[Any]:
    """Returns parameters for `pytest.mark.parametrize`: some run in every run, the others in `make test-all` only.

    Args:
        values: What a test is run for; a tuple = values of several arguments.
        always: How many of them run in every run, spread over all.
    """
    listed = list(values)
    chosen = spread(len(listed), always)
    return [
        value
        if place in chosen
        else pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.endurance)
        for place, value in enumerate(listed)
    ]


def case_count(test: object, chosen: Mapping[str, object] = MappingProxyType({})) -> int:
    """Returns how many cases a test function runs with these parameters, 1 where it was not decorated."""
    count = getattr(test, "count_cases", None)
    return 1 if count is None else int(count(chosen))


def spread(count: int, always: int) -> set[int]:
    """Returns the places of as many of `count` cases, first of all the first.

    Raises:
        ValueError: That is none of them, or all.
    """
    if not 0 < always < count:
        raise ValueError(f"{always} of {count} cases in every run leaves none for one of the parts")
    return {place * count // always for place in range(always)}


def _parted(rows: Sequence[Mapping[str, Any]], always: int) -> dict[str, list[Mapping[str, Any]]]:
    chosen = spread(len(rows), always)
    return {
        ALWAYS: [row for place, row in enumerate(rows) if place in chosen],
        OTHERS: [row for place, row in enumerate(rows) if place not in chosen],
    }


def _names_of(names: str | Sequence[str]) -> tuple[str, ...]:
    return tuple(name.strip() for name in names.split(",")) if isinstance(names, str) else tuple(names)


def _row_of(names: tuple[str, ...], case: Any, *, is_alone: bool) -> dict[str, Any]:
    values = (case,) if is_alone else tuple(case)
    if len(values) != len(names) or hasattr(case, "marks"):
        raise ValueError(f"{case!r} is no plain case of {', '.join(names)}")
    return dict(zip(names, values, strict=True))


def _run(test: Test, rows: Sequence[Mapping[str, Any]]) -> None:
    __tracebackhide__ = True
    failures: list[BaseException] = []
    skips: list[tuple[BaseException, Mapping[str, Any]]] = []
    for row in rows:
        try:
            test(**row)
        except Exception as error:
            failures.append(_with_case(error, row))
        except pytest.skip.Exception as skipped:
            skips.append((skipped, row))
        except pytest.fail.Exception as failed:
            failures.append(_with_case(failed, row))
            break
    if skips and len(skips) == len(rows):
        raise skips[0][0]
    failures += [_with_case(AssertionError("a case cannot be skipped by itself"), row) for _, row in skips]
    if len(failures) == 1:
        raise failures[0]
    if failures:
        raise BaseExceptionGroup(f"{len(failures)} of {len(rows)} cases failed", failures[:SHOWN_MAX])


def _with_case(error: BaseException, row: Mapping[str, Any]) -> BaseException:
    error.add_note(f"case: {_text_of(row)}")
    return error


def _text_of(row: Mapping[str, Any]) -> str:
    text = ", ".join(f"{name}={value!r}" for name, value in row.items())
    return text if len(text) <= TEXT_MAX else text[:TEXT_MAX] + "..."
