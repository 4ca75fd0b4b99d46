"""Which devices a job has to join together, because joining one of them alone would unbalance another job there.

A worker that joins one worker of a wide job may slow that one down too much for Eq. 8, while a worker joining each of
them does not. Algorithm 2 looks at one device at a time and therefore takes none of them.

Source:
    Li et al., "Interference-aware opportunistic job placement for shared distributed deep learning clusters" (JPDC),
    Eq. 8. The groups are ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scheduler_service.core.cluster_view.capacity import Resident
from scheduler_service.policies.packing.device_offer import Device
from scheduler_service.policies.packing.packing_rules import ROUNDING_RATIO
from scheduler_service.policies.packing.resulting_interference import WorkerBalance


class BalancedGroups:
    """Grows groups for one worker of a job at a time.

    Args:
        balance: Where every job's workers are.
        theta_diff: The limit of Eq. 8.
    """

    def __init__(self, balance: WorkerBalance, theta_diff: float) -> None:
        self._balance = balance
        self._limit = theta_diff + ROUNDING_RATIO

    def around(
        self,
        first: Device,
        worker: Resident,
        at_hand: Mapping[str, Device],
        chosen: Sequence[Device],
        known_slowdowns: Sequence[float],
    ) -> tuple[Device, ...] | None:
        """Return the fewest devices with this one that keep Eq. 8 for every job when one joins them all, or None.

        Args:
            first: The device that breaks it alone.
            worker: One worker of the job that would come.
            at_hand: Devices that it may join, by id.
            chosen: Those that its workers take already.
            known_slowdowns: Those that further workers of the job are known to have.
        """
        taken = {device.gpu_id for device in chosen}
        group = {first.gpu_id: first}
        while len(chosen) + len(group) <= worker.request.gpus:
            lagging = self._lagging(list(group), taken | group.keys(), worker)
            if not lagging:
                own = [one.own_slowdown_ratio for one in (*chosen, *group.values())]
                own += known_slowdowns
                return tuple(group.values()) if max(own) - min(own) <= self._limit else None
            if not lagging <= at_hand.keys() - taken - group.keys():
                return None
            group |= {gpu_id: at_hand[gpu_id] for gpu_id in sorted(lagging)}
        return None

    def _lagging(self, gpu_ids: Sequence[str], joined: set[str], worker: Resident) -> set[str]:
        """Return where workers of the jobs on these devices are slowed down too little compared with their others."""
        found: set[str] = set()
        for job_id in dict.fromkeys(one for gpu_id in gpu_ids for one in self._balance.wide_jobs_on(gpu_id)):
            slowdowns = self._balance.slowdowns_of(job_id, worker, joined)
            least = max((ratio for _, ratio in slowdowns), default=0.0) - self._limit
            found |= {gpu_id for gpu_id, ratio in slowdowns if ratio < least}
        return found
