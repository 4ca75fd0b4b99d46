"""Objects that hold the tensors of a batch, taken apart: torch takes each for one value, and exports none of them.

Batches of graphs, encodings of texts and records of own code are handed to a network whole, as `network(batch)`.
"""

# ruff: noqa: ANN401 (torch is the script's own: it is handed in, and nothing of it has a type here)
from __future__ import annotations

import copy
from types import ModuleType
from typing import Any

RECORDS_DEEP = 3
"""So far records within records are looked into: one may refer to itself."""
LEAVES_MAX = 100_000
"""So many values of one call are looked at: records may refer to each other in any number."""


class Record:
    """An object as the values of its fields, which torch finds in it.

    Attributes:
        own: The object as it was handed in.
        fields: Its attributes, or its items where it is a dictionary.
    """

    def __init__(self, own: Any, fields: dict[Any, Any]) -> None:
        self.own = own
        self.fields = fields

    def closed(self) -> Any:
        """Returns an object like the own one, with the values that are now in its fields."""
        made = copy.copy(self.own)
        for name, value in self.fields.items():
            if isinstance(made, dict):
                dict.__setitem__(made, name, value)
            else:
                object.__setattr__(made, name, value)
        return made


class _Closing:
    """While it is entered, torch puts the objects themselves together, not their records."""

    is_entered = False

    def __enter__(self) -> None:
        _Closing.is_entered = True

    def __exit__(self, *_: object) -> None:
        _Closing.is_entered = False


class Looks:
    """Counts the values of one call that were looked at, up to `LEAVES_MAX`."""

    def __init__(self) -> None:
        self._left = LEAVES_MAX

    def may_open(self, depth: int) -> bool:
        """Counts a value; whether it may be looked into, where so many records may lie in each other."""
        self._left -= 1
        return depth > 0 and self._left > 0


def open_records(torch: Any, values: Any, depth: int = RECORDS_DEEP, looks: Looks | None = None) -> tuple[Any, bool]:
    """Returns nested values with a `Record` for each object that holds tensors, and whether there are any objects.

    Torch exports no argument that is an object, also where there are no tensors in it.

    Args:
        torch: The script's.
        values: Arguments of a call.
        depth: So many records may lie in each other.
        looks: What of the call was looked at before; what is beyond their bound stays closed. None = nothing.
    """
    _register(torch)
    looks = looks or Looks()
    plain = (torch.Tensor, int, float, complex, str, type(None), torch.dtype, torch.device)
    objects: list[Any] = []

    def opened(leaf: Any) -> Any:
        is_looked_into = looks.may_open(depth)
        if isinstance(leaf, plain):
            return leaf
        objects.append(leaf)
        fields = fields_of(torch, leaf) if is_looked_into else {}
        fields = {name: open_records(torch, value, depth - 1, looks)[0] for name, value in fields.items()}
        leaves = torch.utils._pytree.tree_flatten(fields)[0]
        return Record(leaf, fields) if any(isinstance(each, torch.Tensor) for each in leaves) else leaf

    try:
        return torch.utils._pytree.tree_map(opened, values), bool(objects)
    except RecursionError:  # a dictionary that holds itself
        return values, True


def close_records(torch: Any, values: Any) -> Any:
    """Returns nested values with each `Record` put together again."""
    with _Closing():
        return torch.utils._pytree.tree_map(lambda leaf: leaf, values)


def fields_of(torch: Any, record: Any) -> dict[Any, Any]:
    """Returns what lies in an object that torch takes for one value; empty = it is none, or a network."""
    if isinstance(record, dict):
        return dict(record)
    if isinstance(record, (type, ModuleType, torch.nn.Module)):
        return {}
    # Asked of the class: an object may answer to any name. A record may have slots.
    names = getattr(type(record), "__dataclass_fields__", ())
    if names:
        return {name: getattr(record, name, None) for name in names}
    try:
        return dict(vars(record))
    except TypeError:
        return {}


def _register(torch: Any) -> None:
    """Tells torch how to find the values of a `Record`, once in each process."""
    if hasattr(Record, "is_known"):
        return
    pytree = torch.utils._pytree
    register = getattr(pytree, "register_pytree_node", None) or pytree._register_pytree_node  # before 2.2

    def together(values: Any, place: Any) -> Any:
        made = Record(place[0], dict(zip(place[1], values)))  # noqa: B905 (Python 3.8 has no strict)
        return made.closed() if _Closing.is_entered else made

    register(Record, lambda record: (list(record.fields.values()), (record.own, tuple(record.fields))), together)
    Record.is_known = True  # type: ignore[attr-defined]
