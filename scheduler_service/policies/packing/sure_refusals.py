"""Which jobs surely refuse a worker, found at a tenth of the cost of saying why."""

from __future__ import annotations

from math import inf

from scheduler_service.core.cluster_view.capacity import Resident, is_reliable
from scheduler_service.core.cluster_view.shared_ways import place_of
from scheduler_service.core.cluster_view.view import Predictions, RunningJob
from scheduler_service.core.records import Gpu
from scheduler_service.core.sharing.colocation_slowdown import is_sure
from scheduler_service.policies.packing.opportunistic_memory import compute_ratio_of
from scheduler_service.policies.packing.packing_rules import ROUNDING_RATIO, PackingRules


class SureRefusals:
    """The jobs with which a worker would compute more than one GPU can, or with which one of both is slowed too much.

    Args:
        worker: The worker that would come.
        gpu: Any of the kind of GPU on which they would share.
        predictions: What is predicted.
        rules: The constraints of the policy.
    """

    __slots__ = ("_alpha", "_compute_ratio", "_device", "_is_reliable", "_known", "_predictions", "_rules", "_worker")

    def __init__(self, worker: Resident, gpu: Gpu, predictions: Predictions, rules: PackingRules) -> None:
        self._worker, self._device, self._predictions, self._rules = worker, gpu.device, predictions, rules
        prediction = predictions.job(worker.request.key, gpu.device)
        self._is_reliable, self._alpha = is_reliable(prediction), rules.alpha
        self._compute_ratio = compute_ratio_of(prediction, self._alpha)
        self._known: dict[tuple[str, str, int, float], bool] = {}

    def include(self, there: RunningJob, gpu: Gpu) -> bool:
        """Say whether the one job on a GPU is among them; False = it has to be asked for its consent."""
        place = place_of(gpu)
        alike = place, there.request.key, there.micro_batch_size, there.request.max_slowdown_ratio
        known = self._known.get(alike)
        if known is None:
            known = self._known[alike] = self._refuses(*alike)
        return known

    def _refuses(self, place: str, other_key: str, other_size: int, other_limit_ratio: float) -> bool:
        prediction = self._predictions.job(other_key, self._device)
        # Of the two reasons this one needs no look at the pair.
        if self._rules.computes_too_much(self._compute_ratio + compute_ratio_of(prediction, self._alpha)):
            return True
        if not self._is_reliable or not is_reliable(prediction):
            return False
        request, theta_max = self._worker.request, self._rules.theta_max
        most_ratio = inf if theta_max is None else theta_max + ROUNDING_RATIO
        pair, sizes = self._predictions.pair, (self._worker.micro_batch_size, other_size)
        own = pair(request.key, other_key, place, *sizes)
        if own is None or not is_sure(own):
            return False
        if own.slowdown_ratio > min(request.max_slowdown_ratio, most_ratio):
            return True
        other = pair(other_key, request.key, place, *reversed(sizes))
        return other is not None and is_sure(other) and other.slowdown_ratio > min(other_limit_ratio, most_ratio)
