"""One test that runs many cases, e.g. seeds or the rows of a table, where a test of its own for each would cost more.

What pytest and its workers do for each test takes milliseconds, in every worker again when tests are collected: more
than most cases take. Cases that need a fresh folder, monkeypatching or captured output are tests of their own.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import pytest

Test: TypeAlias = Callable[..., None]
OF_ONE_CASE: Final = frozenset({"tmp_path", "monkeypatch", "capsys", "capfd", "caplog", "recwarn"})
"""Fixtures whose state one case would leave to the next."""
SHOWN_MAX: Final = 10
"""Failures that one report shows; their number is said in any case."""
TEXT_MAX: Final = 300


def for_each(names: str | Sequence[str], cases: Iterable[Any]) -> Callable[[Test], Test]:
    """Returns a decorator like `pytest.mark.parametrize` whose cases run in one test; a failure names its case.

    All cases run, whichever of them fail; only `pytest.fail` ends the test at once, as a timeout does.

    Args:
        names: The arguments that a case gives a value for, as a sequence or separated by commas.
        cases: At least one: a value where there is one name, else a sequence of values.

    Raises:
        ValueError: There is no case, one does not fit the names or is marked, or the test
            lacks an argument or uses a fixture of one case.
    """
    arguments = _names_of(names)
    rows = [_row_of(arguments, case, is_alone=isinstance(names, str) and "," not in names) for case in cases]
    if not rows:
        raise ValueError("a test without a case tests nothing")

    def decorate(test: Test) -> Test:
        signature = inspect.signature(test)
        if not set(arguments) <= signature.parameters.keys():
            raise ValueError(f"{test.__name__} has no argument for one of {arguments}")
        if unfit := OF_ONE_CASE.intersection(signature.parameters):
            raise ValueError(f"{test.__name__}: {sorted(unfit)} belong to one case; use pytest.mark.parametrize")

        @functools.wraps(test)
        def run_cases(*fixtures: Any, **named_fixtures: Any) -> None:
            __tracebackhide__ = True
            _run(functools.partial(test, *fixtures, **named_fixtures), rows)

        kept = [one for name, one in signature.parameters.items() if name not in arguments]
        run_cases.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        run_cases.case_count = len(rows) * case_count(test)  # type: ignore[attr-defined]
        return run_cases

    return decorate


def case_count(test: object) -> int:
    """Returns how many cases a test function runs, 1 where it was not decorated."""
    return int(getattr(test, "case_count", 1))


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
    for row in rows:
        try:
            test(**row)
        except Exception as error:
            failures.append(_with_case(error, row))
        except pytest.skip.Exception as skipped:
            raise AssertionError(f"a case cannot be skipped by itself: {_text_of(row)}") from skipped
        except pytest.fail.Exception as failed:
            failures.append(_with_case(failed, row))
            break
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
