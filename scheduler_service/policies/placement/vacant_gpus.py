"""GPUs that a job can have though no other one is stopped for it: free ones, and such as others are leaving."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

from scheduler_service.core.cluster_view.inventory import Kind, kind_of
from scheduler_service.core.cluster_view.ledger import Ledger
from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.records import JobRequest
from scheduler_service.policies.placement.long_running import LongRunning
from scheduler_service.policies.placement.offered_gpus import OfferedGpu, cheapest_vacant, offered


class VacantGpus:
    """What is vacant in one round, found at the first use and kept while it shrinks.

    Args:
        ledger: Of the round.
        promised: GPUs that jobs wait for; they grow as the round goes on, as the next ones do.
        leaving: Running jobs that the round stops.
        long_running: Says which GPUs no one job holds; None = all of a node need a look.

    Attributes:
        has_odd_holders: GPUs were seen that are held, but not by one job that stays.
    """

    def __init__(
        self,
        ledger: Ledger,
        promised: AbstractSet[str],
        leaving: AbstractSet[str],
        long_running: LongRunning | None,
    ) -> None:
        self._view: SchedulingView = ledger.view
        self._ledger, self._promised, self._leaving, self._long_running = ledger, promised, leaving, long_running
        self._reported = self._view.index.reported
        self._on_node: dict[tuple[str, Kind], Sequence[OfferedGpu]] = {}
        self._of_kind: dict[Kind, Sequence[OfferedGpu]] = {}
        self.has_odd_holders = False

    def on_node(self, node_id: str, kind: Kind) -> Sequence[OfferedGpu]:
        """Return what is vacant on a node, or about to be, in the order in which a job would take it."""
        offers = self._on_node.get((node_id, kind))
        if offers is None:
            columns = self._long_running
            here = (
                [gpu.gpu_id for gpu in self._view.nodes[node_id].gpus] if columns is None else columns.unheld(node_id)
            )
            offers = self._on_node[node_id, kind] = sorted(self._offers_of(here, kind))
        return [offer for offer in offers if offer.price or self._ledger.is_free(offer.gpu_id)] if offers else offers

    def _offers_of(self, gpu_ids: Iterable[str], kind: Kind) -> list[OfferedGpu]:
        """Return those of some GPUs that are of a kind, promised to no job, and held by none that stays."""
        found, entries, promised = list[OfferedGpu](), self._view.gpus, self._promised
        for gpu_id in gpu_ids:
            entry = entries.get(gpu_id)
            if entry is None or gpu_id in promised or kind_of(entry.gpu) != kind:
                continue
            if not entry.job_ids:
                found.append(offered(1 if entry.is_releasing else 0, 0.0, entry, ()))
            elif all(map(self._is_leaving, entry.job_ids)):
                found.append(offered(1, 0.0, entry, ()))
            else:
                self.has_odd_holders = True
        return found

    def anywhere(self, kind: Kind) -> Sequence[OfferedGpu]:
        """Return what is vacant on all nodes, in the order in which a job would take it."""
        offers = self._of_kind.get(kind)
        if offers is None:
            unheld = self._long_running.unheld_anywhere() if self._long_running is not None else ()
            offers = sorted(self._offers_of(unheld, kind))
        if offers:
            # What is gone in a round does not come back: it was promised to a job, or one has started there.
            gone, is_free = self._promised, self._ledger.is_free
            offers = [one for one in offers if one.gpu_id not in gone and (one.price or is_free(one.gpu_id))]
        self._of_kind[kind] = offers
        return offers

    def cheapest(self, request: JobRequest, kind: Kind) -> Sequence[OfferedGpu] | None:
        """Return the GPUs that a job takes where no job need leave for it and hosts do not matter.

        Most jobs that wait for GPUs to be released have been told so before, and are told again in every round. A plan
        without victims is cheaper than any with some, and each node with enough vacant GPUs is one of those that a look
        at nodes begins with: what is cheapest among the first vacant GPUs of these, and of all, is what it would find.
        """
        nodes_max, gpus = self._view.nodes_per_job_max, request.gpus
        if self._long_running is None or request.cpu_cores or request.host_memory_bytes or (nodes_max > 1 < gpus):
            return None
        return cheapest_vacant(self.anywhere(kind), gpus, is_one_node=nodes_max == 1)

    def forget_nodes(self, gpu_ids: Iterable[str]) -> None:
        """Find what is vacant on the nodes of these GPUs anew: some of it was promised, or jobs leave."""
        if not self._on_node:  # as mostly: vacant GPUs anywhere sufficed
            return
        for entry in map(self._view.gpus.__getitem__, gpu_ids):
            self._on_node.pop((entry.node_id, kind_of(entry.gpu)), None)

    def forget_order(self) -> None:
        """Put all that is vacant in order anew: there is more than before."""
        self._of_kind.clear()

    def _is_leaving(self, job_id: str) -> bool:
        return job_id in self._leaving or self._reported[job_id].is_stopping
