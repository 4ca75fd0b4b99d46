"""Where jobs go once their GPU counts are chosen: near each other, and never two spanning jobs on one node.

Source:
    The rule that at most one spanning job lies on a node is that of the Pollux artifact (petuum/adaptdl, branch
    osdi21-artifact), simulator/pollux.py. Counts suppose that every place can be had; where it cannot, the
    cheapest smaller one is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cotenant_simulator.pollux_rules.cluster import ClusterShape
from cotenant_simulator.pollux_rules.training_job import Allocation

_IMPROVING_ROUNDS = 3
_GAIN_MIN = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a job holds, and what other counts would cost it.

    Attributes:
        allocation: What it holds.
        near_costs: By GPU count from 0, all on one node; a restart is priced in.
        far_costs: The same across nodes.
        keep_cost: Of keeping exactly what it holds.
    """

    allocation: Allocation
    near_costs: list[float]
    far_costs: list[float]
    keep_cost: float

    @property
    def gpus_held(self) -> int:
        """GPUs that it holds."""
        return _gpus(self.allocation)

    def cost(self, place: Allocation) -> float:
        """Return what a place costs."""
        if place == self.allocation:
            return self.keep_cost
        return (self.far_costs if len(place) > 1 else self.near_costs)[_gpus(place)]

    def costs(self, gpus_per_node: int) -> dict[int, float]:
        """Return the cost of every count, were places to be had for the asking."""
        found = dict(enumerate(self.near_costs[: gpus_per_node + 1] + self.far_costs[gpus_per_node + 1 :]))
        found[self.gpus_held] = self.keep_cost
        return found


class Packing:
    """Finds places for the jobs of one round.

    Args:
        cluster: The nodes.
        claims: The jobs.
    """

    def __init__(self, cluster: ClusterShape, claims: Sequence[Claim]) -> None:
        self._cluster = cluster
        self._claims = claims

    def place(self, counts: Sequence[int]) -> list[Allocation]:
        """Return the cheapest places found, from the counts as chosen or from what every job holds."""
        starts = (self._kept(counts), [claim.allocation for claim in self._claims])
        return min((self._improved(places) for places in starts), key=self._total)

    def _total(self, places: Sequence[Allocation]) -> float:
        return sum(claim.cost(place) for claim, place in zip(self._claims, places, strict=True))

    def _kept(self, counts: Sequence[int]) -> list[Allocation]:
        """Place those whose count changes around those whose count does not."""
        places = [
            claim.allocation if claim.gpus_held == count else ()
            for claim, count in zip(self._claims, counts, strict=True)
        ]
        return self._filled(places, counts)

    def _filled(self, places: list[Allocation], counts: Sequence[int]) -> list[Allocation]:
        """Give the jobs without a place their count, or as near as can be had, the largest first."""
        room = _Room(self._cluster, places)
        missing = [position for position, count in enumerate(counts) if count and not places[position]]
        for position in sorted(missing, key=lambda position: (-counts[position], position)):
            places[position] = self._cheapest(self._claims[position], room, counts[position])
            room.take(places[position])
        return places

    def _improved(self, places: list[Allocation]) -> list[Allocation]:
        """Let one job after the other, the worst off first, change to the cheapest place among what is free."""
        room = _Room(self._cluster, places)
        for _ in range(_IMPROVING_ROUNDS):
            has_changed = False
            costs = [claim.cost(place) for claim, place in zip(self._claims, places, strict=True)]
            for position in sorted(range(len(places)), key=lambda position: (-costs[position], position)):
                claim = self._claims[position]
                room.give_back(places[position])
                found = self._cheapest(claim, room, len(claim.near_costs) - 1)
                if claim.cost(found) < costs[position] - _GAIN_MIN:
                    places[position] = found
                    has_changed = True
                room.take(places[position])
            if not has_changed:
                break
        return places

    def _cheapest(self, claim: Claim, room: _Room, gpus_max: int) -> Allocation:
        """Return the cheapest place of so many GPUs at most; what the job holds is one while it is free."""
        best: Allocation = ()
        best_cost = claim.cost(best)
        held = claim.allocation
        if held and claim.gpus_held <= gpus_max and room.has(held) and claim.keep_cost < best_cost:
            best, best_cost = held, claim.keep_cost
        for gpus in range(min(gpus_max, room.count(), len(claim.near_costs) - 1), 0, -1):
            if min(claim.near_costs[gpus], claim.far_costs[gpus]) < best_cost:
                place = room.find(gpus)
                if place and claim.cost(place) < best_cost:
                    best, best_cost = place, claim.cost(place)
        return best


class _Room:
    """Free GPUs by node, and on which nodes a job lies that spans several."""

    def __init__(self, cluster: ClusterShape, places: Sequence[Allocation]) -> None:
        self._gpus_per_node = cluster.gpus_per_node
        self._free = [cluster.gpus_per_node] * cluster.nodes
        self._spanning = [0] * cluster.nodes
        for place in places:
            self.take(place)

    def count(self) -> int:
        return sum(self._free)

    def take(self, place: Allocation) -> None:
        self._change(place, 1)

    def give_back(self, place: Allocation) -> None:
        self._change(place, -1)

    def _change(self, place: Allocation, sign: int) -> None:
        for node, gpus in place:
            self._free[node] -= sign * gpus
            if len(place) > 1:
                self._spanning[node] += sign

    def has(self, place: Allocation) -> bool:
        """Return whether exactly this place is free."""
        fits = all(self._free[node] >= gpus for node, gpus in place)
        return fits and (len(place) == 1 or not any(self._spanning[node] for node, _ in place))

    def find(self, gpus: int) -> Allocation:
        """Return a place for so many GPUs; empty = there is none."""
        fitting = [node for node, free in enumerate(self._free) if free >= gpus] if gpus <= self._gpus_per_node else []
        if fitting:
            return ((min(fitting, key=lambda node: (self._free[node], not self._spanning[node], node)), gpus),)
        return self._spread(gpus)

    def _spread(self, gpus: int) -> Allocation:
        """Return the fewest nodes that suffice and hold no other spanning job; the rest goes where it fits best."""
        usable = {node: free for node, free in enumerate(self._free) if free and not self._spanning[node]}
        chosen = []
        while gpus and usable:
            suffices = [node for node, free in usable.items() if free >= gpus]
            if suffices:
                node = min(suffices, key=lambda one: (usable[one], one))
            else:
                node = max(usable, key=lambda one: (usable[one], -one))
            part = min(usable.pop(node), gpus)
            chosen.append((node, part))
            gpus -= part
        return tuple(sorted(chosen)) if gpus == 0 else ()


def _gpus(place: Allocation) -> int:
    return sum(gpus for _, gpus in place)
