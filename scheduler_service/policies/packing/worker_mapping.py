"""Which devices the workers of one job take: those in use first, then new ones too, all workers or none.

Source:
    Li et al., "Interference-aware opportunistic job placement for shared distributed deep learning clusters" (JPDC),
    Algorithm 2. Line 11's min(v) = 0 holds from the first worker of the second attempt on, so that the new device of a
    later worker never breaks Eq. 8 (line 17 does not check it).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from scheduler_service.core.cluster_view.capacity import Resident
from scheduler_service.core.cluster_view.ledger import Ledger
from scheduler_service.core.records import Reason
from scheduler_service.policies.packing.balanced_groups import BalancedGroups
from scheduler_service.policies.packing.device_offer import Device, Offer
from scheduler_service.policies.packing.packing_rules import ROUNDING_RATIO, PackingRules
from scheduler_service.policies.packing.resulting_interference import WorkerBalance
from scheduler_service.policies.placement.free_gpus import choose_free_gpus

FLOORS_MAX = 8
"""Least slowdowns of a job's own workers that are tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMapping:
    """A job's workers on devices, by rank."""

    worker: Resident
    gpu_ids: tuple[str, ...]
    new_count: int = 0
    scores: tuple[float, ...] = ()

    @property
    def order(self) -> tuple[int, float, float, tuple[str, ...]]:
        """Fewest new devices, then the best worst device, then the best devices together."""
        return self.new_count, max(self.scores, default=0.0), sum(self.scores), self.gpu_ids


class WorkerMapper:
    """Maps one job after another.

    Args:
        ledger: The cluster with what this round has given away; its owner keeps it up to date.
        rules: The constraints of the policy.
        balance: Where the workers of every job are.
    """

    def __init__(self, ledger: Ledger, rules: PackingRules, balance: WorkerBalance) -> None:
        self._ledger = ledger
        self._rules = rules
        self._balance = balance

    def map_job(self, offers: Sequence[Offer]) -> WorkerMapping | None:
        """Return the best mapping of the first attempt that finds one; None = the job does not fit now.

        The attempts: the devices tried first only; new ones as well; new ones only, on as few nodes as possible, which
        finds a place where the limit of nodes stopped the others.
        """
        for attempt in (self._map_first, self._map_with_new, self._map_new_only):
            found = [mapping for offer in offers if (mapping := attempt(offer)) is not None]
            if found:
                return min(found, key=lambda mapping: mapping.order)
        return None

    def balance_obstacle(
        self, worker: Resident, device: Device, chosen: Sequence[Device] = (), others: Sequence[float] = ()
    ) -> Reason | None:
        """Return the job for which Eq. 8 breaks if a worker joins a device: its own or one that it touches.

        Args:
            worker: The worker.
            device: Where it would go.
            chosen: Where the job's workers before it go.
            others: Slowdowns that workers after it are known to have.
        """
        if self._rules.theta_diff is None:
            return None
        own = [device.own_slowdown_ratio, *(before.own_slowdown_ratio for before in chosen), *others]
        job_id, gpu_id = worker.request.job_id, device.gpu_id
        obstacle = self._rules.balance_obstacle(gpu_id, job_id, max(own) - min(own))
        if obstacle is not None:
            return obstacle
        gpu_ids = {gpu_id, *(before.gpu_id for before in chosen)}
        for touched_id in self._balance.wide_jobs_on(gpu_id):
            difference = self._balance.difference_ratio(touched_id, worker, gpu_ids)
            obstacle = self._rules.balance_obstacle(gpu_id, touched_id, difference)
            if obstacle is not None:
                return obstacle
        return None

    def _map_first(self, offer: Offer) -> WorkerMapping | None:
        if len(offer.devices) < offer.worker.request.gpus:
            return None
        return self._spread(offer, with_new=False) or self._map_above_floors(offer)

    def _map_above_floors(self, offer: Offer) -> WorkerMapping | None:
        """Map where the job's own workers are slowed down by at least so much, since best first may have begun too low.

        The paper begins with the device of least interference and keeps what it has begun.
        """
        theta_diff, gpus = self._rules.theta_diff, offer.worker.request.gpus
        if not self._rules.joins_groups or theta_diff is None or gpus == 1:
            return None
        floors = sorted({device.own_slowdown_ratio for device in offer.devices})
        for floor in floors[1 : FLOORS_MAX + 1]:
            most = floor + theta_diff + ROUNDING_RATIO
            within = [device for device in offer.devices if floor <= device.own_slowdown_ratio <= most]
            mapping = self._spread(replace(offer, devices=within), with_new=False) if len(within) >= gpus else None
            if mapping is not None:
                return mapping
        return None

    def _map_with_new(self, offer: Offer) -> WorkerMapping | None:
        gpus = offer.worker.request.gpus
        return self._spread(offer, with_new=True) if len(offer.devices) >= gpus or offer.width >= gpus else None

    def _map_new_only(self, offer: Offer) -> WorkerMapping | None:
        if offer.unused is None:
            return None
        gpu_ids = choose_free_gpus(self._ledger, offer.worker.request, offer.free)
        if gpu_ids is None:
            return None
        return WorkerMapping(worker=offer.worker, gpu_ids=gpu_ids, new_count=len(gpu_ids))

    def _spread(self, offer: Offer, *, with_new: bool) -> WorkerMapping | None:
        chosen: list[Device] = []
        refused: dict[str, str] = {}
        while len(chosen) < offer.worker.request.gpus:
            group = next(self._joining(offer, chosen, refused, with_new=with_new), None)
            if group is None:
                return None
            chosen += group
            # A job out of balance on a refused device may not be any more, now that another worker is co-located.
            touched = {job_id for device in group for job_id in self._balance.wide_jobs_on(device.gpu_id)}
            refused = {gpu_id: job_id for gpu_id, job_id in refused.items() if job_id not in touched}
        return WorkerMapping(
            worker=offer.worker,
            gpu_ids=tuple(device.gpu_id for device in chosen),
            new_count=sum(device.is_new for device in chosen),
            scores=tuple(device.score for device in chosen),
        )

    def _joining(
        self, offer: Offer, chosen: Sequence[Device], refused: dict[str, str], *, with_new: bool
    ) -> Iterator[Sequence[Device]]:
        """Yield what the next workers can take, best first; `refused` keeps for which job Eq. 8 broke where."""
        taken = {device.gpu_id for device in chosen}
        slowdown_of_new = (0.0,) if with_new else ()
        for device in offer.devices:
            gpu_id = device.gpu_id
            if gpu_id in taken or gpu_id in refused or not self._has_room(offer.worker, device.node_id, chosen):
                continue
            obstacle = self.balance_obstacle(offer.worker, device, chosen, slowdown_of_new)
            if obstacle is None:
                yield (device,)
                continue
            unbalanced_id = obstacle.job_ids[0]
            is_first = unbalanced_id not in refused.values()
            refused[gpu_id] = unbalanced_id
            if is_first and unbalanced_id != offer.worker.request.job_id:
                group = self._group(offer, device, chosen, slowdown_of_new)
                if group:
                    yield group
        if with_new:
            yield from ((device,) for device in self._new_devices(offer, chosen))

    def _group(
        self, offer: Offer, first: Device, chosen: Sequence[Device], known_slowdowns: Sequence[float]
    ) -> Sequence[Device]:
        """Return the devices that keep Eq. 8 when the job joins them all; empty = there are none, or none is wanted."""
        if not self._rules.joins_groups or self._rules.theta_diff is None:
            return ()
        groups = BalancedGroups(self._balance, self._rules.theta_diff)
        at_hand = {device.gpu_id: device for device in offer.devices}
        group = groups.around(first, offer.worker, at_hand, chosen, known_slowdowns) or ()
        before = [*chosen]
        for device in group:
            if not self._has_room(offer.worker, device.node_id, before):
                return ()
            before.append(device)
        return group

    def _new_devices(self, offer: Offer, chosen: Sequence[Device]) -> Iterator[Device]:
        """Yield an unused device of each node with room, nodes that the job uses already first."""
        if offer.unused is None:
            return
        taken = {device.gpu_id for device in chosen}
        used = {device.node_id for device in chosen}
        # The free devices come in the order of their nodes.
        for node_id in chain(sorted(used & offer.free.keys()), (one for one in offer.free if one not in used)):
            gpu_id = next((gpu_id for gpu_id in offer.free[node_id] if gpu_id not in taken), None)
            if gpu_id is not None and self._has_room(offer.worker, node_id, chosen):
                index = self._ledger.view.gpus[gpu_id].gpu.index
                yield replace(offer.unused, gpu_id=gpu_id, node_id=node_id, index=index)

    def _has_room(self, worker: Resident, node_id: str, chosen: Sequence[Device]) -> bool:
        """Return whether the node's host and the limit of nodes admit one more worker."""
        view, request = self._ledger.view, worker.request
        if not view.nodes_per_job_max and not request.cpu_cores and not request.host_memory_bytes:
            return True
        node_ids = [device.node_id for device in chosen]
        if view.nodes_per_job_max and len({*node_ids, node_id}) > view.nodes_per_job_max:
            return False
        here = node_ids.count(node_id) + 1
        return self._ledger.host_fits(view.nodes[node_id], request, gpus_here=here, gpus=request.gpus)
