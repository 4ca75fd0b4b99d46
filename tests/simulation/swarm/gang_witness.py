"""What must never happen to gangs: one that has half started, or a rank that is left alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.swarm.job_process import JobProcess
    from tests.simulation.swarm.shim_process import ShimProcess
    from tests.simulation.swarm.world import World

RANKS_SILENT_MS = 20_000
"""In the place of the product's half hour."""
_BEGIN_WITHIN_S = 0.5
_END_WITHIN_S = 10.0
"""After a failure: the grace of a stop, a look, and clocks that differ."""
_WAIT_AT_MOST_S = RANKS_SILENT_MS / 1_000 + 20.0
"""After an end with 0: also a last leap, and what an agent notes of it late."""


class GangWitness:
    """Looks at the ranks of a gang some time after one of them began or ended."""

    def __init__(self, world: World) -> None:
        self._world = world

    def rank_begun(self, process: JobProcess) -> None:
        """A rank's program runs from now on; those of the others must as well."""
        if process.ranks:
            self._world.later(_BEGIN_WITHIN_S, lambda: self._check_begun(process))

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
