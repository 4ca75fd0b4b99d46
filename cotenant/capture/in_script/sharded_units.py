"""How much of weights that lie in parts a GPU holds whole at once, as `fully_shard` gathers them unit by unit."""

from __future__ import annotations

import math
from typing import Any

_PARTS = 1000


def gathered_ratio(sharded: list[Any]) -> float:
    """Returns the largest share of the weights that is whole at once, rounded up; 0 = nothing lies in parts.

    A unit is gathered while it computes, and the next one meanwhile. The outermost units stay whole from the forward
    pass to the backward pass, as those do that ask for it.

    Args:
        sharded: Of each call of `fully_shard`, in order: its networks, and whether they are to stay whole.
    """
    units = [
        _own_weights(networks, [each for each, _ in sharded[:place]]) for place, (networks, _) in enumerate(sharded)
    ]
    total = sum(units)
    if not total:
        return 0.0
    inside = {id(part) for networks, _ in sharded for each in networks for part in list(each.modules())[1:]}
    stays = [whole or not any(id(each) in inside for each in networks) for networks, whole in sharded]
    passing = sorted((size for size, whole in zip(units, stays) if not whole), reverse=True)[:2]  # noqa: B905
    held = sum(size for size, whole in zip(units, stays) if whole) + sum(passing)  # noqa: B905
    return min(1.0, float(math.ceil(_PARTS * held / total)) / _PARTS)


def _own_weights(networks: list[Any], earlier: list[list[Any]]) -> int:
    """Weights of a unit without those of units inside of it, which were made before."""
    taken = {id(weight) for unit in earlier for each in unit for weight in each.parameters()}
    own = {id(weight): weight.numel() for each in networks for weight in each.parameters()}
    return sum(size for key, size in own.items() if key not in taken)
