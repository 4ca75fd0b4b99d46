"""One round of placement by least cost: filters, Horus' cost, groups of GPUs for gangs.

Source:
    Horus (Yeung et al.), Algorithm 1 lines 7-18 and Eq. 7-10.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf

import numpy as np

from scheduler_service.core.cluster_view.ledger import Ledger
from scheduler_service.core.cluster_view.remaining_time_queue import shape_of
from scheduler_service.core.cluster_view.view import PendingJob, SchedulingView
from scheduler_service.core.decisions import Candidate, Start
from scheduler_service.core.records import JobRequest, Reason
from scheduler_service.policies.placement.cheapest_gpus import CheapestGpus, Costs
from scheduler_service.policies.placement.class_prices import (
    AlikeChanges,
    ClassCosts,
    NearClass,
    NearestClasses,
    Order,
    PricedClasses,
)
from scheduler_service.policies.placement.horus_candidates import HorusCandidates
from scheduler_service.policies.placement.horus_costs import CostModel
from scheduler_service.policies.placement.horus_prices import HorusPrices
from scheduler_service.policies.placement.reasons import (
    full_reason,
    host_reason,
    impossible_reason,
    nearest_obstacle,
)
from scheduler_service.policies.placement.starts import start_on


@dataclass(frozen=True, slots=True)
class _TurnReasons:
    """Why jobs wait, by the load classes of all GPUs and by shape, as the turns of one decision have found it."""

    by_loads: dict[bytes, dict[object, Reason]] = field(default_factory=dict)


class HorusPlacement:
    """Jobs go to their cheapest GPUs, free or not; what earlier jobs took is gone for later ones.

    Args:
        view: The cluster.
        costs: Weights, limits and curves.
    """

    def __init__(self, view: SchedulingView, costs: CostModel) -> None:
        self._view = view
        self._costs = costs
        self._ledger = Ledger(view)
        self._inventory = view.index.inventory
        self._columns = view.index.arrays.for_one_round()
        self._load_prices = HorusPrices(view, costs, self._columns.classes)
        self._candidates = HorusCandidates(self._ledger, self._load_prices, max_jobs_per_gpu=costs.max_jobs_per_gpu)
        self._cheapest = CheapestGpus(view, self._columns, locality_gpus=costs.locality_gpus)
        name = (HorusPlacement, repr(costs), view.nodes_per_job_max, id(view.index.prediction_changes))
        kept = self._columns.notes.get(name)
        if not isinstance(kept, PricedClasses):
            self._columns.notes[name] = kept = PricedClasses(view.index.prediction_changes)
        self._priced = kept
        self._loads: bytes | None = None
        self._asked: JobRequest | None = None
        self._shape: object = None
        self._known: ClassCosts | None = None
        memo, question = view.index.turn_memo, (name, view.nodes_per_job_max)
        told = memo.get(question)
        if not isinstance(told, _TurnReasons):
            memo[question] = told = _TurnReasons()
        # What this turn itself finds out its round keeps for equal jobs.
        self._turns, self._is_told = told, bool(told.by_loads)
        self._told: Mapping[object, Reason] | None = None
        self._is_open: list[bool] = []
        self._open_numbers: list[int] = []
        self._empty_numbers: list[int] = []
        self._costs_of_empty: dict[object, Sequence[tuple[float, int]]] = {}
        self._has_cheap_loads = False
        self._note_open_classes()
        class_of = self._columns.class_of
        self._open_count = int(np.count_nonzero(np.array(self._is_open, dtype=np.bool_)[class_of]))
        # Of each kind of GPU one class is empty.
        self._empty_count = sum(int(np.count_nonzero(class_of == number)) for number in self._empty_numbers)
        self._full = full_reason(view)

    def key(self, job: PendingJob) -> object:
        """Return the shape of a job, which is found once until another job is asked about."""
        if self._asked is not job.request:
            self._asked, self._shape, self._known = job.request, shape_of(job.request), None
        return self._shape

    def closed(self) -> Reason | None:
        """Return why no job can start any more."""
        return None if self._open_count else self._full

    def opens_places(self, start: Start) -> bool:
        """Costs only rise as GPUs fill."""
        return False

    def place(self, job: PendingJob) -> Start | Reason:
        """Start a job on its cheapest GPUs, or return why not."""
        request = job.request
        self._ask_about(job)
        # Another turn of the same decision may have found that an equal job waits before the very same GPUs.
        reason = self._told_now().get(self._shape)
        if reason is not None:
            return reason
        reason = self._impossible(request)
        if reason is None:
            empty = self._cheapest_empty(request)
            if empty is not None:
                return self._start(request, empty[1:], empty[0])
            reason = self._still_waits(request)
        if reason is None:
            chosen, costs = self._cheapest_unasked(request) or self._cheapest_of_all(request)
            if chosen is not None:
                return self._start(request, chosen, float(costs[list(chosen)].sum()))
            # Where no job can start that is the reason, as `closed` returns it where no table of GPUs is asked for.
            reason = self._wait_reason(request, costs) if self._open_count else self._full
        self._tell(reason)
        return reason

    def _ask_about(self, job: PendingJob) -> ClassCosts:
        """Find once what is known of jobs of this shape: a round asks about every shape that waits, in every turn."""
        self._known = self._priced.of(self.key(job), len(self._columns.classes))
        return self._known

    def _impossible(self, request: JobRequest) -> Reason | None:
        known = self._known_costs()
        if known.impossible is None:
            known.impossible = (impossible_reason(self._view, self._inventory, request),)
        return known.impossible[0]

    def _told_now(self) -> Mapping[object, Reason]:
        """Return why jobs wait before the GPUs as they are loaded now, by shape, as turns have found it."""
        if self._told is None:
            # In the first turn, how each GPU is loaded need not be written down after every start.
            self._told = self._turns.by_loads.get(self._loads_now(), {}) if self._is_told else {}
        return self._told

    def _tell(self, reason: Reason) -> None:
        """Note why jobs of the shape that was asked about wait."""
        self._told = told = self._turns.by_loads.setdefault(self._loads_now(), {})
        told[self._shape] = reason

    def _loads_now(self) -> bytes:
        """Return the load classes of all GPUs; a start changes them. It is hashed after every start: few bytes."""
        if self._loads is None:
            kind = np.uint16 if len(self._columns.classes) <= np.iinfo(np.uint16).max else np.intp
            self._loads = self._columns.class_of.astype(kind).tobytes()
        return self._loads

    def candidates(self, job: PendingJob) -> tuple[Candidate, ...]:
        """Return how every GPU looks for a job that waits."""
        return self._candidates.table(job.request, ())

    def _cheapest_of_all(self, request: JobRequest) -> tuple[tuple[int, ...] | None, Costs]:
        """Return the cheapest GPUs, or None, and what each GPU costs."""
        costs = self._cheapest.costs(request, self._costs_of_classes(request))
        return self._cheapest.choose(request, costs), costs

    def _cheapest_empty(self, request: JobRequest) -> tuple[float, int] | None:
        """Return what an empty GPU costs a job, and its position, where no other costs less; None = unsure.

        Of each load class the first GPU is looked at, not each GPU.
        """
        if request.gpus != 1 or self._has_cheap_loads:
            return None
        found = self._empty_places(request)
        is_sure = self._cheapest.are_of_each_kind([position for _, position in found])
        return min(found) if is_sure else None

    def _empty_places(self, request: JobRequest) -> Sequence[tuple[float, int]]:
        """Return what the first GPU of each empty load class that takes a job costs it, and its position."""
        if not self._empty_count:
            return ()
        firsts = [(cost, self._cheapest.first_of_class(request, number)) for cost, number in self._empty_costs()]
        return [(cost, position) for cost, position in firsts if position is not None]

    def _empty_costs(self) -> Sequence[tuple[float, int]]:
        """Return what the empty load classes that take the job that was asked about cost it, with their numbers."""
        known = self._costs_of_empty.get(self._shape)
        if known is None and self._asked is not None:
            values = np.full(len(self._columns.classes), inf)
            self._load_prices.put_unasked(self._asked, self._empty_numbers, values)
            known = [(float(values[number]), number) for number in self._empty_numbers if values[number] < inf]
            self._costs_of_empty[self._shape] = known
        return known or ()

    def _cheapest_unasked(self, request: JobRequest) -> tuple[tuple[int, ...] | None, Costs] | None:
        """Return the same for a job of one GPU where the cheapest of all is empty, or there is none; None = unsure.

        To ask for consent takes most of the time that a price takes, and only makes GPUs in use dearer: a job for
        which an empty GPU is the cheapest needs no answer.
        """
        if request.gpus != 1:
            return None
        costs = self._cheapest.costs(request, self._unasked_costs(request))
        chosen = self._cheapest.choose(request, costs)
        if chosen is None:  # nor does any GPU take it that is asked
            return None, costs
        if self._columns.classes[self._columns.class_of[chosen[0]]].residents:
            return None
        return chosen, costs

    def _unasked_costs(self, request: JobRequest) -> Costs:
        """Return what each load class would cost a job if all jobs there consented."""
        column = self._known_costs().unasked
        first = column.count
        values = column.grow_to(len(self._columns.classes))
        self._load_prices.put_unasked(request, self._open_from(first), values)
        return values

    def _costs_of_classes(self, request: JobRequest) -> Costs:
        """Return what each load class costs a job; equal jobs share it, and only new classes are priced."""
        known = self._known_costs()
        first, classes = known.costs.count, self._columns.classes
        values = known.costs.grow_to(len(classes))
        for number in self._open_from(first):
            price = self._load_prices.price(request, classes[number])
            if isinstance(price, tuple):
                values[number] = price[1]
            else:
                known.nearness.put(number, price)
        return values

    def _known_costs(self) -> ClassCosts:
        """Return what is known of the shape of the job that is asked about."""
        if self._known is None:
            raise AssertionError("no job is asked about")
        return self._known

    def _open_from(self, first: int) -> Sequence[int]:
        """Return the numbers of the classes that could take some job, from one number on."""
        self._note_open_classes()
        return self._open_numbers[bisect_left(self._open_numbers, first) :]

    def _note_open_classes(self) -> None:
        """Keep the numbers of the classes that could take some job; the others need no price."""
        classes, prices = self._columns.classes, self._load_prices
        for number in range(len(self._is_open), len(classes)):
            load = classes[number]
            self._is_open.append(prices.is_open(load))
            if not self._is_open[number]:
                continue
            self._open_numbers.append(number)
            if not load.residents and not load.memory_used_bytes:
                self._empty_numbers.append(number)
            elif not prices.is_dearer_than_empty(load):
                self._has_cheap_loads = True

    def _wait_reason(self, request: JobRequest, costs: Costs) -> Reason:
        """Return the reason that was nearest to a start."""
        found = int(np.isfinite(costs).sum())
        if found:
            most = self._cheapest.most_on_one_node(costs) if request.gpus <= found else found
            if most < request.gpus:
                return Reason(code="NO_FREE_GPU", numbers={"gpus_needed": request.gpus, "gpus_free": most})
            return host_reason(request)
        if not request.cpu_cores and not request.host_memory_bytes:
            return self._nearest_known(request)
        alike = (self._view.gpus[gpu_id] for gpu_id in self._changes().alike.gpu_ids)
        obstacles = [one for one in map(partial(self._candidates.option, request), alike) if isinstance(one, Reason)]
        return nearest_obstacle(obstacles) if obstacles else self._full

    def _nearest_known(self, request: JobRequest) -> Reason:
        """Return the same where hosts refuse nothing: then a class that was priced needs no other look."""
        known, alike = self._known_costs(), self._changes().alike
        for place in known.nearness.unknown(alike):
            self._look_at_class(request, int(alike.numbers[place]), alike.gpu_ids[place])
        nearest = known.nearness.nearest_few(alike)
        return self._nearest_reason(request, nearest, nearest[-1][0]) if nearest else self._full

    def _look_at_class(self, request: JobRequest, number: int, gpu_id: str) -> Order | None:
        """Note how near to a start a job is on the first GPU of a class, if that refuses it; return it."""
        reason, nearness = self._candidates.option(request, self._view.gpus[gpu_id]), self._known_costs().nearness
        if isinstance(reason, Reason):
            nearness.put(number, reason)
        return nearness.order(number, gpu_id)

    def _nearest_reason(self, request: JobRequest, nearest: Sequence[NearClass], farthest: Order) -> Reason:
        """Return why the first of these classes refuses a job, and keep them for equal jobs."""
        known, (order, gpu_id) = self._known_costs(), nearest[0]
        entry, number = self._view.gpus[gpu_id], order[3]
        reason = known.reason_on(number, entry, request.job_id)
        if reason is None:
            found = self._candidates.option(request, entry)
            if not isinstance(found, Reason):
                return self._full
            known.keep_reason(number, entry, request.job_id, reason := found)
        known.waited = NearestClasses(self._priced.alike_changes.version, nearest, farthest)
        return reason

    def _still_waits(self, request: JobRequest) -> Reason | None:
        """Return why a job waits, where an equal one waited before and no class that has come since takes it.

        From one decision to the next few GPUs change what they hold. None = all classes are to be looked at.
        """
        known = self._known_costs()
        # Where an empty GPU takes the job it has come since: none took it, and what a class costs a shape stays.
        if (waited := known.waited) is None or not self._open_count or self._empty_places(request):
            return None
        if self._priced.alike_changes.is_forgotten(waited.version):
            known.waited = None
            return None
        changes = self._changes()
        if (came := changes.came_since(waited.version)) is None:
            return None
        nearest = changes.left_of(waited.nearest)
        costs = self._unasked_costs(request) if request.gpus == 1 else self._costs_of_classes(request)
        for number, gpu_id in came:
            if costs[number] < inf:
                return None
            order = known.nearness.order(number, gpu_id) or self._look_at_class(request, number, gpu_id)
            if order is not None and order < waited.farthest:
                insort(nearest, (order, gpu_id))
        return self._nearest_reason(request, nearest, waited.farthest) if nearest else None

    def _changes(self) -> AlikeChanges:
        """Return the load classes that are left and how they came."""
        self._priced.alike_changes.follow(self._columns)
        return self._priced.alike_changes

    def _start(self, request: JobRequest, chosen: Sequence[int], cost: float) -> Start:
        self._loads = self._told = None
        arrays = self._columns
        gpu_ids = tuple(arrays.gpu_ids[position] for position in chosen)
        resident = self._load_prices.resident(request, self._view.gpus[gpu_ids[0]].gpu)
        if resident is None:
            raise AssertionError(f"{request.job_id} was priced on {gpu_ids[0]} without fitting it")
        table = self._candidates.table(request, gpu_ids)
        pairs = self._costs.curve_pairs.get(self._view.gpus[gpu_ids[0]].gpu.device, 0)
        numbers = {"cost": cost} | ({"curve_pairs_count": float(pairs)} if pairs else {})
        start = start_on(self._ledger, resident, gpu_ids, numbers=numbers, candidates=table)
        class_at = arrays.class_of.item
        self._empty_count -= sum([class_at(position) in self._empty_numbers for position in chosen])
        arrays.place(resident, chosen, self._known_costs().joins)
        self._note_open_classes()
        self._open_count -= sum([not self._is_open[class_at(position)] for position in chosen])
        return start
