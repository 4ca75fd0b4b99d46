"""What a script holds on its device that no graph shows: copies of weights, and networks that only answer."""

# ruff: noqa: ANN401 (torch is the script's own: it is handed in, and nothing of it has a type here)
from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

_DICTIONARIES = (dict, OrderedDict)
"""Those of libraries load modules when they are looked into, or answer in ways of their own."""


def outside_bytes(torch: Any, trained: list[Any], answering: list[Any]) -> int:
    """Bytes that stay on the device besides the networks in the graph.

    Args:
        torch: The script's.
        trained: Networks in the graph.
        answering: Networks that are called without learning, such as a teacher.

    Returns:
        The weights of the latter, and copies of the former as averages and targets keep them.
    """
    own = _storages(each for network in trained for each in _tensors_in(network))
    found = _storages(each for network in answering for each in _tensors_in(network))
    for network in trained:
        found.update(_storages(_copies_of(torch, network)))
    return sum(size for key, size in found.items() if key not in own)


def _tensors_in(network: Any) -> list[Any]:
    return [*network.parameters(), *network.buffers()]


def _storages(tensors: Iterable[Any]) -> dict[int, int]:
    storages = [each.untyped_storage() for each in tensors]
    return {each.data_ptr(): each.nbytes() for each in storages}


def _copies_of(torch: Any, network: Any) -> list[Any]:
    """Tensors of what has the weights of a network once more: a network of its class, a dictionary by name, a list.

    Dictionaries and lists count once they were written to in place, as averages are: what was merely loaded or saved
    need not be on the device.
    """
    shapes = {name: tuple(each.shape) for name, each in network.named_parameters() if each.requires_grad}
    found: list[Any] = []
    for each in gc.get_objects() if shapes else ():
        kind = type(each)
        if kind is type(network):
            found += _tensors_in(each) if "_parameters" in vars(each) and _are_alike(torch, each, network) else []
        elif kind in _DICTIONARIES and len(each) >= len(shapes):
            found += _written(torch, [each.get(name) for name in shapes], list(shapes.values()))
        elif kind is list and len(each) == len(shapes):
            found += _written(torch, each, list(shapes.values()))
    return found


def _are_alike(torch: Any, other: Any, network: Any) -> bool:
    ours, theirs = list(network.parameters()), list(other.parameters())
    is_held = len(ours) == len(theirs) and all(_is_held(torch, each) for each in theirs)
    return is_held and all(tuple(one.shape) == tuple(another.shape) for one, another in zip(theirs, ours))  # noqa: B905


def _is_held(torch: Any, value: Any) -> bool:
    """Whether a value is a tensor with memory: those that an export drew with may have symbols as sizes."""
    if not isinstance(value, torch.Tensor) or value.device.type == "meta" or hasattr(value, "fake_mode"):
        return False
    return all(type(size) is int for size in value.shape)


def _written(torch: Any, values: list[Any], shapes: list[tuple[int, ...]]) -> list[Any]:
    """The values, if they are tensors of these shapes that take no part in learning and were written to."""
    for value, shape in zip(values, shapes):  # noqa: B905 (Python 3.8 has no strict)
        is_copy = _is_held(torch, value) and tuple(value.shape) == shape and not value.requires_grad
        if not is_copy or value._version == 0:
            return []
    return values
