"""What must never happen to gangs: one that has half started, or a rank that is left alone.

On one node the shim sees to it, at once. Across nodes the scheduler does, when it hears of an end or the lease of a
node is over, and the leases of the other parts do where it is away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.swarm.job_process import JobProcess
    from tests.simulation.swarm.rank_group import RankGroup
    from tests.simulation.swarm.shim_process import ShimProcess
    from tests.simulation.swarm.world import World

RANKS_SILENT_MS = 20_000
"""In the place of the product's half hour."""
_BEGIN_WITHIN_S = 0.5
_END_WITHIN_S = 10.0
"""After a failure: the grace of a stop, a look, and clocks that differ."""
_WAIT_AT_MOST_S = RANKS_SILENT_MS / 1_000 + 20.0
"""After an end with 0: also a last leap, and what an agent notes of it late."""


_ACROSS_S = 120.0
"""Across nodes, for both: leases with their graces, one after the other, and schedulers and agents that are away."""


class GangWitness:
    """Looks at the ranks of a gang some time after one of them began or ended."""

    def __init__(self, world: World) -> None:
        self._world = world

    def rank_begun(self, process: JobProcess) -> None:
        """A rank's program runs from now on; those of the others must as well."""
        if not process.ranks:
            return
        self._world.later(_BEGIN_WITHIN_S, lambda: self._check_begun(process))
        if process.group.is_across:
            self._check_resumed(process)
            self._world.later(_ACROSS_S, lambda: self._check_left(process.group, _ACROSS_S))

    def _check_resumed(self, process: JobProcess) -> None:
        """All ranks of a gang go on from one checkpoint."""
        for other in process.group.members:
            if other.has_begun and other.resumed_step != process.resumed_step:
                found = f"rank {process.rank} of {process.name} goes on from step {process.resumed_step}"
                self._world.violation(f"{found}, rank {other.rank} from {other.resumed_step}")

    def _check_begun(self, process: JobProcess) -> None:
        ranks = process.shim.jobs
        has_all_begun = len(ranks) == process.ranks and all(rank.has_begun or rank.is_dead for rank in ranks)
        if not has_all_begun and not process.shim.is_dead:
            self._world.violation(f"{process.name} has half started: rank {process.rank} runs without the others")

    def rank_ended(self, process: JobProcess) -> None:
        """A rank's program has ended; the others must not go on for long without it."""
        if process.ranks:
            within_s = _END_WITHIN_S if process.status else _WAIT_AT_MOST_S
            self._world.later(within_s, lambda: self._check_ended(process.shim, within_s))
        if process.group.is_across:
            self._world.later(_ACROSS_S, lambda: self._check_left(process.group, _ACROSS_S))

    def _check_left(self, group: RankGroup, within_s: float) -> None:
        """A gang across nodes of which a rank is missing for so long must have ended."""
        left = group.living()
        present = {rank.rank for rank in left if rank.has_begun}
        if not left or len(present) == group.size:
            return
        thawed_s = max(process.thawed_s for rank in left for process in (rank.shim, rank))
        stood_still = any(process.is_frozen for rank in left for process in (rank.shim, rank))
        if stood_still or thawed_s + within_s > self._world.loop.time():
            self._world.later(within_s, lambda: self._check_left(group, within_s))
            return
        self._world.violation(f"rank {left[0].rank} of {left[0].name} was left alone by those of other nodes")

    def _check_ended(self, shim: ShimProcess, within_s: float) -> None:
        left = shim.living_jobs()
        if not left or shim.is_dead:
            return
        thawed_s = max(process.thawed_s for process in (shim, *left))
        stood_still = any(process.is_frozen for process in (shim, *left))
        # A keeper that stood still, or whose ranks did, has had less time.
        if stood_still or thawed_s + within_s > self._world.loop.time():
            self._world.later(within_s, lambda: self._check_ended(shim, within_s))
            return
        self._world.violation(f"rank {left[0].rank} of {left[0].name} was left alone by the others")
