"""All processes of one attempt, on whatever machines: who waits for whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.swarm.job_process import JobProcess
    from tests.simulation.swarm.machine import Machine


class RankGroup:
    """One process, the ranks of a gang, or those of all parts of a gang across nodes; they step together or not at all.

    Attributes:
        size: How many there are to be.
        members: Those that were ever started.
        is_across: They are on several nodes.
    """

    def __init__(self, size: int, *, is_across: bool = False) -> None:
        self.size = size
        self.is_across = is_across
        self.members: list[JobProcess] = []

    def waits(self, process: JobProcess) -> bool:
        """Whether a rank waits for one that does not come: it ended before this leap, stands still, or never began."""
        are_all_here = len({one.rank for one in self.members if one.has_begun}) == self.size
        return not are_all_here or any(
            peer.leaps < process.leaps or (peer.leaps == process.leaps and (peer.is_dead or peer.is_frozen))
            for peer in self.members
            if peer is not process
        )

    def is_first(self, process: JobProcess) -> bool:
        """Whether no other rank has done this leap yet."""
        return all(peer.leaps <= process.leaps for peer in self.members)

    def has_done(self, steps_total: int) -> bool:
        """Whether all ranks have done all steps."""
        done = {one.rank for one in self.members if one.steps_done >= steps_total}
        return len(done) == self.size

    def living(self) -> list[JobProcess]:
        """Those that have not ended."""
        return [one for one in self.members if not one.is_dead]


def group_of(machine: Machine, spec: dict[str, Any], launcher: str, jobs: list[JobProcess]) -> RankGroup:
    """Return the group that a new process of an attempt joins: that of its node, or of all parts of its gang.

    Args:
        machine: Where it runs.
        spec: Of its attempt there.
        launcher: Name of the scheduler that ordered its start.
        jobs: Those of its attempt on its node so far.
    """
    if spec.get("is_part") is not True:
        return jobs[0].group if jobs else RankGroup(max(len(spec["ranks"]), 1))
    attempt = (spec["incarnation_id"], spec["job_id"], spec["attempt"], spec["fence"])
    groups = machine.world.groups.setdefault(attempt, {})
    # A copy of a scheduler goes on with a gang of which the original had started a part: its log held the decision.
    copied_s = machine.world.copied_s.get(launcher, -1.0)
    for group in groups.values():
        if any(0 <= one.ordered_s <= copied_s for one in group.members):
            return group
    return groups.setdefault(launcher, RankGroup(spec["world_size"], is_across=True))
