"""One cell of a profile file: its rule, and its way from text to value and back."""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias, cast

LIST_SEPARATOR = "|"
MAX_FEATURES_CHARACTERS = 65_536
MAX_FEATURE_NAME_CHARACTERS = 100
LARGEST_FEATURE = 1e300
MAX_TEXT_CHARACTERS = 4_096
LARGEST_NUMBER = 1e18

Cell: TypeAlias = "int | float | str | tuple[str, ...] | None"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnRule:
    """What a column may hold."""

    meaning: str
    unit: str = ""
    minimum: float | None = None
    above: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    measured: bool = False
    may_be_blank: bool = False


def column(meaning: str, **rule: Any) -> Any:  # noqa: ANN401 (a dataclass field takes its type from the annotation)
    """Returns a dataclass field that carries a `ColumnRule`."""
    return dataclasses.field(metadata={"rule": ColumnRule(meaning=meaning, **rule)})


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a file: its name, Python type, whether it may be null, and its rule."""

    name: str
    kind: type
    nullable: bool
    rule: ColumnRule


def columns(row_type: type[Any]) -> tuple[Column, ...]:
    """Returns the columns of a row class in file order."""
    return _columns_of(cast("Hashable", row_type))


@cache
def _columns_of(row_type: Any) -> tuple[Column, ...]:  # noqa: ANN401 (the cache wants a hashable, mypy doubts a class)
    hints = typing.get_type_hints(row_type)
    return tuple(
        _column_of(field.name, hints[field.name], field.metadata["rule"]) for field in dataclasses.fields(row_type)
    )


def _column_of(name: str, hint: Any, rule: ColumnRule) -> Column:  # noqa: ANN401 (a type or a union of two)
    if isinstance(hint, types.UnionType):
        kind = next(part for part in typing.get_args(hint) if part is not type(None))
        return Column(name, kind, True, rule)
    return Column(name, typing.get_origin(hint) or hint, False, rule)


def parse_cell(text: str, item: Column, status_ok: bool) -> Cell:
    """Turns text into the column's type.

    Args:
        text: The cell; empty = null.
        item: Its column.
        status_ok: Whether the row's status is ok, so that measured columns may not be null.

    Raises:
        ValueError: The text breaks the column's rule; the message reads well behind the column's name.
    """
    if item.kind is tuple:
        return _parse_list(text, item.rule)
    if text == "":
        if item.nullable and not (item.rule.measured and status_ok):
            return None
        raise ValueError("is empty" + (" although status is ok" if item.rule.measured else ""))
    return _PARSERS[item.kind](text, item)


def _parse_list(text: str, rule: ColumnRule) -> tuple[str, ...]:
    parts = tuple(text.split(LIST_SEPARATOR)) if text else ()
    for part in parts:
        _check_words(part)
    if "" in parts:
        raise ValueError(f"{_shown(text)} has an empty part")
    if not parts and not rule.may_be_blank:
        raise ValueError("is empty")
    return parts


def _parse_integer(text: str, item: Column) -> int:
    try:
        value = int(text)
    except ValueError:
        raise ValueError(f"{_shown(text)} is not an integer") from None
    _check_range(value, item.rule)
    return value


def _parse_number(text: str, item: Column) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{_shown(text)} is not a number") from None
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is not finite; leave the cell empty for a missing value")
    _check_range(value, item.rule)
    return value


def _parse_text(text: str, item: Column) -> str:
    if item.rule.choices and text not in item.rule.choices:
        raise ValueError(f"{_shown(text)} is none of {', '.join(item.rule.choices)}")
    if item.name == "features_json":
        _check_features(text)
    else:
        _check_words(text)
    return text


def _check_words(text: str) -> None:
    if len(text) > MAX_TEXT_CHARACTERS:
        raise ValueError(f"has {len(text):,} characters, more than {MAX_TEXT_CHARACTERS:,}")
    if not text.isprintable():
        raise ValueError(f"{_shown(text)} has characters that cannot be printed")


def _shown(text: str) -> str:
    return repr(text) if len(text) <= 60 else f"{text[:57]!r}..."


def _check_features(text: str) -> None:
    """Features are a flat object, so that every one can become a column; bounded, because a file is not trusted."""
    if len(text) > MAX_FEATURES_CHARACTERS:
        raise ValueError(f"has {len(text):,} characters, more than {MAX_FEATURES_CHARACTERS:,}")
    try:
        value = json.loads(text, object_pairs_hook=_unique_names)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError("is not a JSON object")
    for name, feature in value.items():
        reason = _feature_fault(name, feature)
        if reason:
            raise ValueError(f"{name!r} {reason}")


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if len(set(names)) != len(names):
        raise ValueError("names a feature twice")
    return dict(pairs)


def _feature_fault(name: str, value: object) -> str:
    """What is wrong with one feature; empty for nothing."""
    if not 0 < len(name) <= MAX_FEATURE_NAME_CHARACTERS:
        return f"is not a name of 1 to {MAX_FEATURE_NAME_CHARACTERS} characters"
    if isinstance(value, bool) or not isinstance(value, (int, float, str, type(None))):
        return "is neither a number nor a text nor null"
    if isinstance(value, int) and abs(value) > LARGEST_FEATURE:
        return f"is beyond {LARGEST_FEATURE:g}"
    return "is not finite" if isinstance(value, float) and not math.isfinite(value) else ""


_PARSERS: dict[type, Callable[[str, Column], Cell]] = {int: _parse_integer, float: _parse_number, str: _parse_text}


def _check_range(value: float, rule: ColumnRule) -> None:
    unit = f" {rule.unit}" if rule.unit else ""
    if abs(value) > LARGEST_NUMBER:
        raise ValueError(f"is beyond {LARGEST_NUMBER:g}{unit}")
    if rule.minimum is not None and value < rule.minimum:
        raise ValueError(f"{value:g}{unit} is below {rule.minimum:g}")
    if rule.above is not None and value <= rule.above:
        raise ValueError(f"{value:g}{unit} is not above {rule.above:g}")
    if rule.maximum is not None and value > rule.maximum:
        raise ValueError(f"{value:g}{unit} is above {rule.maximum:g}")


def format_cell(value: Cell) -> str:
    """Turns a value into text that `parse_cell` reads back unchanged."""
    if value is None:
        return ""
    if isinstance(value, tuple):
        return LIST_SEPARATOR.join(value)
    return repr(value) if isinstance(value, float) else str(value)
