"""How a job could share with the one job of a GPU, kept from round to round as long as predictions stand.

Where sharing pays follows from two numbers: how long the running job still needs (r), and how many steps the new one
has left (n). For one pair and one micro-batch it pays if and only if r > n x c, with a constant c of the pair; so one
comparison per GPU finds the jobs that cannot share at all, and only the others are weighed.

Source:
    The SJF-BSBF paper, Theorem 1 and Eq. 18-23. With xi = 1 + slowdown, s the time of a step at the micro-batch, f at
    the full batch, the sum of both ends is less than with waiting, n f + 2 r,
    where the new job ends first (n s xi_A <= r xi_B):  if r > n (s (2 xi_A - xi_A / xi_B) - f),
    where the running one does:                         if r (2 - 2 xi_B + xi_B / xi_A) > n (s - f).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from scheduler_service.core.change_log import ChangeLog
from scheduler_service.core.cluster_view.capacity import reserved_bytes, samples_per_gpu
from scheduler_service.core.cluster_view.inventory import Kind, kind_of
from scheduler_service.core.cluster_view.remaining_time_queue import shape_of
from scheduler_service.core.cluster_view.step_times import steps_ms_of
from scheduler_service.core.cluster_view.view import Predictions, SchedulingView
from scheduler_service.core.records import Gpu, JobRequest, Reason
from scheduler_service.policies.pairing.occupied_gpu import OccupiedGpu, SecondPlace
from scheduler_service.policies.pairing.pair_sharing import micro_batch_sizes_of
from scheduler_service.policies.placement.reasons import nearest_obstacle

ANSWERS_MAX = 20_000
"""Answers kept; beyond them everything is asked anew."""
ROUNDING_RATIO = 1e-6
"""How far below its bound a remaining time still counts as one that may pay: the weighing itself decides."""
GAIN_MIN = 1e-9


class PairOption(NamedTuple):
    """One micro-batch that a job may use next to a partner.

    Attributes:
        step_ms: One optimizer step of the job alone.
        slowdown_ratio: How much slower the job gets.
        partner_slowdown_ratio: How much slower its partner gets.
        micro_batch_size: Samples per pass.
    """

    step_ms: float
    slowdown_ratio: float
    partner_slowdown_ratio: float
    micro_batch_size: int


@dataclass(frozen=True, slots=True)
class PairAnswer:
    """How jobs of one shape may share with partners of one shape.

    Attributes:
        full_step_ms: One optimizer step alone with the whole batch at once; None = unknown.
        options: The micro-batches that may join, largest first.
        nearest: Why the others may not: the reason that was nearest to a start, and the jobs it named.
    """

    full_step_ms: float | None = None
    options: tuple[PairOption, ...] = ()
    nearest: Reason | None = None
    job_id: str = ""
    partner_id: str = ""

    @property
    def remaining_per_step_ms(self) -> float:
        """How long the partner must at least still need for every step that the job has left; infinite = never pays."""
        if self.full_step_ms is None:
            return inf
        return min((_remaining_per_step_ms(self.full_step_ms, option) for option in self.options), default=inf)


class OwnPass(NamedTuple):
    """What one micro-batch means for a job on a kind of GPU, whichever job it shares with.

    Attributes:
        micro_batch_size: Samples per pass.
        step_ms: One optimizer step of the job alone; None = unknown.
        reserved_bytes: Memory to reserve; None = it does not fit even alone.
    """

    micro_batch_size: int
    step_ms: float | None
    reserved_bytes: int | None


def answer_pair(request: JobRequest, occupied_gpu: OccupiedGpu, passes: Sequence[OwnPass]) -> PairAnswer:
    """Return how a job may share a GPU with the job that is there.

    Args:
        request: The job.
        occupied_gpu: The GPU.
        passes: `own_passes` of the job on such a GPU.
    """
    options: list[PairOption] = []
    obstacles: list[Reason] = []
    place = SecondPlace(occupied_gpu, request)
    for micro_batch_size, step_ms, memory_bytes in passes:
        admitted = place.admit(micro_batch_size, memory_bytes)
        if isinstance(admitted, Reason):
            obstacles.append(admitted)
        elif step_ms is not None:
            options.append(PairOption(step_ms, *admitted, micro_batch_size))
    return PairAnswer(
        full_step_ms=passes[0].step_ms,
        options=tuple(options),
        nearest=nearest_obstacle(obstacles) if obstacles else None,
        job_id=request.job_id,
        partner_id=occupied_gpu.partner_id,
    )


def own_passes(request: JobRequest, predictions: Predictions, gpu: Gpu) -> Sequence[OwnPass]:
    """Return the micro-batches that a job may use on a kind of GPU, the whole batch at once first."""
    prediction = predictions.job(request.key, gpu.device)
    samples = samples_per_gpu(request, request.gpus)
    sizes = (samples,) if request.takes_whole_batch else tuple(micro_batch_sizes_of(samples))
    steps_ms = steps_ms_of(request, prediction, gpus=request.gpus, micro_batch_sizes=sizes)
    return [OwnPass(size, steps_ms[size], reserved_bytes(request, prediction, size, gpu)) for size in sizes]


def _remaining_per_step_ms(full_ms: float, option: PairOption) -> float:
    step_ms, own, other, _ = option
    own_pace, other_pace = 1 + own, 1 + other
    if step_ms < full_ms:
        return -1.0  # not a pair of lines any more: it is always weighed
    gain = 2 - 2 * other_pace + other_pace / own_pace
    bound = (step_ms - full_ms) / gain if gain > GAIN_MIN else inf
    if bound * other_pace > step_ms * own_pace:
        bound = step_ms * (2 * own_pace - own_pace / other_pace) - full_ms
    return bound * (1 - ROUNDING_RATIO)


_Keys = tuple[str, str]
"""Keys of the incoming job and of the one that is there."""


class KnownAnswers:
    """Answers by the shape of a job and the shape of an occupied GPU.

    Args:
        predictions: What the answers follow from.
        changes: Reports what of it has changed.
    """

    def __init__(self, predictions: Predictions, changes: ChangeLog) -> None:
        self.predictions, self._changes = predictions, changes
        self._seen = changes.count
        self._count = 0
        self._answers: dict[_Keys, dict[object, PairAnswer]] = {}
        self._own_passes: dict[str, dict[tuple[object, Kind], Sequence[OwnPass]]] = {}

    def answer(self, request: JobRequest, occupied_gpu: OccupiedGpu) -> PairAnswer:
        """Return how a job may share a GPU with the one job there."""
        shape, keys = shape_of(request), (request.key, occupied_gpu.partner.request.key)
        of_keys = self._answers.setdefault(keys, {})
        name = (shape, occupied_gpu.shape)
        known = of_keys.get(name)
        if known is None:
            known = of_keys[name] = answer_pair(request, occupied_gpu, self._passes(shape, request, occupied_gpu))
            self._count += 1
        return known

    def _passes(self, shape: object, request: JobRequest, occupied_gpu: OccupiedGpu) -> Sequence[OwnPass]:
        gpu, of_key = occupied_gpu.entry.gpu, self._own_passes.setdefault(request.key, {})
        name = (shape, kind_of(gpu))
        known = of_key.get(name)
        if known is None:
            known = of_key[name] = own_passes(request, self.predictions, gpu)
        return known

    def catch_up(self) -> bool:
        """Forget what predictions have changed; False when everything must be forgotten."""
        if self._count > ANSWERS_MAX:
            return False
        if self._seen == self._changes.count:
            return True
        changed, self._seen = self._changes.since(self._seen), self._changes.count
        if changed is None:
            return False
        for key, other in changed:
            if other:
                self._forget((key, other))
                self._forget((other, key))
            else:
                self._own_passes.pop(key, None)
                for keys in [keys for keys in self._answers if key in keys]:
                    self._forget(keys)
        return True

    def _forget(self, keys: _Keys) -> None:
        self._count -= len(self._answers.pop(keys, ()))


def known_answers_of(view: SchedulingView) -> KnownAnswers:
    """Return the answers that are kept with the index of a view."""
    kept_answers = view.index.kept_answers
    kept = kept_answers.get(KnownAnswers)
    if isinstance(kept, KnownAnswers) and kept.predictions is view.predictions and kept.catch_up():
        return kept
    kept_answers[KnownAnswers] = fresh = KnownAnswers(view.predictions, view.index.prediction_changes)
    return fresh
