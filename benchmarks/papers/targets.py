"""What the papers print: every number that survives in their texts, and the order of what only pictures show.

The file `benchmarks/paper_targets.toml` holds one [[target]] table per row, table or sentence:

    paper = "sjf-bsbf"              # name of the paper
    place = "Table III"             # section, table or figure
    setting = "240 jobs, all jobs"  # what was varied
    quantity = "jct_mean"
    unit = "h"
    values = { fifo = 2.34, sjf_ffs = [1.2, 1.3] }      # by policy; a pair is a range
    # or, where a picture has no numbers:
    # order = ["sjf_bsbf", "sjf_ffs"]                   # least first
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent.parent / "paper_targets.toml"
_NAMES = ("paper", "place", "setting", "quantity")
_KNOWN = {*_NAMES, "unit", "values", "order"}
Value = float | tuple[float, float]


class TargetError(ValueError):
    """The file of targets says something that has no meaning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What one place of a paper says.

    Attributes:
        paper: Its name.
        place: Section, table or figure.
        setting: What was varied there; empty = nothing.
        quantity: What was measured.
        unit: Of the values; empty for an order.
        values: By policy; a pair is a range.
        order: Policies, the one with the least first.
    """

    paper: str
    place: str
    setting: str
    quantity: str
    unit: str = ""
    values: Mapping[str, Value] = field(default_factory=dict)
    order: Sequence[str] = ()


def read_targets(paper: str | None = None, *, path: Path = FILE) -> list[Target]:
    """Return the targets of one paper, or all, in the order of the file.

    Raises:
        TargetError: The file cannot be read, or an entry lacks its place, its unit, or both values and an order.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8")).get("target", [])
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise TargetError(f"{path.name} cannot be read: {error}; correct the file") from error
    targets = [_target(path, number, table) for number, table in enumerate(tables, start=1)]
    return [target for target in targets if paper is None or target.paper == paper]


def find_values(paper: str, place: str, quantity: str) -> Mapping[str, Value]:
    """Return what one place prints of a quantity, by policy.

    Raises:
        TargetError: It prints nothing of it.
    """
    return _find(paper, place, quantity, has_values=True).values


def find_order(paper: str, place: str, quantity: str) -> Sequence[str]:
    """Return the order that one place shows of a quantity, least first.

    Raises:
        TargetError: It shows none.
    """
    return _find(paper, place, quantity, has_values=False).order


def _find(paper: str, place: str, quantity: str, *, has_values: bool) -> Target:
    for target in read_targets(paper):
        if (target.place, target.quantity, bool(target.values)) == (place, quantity, has_values):
            return target
    raise TargetError(f"{FILE.name} has no {quantity} at {place} of {paper}; add what the paper prints there")


def _target(path: Path, number: int, table: Mapping[str, Any]) -> Target:
    where = f"{path.name}: [[target]] {number}"
    unknown = sorted(table.keys() - _KNOWN)
    if unknown:
        raise TargetError(f"{where} has unknown {unknown[0]!r}; known are {', '.join(sorted(_KNOWN))}")
    names = {name: str(table.get(name, "")).strip() for name in _NAMES}
    missing = [name for name in _NAMES if not names[name] and name != "setting"]
    if missing:
        raise TargetError(f"{where} has no {missing[0]}; say where the number stands")
    values, order, unit = table.get("values", {}), table.get("order", []), str(table.get("unit", ""))
    if bool(values) == bool(order):
        raise TargetError(f"{where} needs either values or an order")
    if values and not unit:
        raise TargetError(f"{where} has values without a unit")
    if order and len(set(order)) < max(len(order), 2):
        raise TargetError(f"{where} must order at least two different policies")
    return Target(
        **names,
        unit=unit,
        values={str(policy): _value(where, value) for policy, value in values.items()},
        order=tuple(order),
    )


def _value(where: str, value: object) -> Value:
    if isinstance(value, list) and len(value) == 2:
        low, high = (_number(where, end) for end in value)
        if low > high:
            raise TargetError(f"{where}: the range {value} is upside down")
        return low, high
    return _number(where, value)


def _number(where: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TargetError(f"{where}: {value!r} is not a number")
    return float(value)
