"""How much jobs that share one GPU slow each of them down: the one formula for consent, reasons and records.

A job that shares with one other is slowed down by what is predicted of the pair. Of three and more the pairs add up,
and the others, who wait for each other too, want the GPU for longer: that costs the job in proportion to how much it
wants the GPU itself. Exact for fair turns of three jobs; of more, every two others count by themselves. Under MPS
jobs take no turns, so that nothing comes on top.

`with_mutual_waits` and `mutual_wait_ratio` take numbers and arrays of them alike, so that what is computed for one GPU
and for all GPUs at once is the same expression.

Source:
    Mean value analysis of one shared queue, as in the predictor's composition of several jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from cotenant.device_sharing import DeviceSharing
from scheduler_service.core.cluster_view.capacity import Resident, doubt_code, is_reliable
from scheduler_service.core.cluster_view.shared_ways import place_of
from scheduler_service.core.cluster_view.view import Predictions
from scheduler_service.core.records import Gpu, Level, PairPrediction, Reason, Share

Ratio = TypeVar("Ratio", float, NDArray[np.float64])


def colocation_slowdown_ratio(
    utilization_ratio: float, other_utilization_ratios: Sequence[float], pair_slowdown_ratios: Sequence[float]
) -> float:
    """Return how much longer a step of a job takes with all others on its GPU; 0.2 = 20 % longer.

    Args:
        utilization_ratio: Share of its time alone in which the job wants the GPU, 0 to 1.
        other_utilization_ratios: The same of each other job there.
        pair_slowdown_ratios: How much each of those alone slows the job down; a speed-up counts as 0.
    """
    waits_ratio = sum(mutual_wait_ratio(one, two) for one, two in combinations(other_utilization_ratios, 2))
    return with_mutual_waits(sum_of_pairs(pair_slowdown_ratios), utilization_ratio, waits_ratio)


def sum_of_pairs(pair_slowdown_ratios: Iterable[float]) -> float:
    """Return the slowdown of a job as a sum over each other one alone, which is what some papers weigh."""
    total_ratio = 0.0
    for ratio in pair_slowdown_ratios:
        if ratio > 0.0:
            total_ratio += ratio
    return total_ratio


def with_mutual_waits(pairwise_sum_ratio: Ratio, utilization_ratio: Ratio, waits_ratio: Ratio) -> Ratio:
    """Return the slowdown of a job, at least the sum of its pairs.

    Args:
        pairwise_sum_ratio: Slowdowns by each other job alone, added up.
        utilization_ratio: Share of its time alone in which the job wants the GPU.
        waits_ratio: `mutual_wait_ratio` of every two others, added up; 0 where there is only one.
    """
    return pairwise_sum_ratio + utilization_ratio * waits_ratio


def mutual_wait_ratio(one_ratio: Ratio, two_ratio: Ratio) -> Ratio:
    """Return for how much longer two co-located jobs want a GPU than apart, as a share of a third job's step.

    Each wants it for (u + s) / (1 + s) of its time, s = u1 * u2 being its slowdown by the other in fair turns.

    Args:
        one_ratio: Utilization of the first alone, 0 to 1.
        two_ratio: Utilization of the second.
    """
    product = one_ratio * two_ratio
    return product * (2.0 - one_ratio - two_ratio) / (1.0 + product)


def takes_turns(gpu: Gpu, predictions: Predictions) -> bool:
    """Say whether jobs of a GPU wait for each other: under MPS their kernels run side by side, and slowdowns add up."""
    return (gpu.sharing or predictions.sharing.get(gpu.device)) is not DeviceSharing.MPS


def ways_of_sharing(gpus: Iterable[Gpu], predictions: Predictions) -> Mapping[str, float]:
    """Return what a reason says of GPUs of a type that is shared in several ways; empty = it is in one.

    The number of the way of these GPUs is left out where not all of them are shared alike.
    """
    counts = predictions.ways_counts
    mixed = [gpu for gpu in gpus if gpu.device in counts] if counts else []
    if not mixed:
        return {}
    ways = {int(gpu.sharing) for gpu in mixed}
    here = {"way_here": float(ways.pop())} if len(ways) == 1 else {}
    return {"ways_count": max(counts[gpu.device] for gpu in mixed), **here}


class ExpectedSlowdown(NamedTuple):
    """How much co-located jobs are expected to slow one of them down.

    Attributes:
        ratio: 0.2 = a step takes 20 % longer; what nothing is predicted of adds nothing.
        pairwise_sum_ratio: The part of it that each other job causes alone, which is what some papers weigh.
        is_known: Every pair is predicted or measured, or estimated for a trial.
        doubt: Why the ratio is not reliable; None = it is.
        may_try: The two jobs may find out by sharing on trial, as far as they and their measurements are asked.
    """

    ratio: float
    pairwise_sum_ratio: float
    is_known: bool
    doubt: Reason | None
    may_try: bool = False


def expected_slowdown(
    victim: Resident, others: Sequence[Resident], gpu: Gpu, predictions: Predictions
) -> ExpectedSlowdown:
    """Return how much one job is slowed down by all others on its GPU, as far as predictions say."""
    return next(expected_slowdowns((victim, *others), gpu, predictions))[1]


def expected_slowdowns(
    residents: Sequence[Resident], gpu: Gpu, predictions: Predictions
) -> Iterator[tuple[Resident, ExpectedSlowdown]]:
    """Yield each job of one GPU with its slowdown by all others there, in their order.

    What is known of a job alone is looked up once, however many others it is met with.
    """
    doubts = [_job_doubt(one, gpu, predictions) for one in residents]
    is_simple = len(residents) == 2 and doubts[0] is None and doubts[1] is None
    trial_ratio: float | None = None
    is_trial_asked = False
    # Most questions are about two jobs, for which utilization does not matter.
    are_turns = len(residents) > 2 and takes_turns(gpu, predictions)
    utilizations = [utilization_of(one, gpu, predictions) for one in residents] if are_turns else ()
    for place, victim in enumerate(residents):
        if is_simple and (sure := _sure_slowdown(victim, residents[1 - place], gpu, predictions)) is not None:
            yield victim, sure
            continue
        pair_ratios, is_known, doubt = _with_each_resident(place, residents, doubts, gpu, predictions)
        ratio = pairwise_sum_ratio = sum_of_pairs(pair_ratios)
        if utilizations:
            others = (*utilizations[:place], *utilizations[place + 1 :])
            ratio = colocation_slowdown_ratio(utilizations[place], others, pair_ratios)
        if doubt is not None and len(residents) == 2:
            if not is_trial_asked:
                trial_ratio, is_trial_asked = fair_turns_ratio(residents, gpu, predictions), True
            if trial_ratio is not None:
                if not _outranks_fair_turns(victim, residents[1 - place], gpu, predictions):
                    ratio = pairwise_sum_ratio = trial_ratio
                yield victim, ExpectedSlowdown(ratio, pairwise_sum_ratio, is_known=True, doubt=doubt, may_try=True)
                continue
        yield victim, ExpectedSlowdown(ratio, pairwise_sum_ratio, is_known, doubt)


def _with_each_resident(
    place: int, residents: Sequence[Resident], doubts: Sequence[Reason | None], gpu: Gpu, predictions: Predictions
) -> tuple[list[float], bool, Reason | None]:
    """Return how much each other job slows one down, whether all of that is known, and why it is not reliable."""
    victim = residents[place]
    key, micro_batch_size, doubt = victim.request.key, victim.micro_batch_size, doubts[place]
    where = place_of(gpu)
    pair_ratios, is_known = list[float](), True
    for other_place, other in enumerate(residents):
        if other_place == place:
            continue
        pair = predictions.pair(key, other.request.key, where, micro_batch_size, other.micro_batch_size)
        if pair is None or pair.level is Level.FALLBACK:
            is_known = False
            doubt = doubt or _doubt("PAIR_UNKNOWN", gpu, victim, other)
        elif not pair.in_domain:
            # What was measured with doubt is unlike nothing that the model knows.
            code = "PAIR_UNKNOWN" if pair.level is Level.OBSERVED else "OUT_OF_DOMAIN"
            doubt = doubt or _doubt(code, gpu, victim, other)
        doubt = doubt or doubts[other_place]
        pair_ratios.append(pair.slowdown_ratio if pair is not None else 0.0)
    return pair_ratios, is_known, doubt


class PairSlowdowns:
    """`expected_slowdowns` of two jobs at many micro-batches of the first: what those do not change is found once.

    Args:
        incoming_job: The job that would be there at several micro-batches; its own one does not matter.
        resident: The other job.
        gpu: Where they share.
        predictions: What is predicted.
    """

    __slots__ = ("_gpu", "_incoming_job", "_is_reliable", "_keys", "_place", "_predictions", "_resident")

    def __init__(self, incoming_job: Resident, resident: Resident, gpu: Gpu, predictions: Predictions) -> None:
        self._incoming_job, self._resident, self._gpu, self._predictions = incoming_job, resident, gpu, predictions
        self._place, device = place_of(gpu), gpu.device
        self._keys = key, other_key = incoming_job.request.key, resident.request.key
        self._is_reliable = is_reliable(predictions.job(key, device)) and is_reliable(
            predictions.job(other_key, device)
        )

    def at(self, micro_batch_size: int) -> tuple[ExpectedSlowdown, ExpectedSlowdown]:
        """Return the slowdowns of both, the first job taking so many samples per pass."""
        if self._is_reliable:
            (key, other_key), place, pair = self._keys, self._place, self._predictions.pair
            other_size = self._resident.micro_batch_size
            own = pair(key, other_key, place, micro_batch_size, other_size)
            if own is not None and is_sure(own):
                other = pair(other_key, key, place, other_size, micro_batch_size)
                if other is not None and is_sure(other):
                    return _without_doubt(own), _without_doubt(other)
        incoming_job = replace(self._incoming_job, micro_batch_size=micro_batch_size)
        (_, one), (_, two) = expected_slowdowns((incoming_job, self._resident), self._gpu, self._predictions)
        return one, two


def _sure_slowdown(victim: Resident, other: Resident, gpu: Gpu, predictions: Predictions) -> ExpectedSlowdown | None:
    """Return the slowdown of a job by one other, both reliably known alone; None = of the pair too little is known."""
    sizes = victim.micro_batch_size, other.micro_batch_size
    pair = predictions.pair(victim.request.key, other.request.key, place_of(gpu), *sizes)
    return _without_doubt(pair) if pair is not None and is_sure(pair) else None


def _outranks_fair_turns(victim: Resident, other: Resident, gpu: Gpu, predictions: Predictions) -> bool:
    """Say whether a pair was measured or is reliably predicted.

    What two graphs unlike the measured ones let expect says less than what was measured of both jobs alone.
    """
    sizes = victim.micro_batch_size, other.micro_batch_size
    pair = predictions.pair(victim.request.key, other.request.key, place_of(gpu), *sizes)
    return pair is not None and (pair.level is Level.OBSERVED or is_sure(pair))


def is_sure(pair: PairPrediction) -> bool:
    """Say whether a slowdown is predicted reliably, as far as the pair goes."""
    return pair.in_domain and pair.level is not Level.FALLBACK


def _without_doubt(pair: PairPrediction) -> ExpectedSlowdown:
    """Return the slowdown of a job by the only other one, both of which are reliably predicted."""
    ratio = pair.slowdown_ratio if pair.slowdown_ratio > 0.0 else 0.0
    return ExpectedSlowdown(ratio, ratio, is_known=True, doubt=None)


def fair_turns_ratio(residents: Sequence[Resident], gpu: Gpu, predictions: Predictions) -> float | None:
    """Return what two jobs would lose to each other in fair turns by their utilizations, or None where no trial may be.

    A trial needs both jobs measured alone on such a device, so that their memory is known and their slowdown can be
    told; each holds one GPU, and neither is on trial or refuses to be. Jobs that both accept the unknown need none.
    """
    if all(one.request.share is Share.ANY for one in residents):
        return None
    product = 1.0
    for one in residents:
        prediction = predictions.job(one.request.key, gpu.device)
        if prediction is None or not is_reliable(prediction) or not one.is_open_to_trial:
            return None
        if one.micro_batch_size not in prediction.measured_micro_batch_sizes:
            return None
        product *= min(max(prediction.utilization_ratio, 0.0), 1.0)
    return product


class PlacementSlowdown(NamedTuple):
    """What sharing is expected to cost where a job is placed, at worst over its GPUs.

    Attributes:
        own_ratio: Of the job; None = a pair is unknown.
        neighbour_ratio: Of the most slowed of the jobs that it shares with; None = a pair is unknown.
        neighbour_ids: Those jobs; empty = it is alone.
        is_on_trial: A job that shares only on reliable predictions shares here to find out.
    """

    own_ratio: float | None
    neighbour_ratio: float | None
    neighbour_ids: tuple[str, ...]
    is_on_trial: bool = False

    @property
    def is_known(self) -> bool:
        """Both sides are known."""
        return self.own_ratio is not None and self.neighbour_ratio is not None


ALONE = PlacementSlowdown(own_ratio=0.0, neighbour_ratio=0.0, neighbour_ids=())
"""Of a job that shares none of its GPUs."""


def placement_slowdown(
    incoming_job: Resident, gpus: Iterable[Iterable[tuple[Resident, ExpectedSlowdown]]]
) -> PlacementSlowdown:
    """Return what sharing would cost a job and those that it shares with.

    Args:
        incoming_job: The job.
        gpus: Of each of its GPUs that it shares, `expected_slowdowns` with the job.
    """
    own_ratio = neighbour_ratio = 0.0
    is_own_known = is_neighbour_known = True
    neighbour_ids: dict[str, None] = {}
    is_on_trial = False
    for slowdowns in gpus:
        for victim, (ratio, _, is_known, doubt, may_try) in slowdowns:
            is_on_trial |= may_try and doubt is not None and victim.request.share is Share.SAFE
            if victim is incoming_job:
                is_own_known &= is_known
                own_ratio = ratio if ratio > own_ratio else own_ratio
            else:
                is_neighbour_known &= is_known
                neighbour_ratio = ratio if ratio > neighbour_ratio else neighbour_ratio
                neighbour_ids[victim.request.job_id] = None
    return PlacementSlowdown(
        own_ratio if is_own_known else None,
        neighbour_ratio if is_neighbour_known else None,
        tuple(neighbour_ids),
        is_on_trial,
    )


def utilization_of(resident: Resident, gpu: Gpu, predictions: Predictions) -> float:
    """Return the share of its time alone in which a job wants the GPU; 0 = nothing is predicted."""
    prediction = predictions.job(resident.request.key, gpu.device)
    return min(max(prediction.utilization_ratio, 0.0), 1.0) if prediction is not None else 0.0


def _job_doubt(resident: Resident, gpu: Gpu, predictions: Predictions) -> Reason | None:
    prediction = predictions.job(resident.request.key, gpu.device)
    code = doubt_code(prediction)
    return None if code is None else _doubt(code, gpu, resident)


def _doubt(code: str, gpu: Gpu, *residents: Resident) -> Reason:
    return Reason(code=code, job_ids=tuple(one.request.job_id for one in residents), gpu_ids=(gpu.gpu_id,))
