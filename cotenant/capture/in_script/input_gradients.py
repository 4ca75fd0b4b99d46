"""Tells passes that ask for the gradient of an input, as attacks and Langevin sampling do, from those that train."""

# ruff: noqa: ANN401 (torch is the script's own: it is handed in, and nothing of it has a type here)
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

NODES_MAX = 200
"""So many operators before an input are looked through; an image that a generator makes has more."""


def asks_of_input(tensors: Iterable[Any], find_trained: Any) -> bool:
    """Returns whether gradients are asked for of inputs, and none of them leads on to weights.

    Args:
        tensors: Inputs of a call.
        find_trained: Returns the names of the weights that optimizers move.
    """
    asked = [each for each in tensors if each.requires_grad]
    if not asked:
        return False
    trained = find_trained()
    return all(found and not found & trained for found in map(_leaves_before, asked))


def _leaves_before(tensor: Any) -> set[int]:
    """Names of the tensors that it is computed from; nothing where they are too far away."""
    if tensor.grad_fn is None:
        return {id(tensor)}
    found: set[int] = set()
    seen, waiting = {tensor.grad_fn}, [tensor.grad_fn]
    while waiting:
        node = waiting.pop()
        if (variable := getattr(node, "variable", None)) is not None:
            found.add(id(variable))
        nexts = {each for each, _ in node.next_functions if each is not None} - seen
        seen |= nexts
        waiting += nexts
        if len(seen) > NODES_MAX:
            return set()
    return found


def note_dropped(calls: Iterable[Any], zeroed: set[int], *, begin: int, end: int) -> None:
    """Marks calls whose gradients are thrown away before a step has used them.

    Args:
        calls: All calls so far.
        zeroed: Names of the weights whose gradients are set to zero.
        begin: Number of backward passes before the last step.
        end: Number of them so far.
    """
    for call in calls:
        if begin <= call.group < end and call.asks_of_input and call.learning <= zeroed:
            call.is_dropped = True


def without_dropped(groups: list[list[Any]]) -> tuple[list[list[Any]], int]:
    """Returns the passes without those of which no gradient is kept, and how many those are."""
    kept = [group for group in groups if not all(call.is_dropped for call in group if call.has_parameters)]
    return (kept, len(groups) - len(kept)) if kept else (groups, 0)
