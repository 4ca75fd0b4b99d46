"""What a run's predictor answers: the ground truth, or it with errors drawn from a seed.

Errors belong to a job, never to a moment: every policy of a comparison meets the same ones, whatever it asks and when.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from random import Random
from typing import Protocol

from cotenant_simulator.errors import PredictionsError
from cotenant_simulator.truth.kinds import GroundTruth
from scheduler_service.core.commands import RequestPairPredictions, RequestPrediction
from scheduler_service.core.records import JobPrediction, MemoryPoint, PairPrediction

MODEL_VERSION = "simulated"
NORMAL_QUANTILE_99 = 2.326347874
"""Standard deviations below which 99 % of normal errors lie."""


class Predictor(Protocol):
    """Answers the engine's questions."""

    @property
    def is_per_job(self) -> bool:
        """Every job needs a key of its own, because errors belong to jobs."""

    def job(self, question: RequestPrediction) -> JobPrediction | None:
        """Return what is predicted of a key on a device type, or None where nothing can be."""

    def pairs(self, question: RequestPairPredictions) -> Sequence[PairPrediction]:
        """Return the slowdowns that can be predicted among the members of a question."""


class Errors(Protocol):
    """Factors between ground truth and prediction."""

    @property
    def memory_bound_ratio(self) -> float:
        """What a memory prediction is multiplied with to be exceeded by 1 % of the jobs at most."""

    def factor(self, quantity: str) -> float:
        """Return the factor of the ground truth; the same for the same quantity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoErrors:
    """Everything is predicted as it is."""

    memory_bound_ratio: float = 1.0

    def factor(self, quantity: str) -> float:
        """Return 1."""
        return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNormalErrors:
    """Factors whose logarithm is normal around 0.

    Attributes:
        sigma: Standard deviation of the logarithm.
        seed: Of the run.
    """

    sigma: float
    seed: int

    @property
    def memory_bound_ratio(self) -> float:
        """The 99 % quantile of the error."""
        return exp(NORMAL_QUANTILE_99 * self.sigma)

    def factor(self, quantity: str) -> float:
        """Return the factor drawn for a quantity."""
        return exp(Random(f"{self.seed}/{quantity}").gauss(0.0, self.sigma))


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoPointErrors:
    """Factors 1 + error or 1 - error with equal chance.

    Source:
        Optimus, section 6.3: the errors of Fig. 14.

    Attributes:
        error_ratio: From 0 to less than 1.
        seed: Of the run.
    """

    error_ratio: float
    seed: int

    @property
    def memory_bound_ratio(self) -> float:
        """What makes the lower of the two factors whole again."""
        return 1.0 / (1.0 - self.error_ratio)

    def factor(self, quantity: str) -> float:
        """Return the factor drawn for a quantity."""
        is_over = Random(f"{self.seed}/{quantity}").random() < 0.5
        return 1.0 + self.error_ratio if is_over else 1.0 - self.error_ratio


class TruthPredictor:
    """Predicts from the ground truth, with errors.

    Args:
        truth: The ground truth.
        errors: How predictions differ from it.
    """

    def __init__(self, truth: GroundTruth, errors: Errors) -> None:
        self._truth = truth
        self._errors = errors

    @property
    def is_per_job(self) -> bool:
        """Jobs share keys as long as there are no errors."""
        return not isinstance(self._errors, NoErrors)

    def job(self, question: RequestPrediction) -> JobPrediction | None:
        """Return the true values times the job's errors."""
        kind = self._truth.kind(question.key, question.device)
        if kind is None:
            return None
        place = f"{question.key}/{question.device}"
        step_factor = self._errors.factor(f"step/{place}") / self._truth.speed(question.device)
        memory_factor = self._errors.factor(f"memory/{place}")
        utilization_factor = self._errors.factor(f"utilization/{place}")
        memory: dict[int, MemoryPoint] = {}
        step_ms: dict[tuple[int, int], float] = {}
        for micro_batch_size in question.micro_batch_sizes:
            predicted = int(kind.memory_at_bytes(micro_batch_size) * memory_factor)
            bound = int(predicted * self._errors.memory_bound_ratio)
            memory[micro_batch_size] = MemoryPoint(memory_bytes=predicted, memory_bytes_upper_99=bound)
            for gpus in kind.step_ms_by_gpus:
                passes = -(-kind.batch // (gpus * micro_batch_size))
                step_ms[gpus, micro_batch_size] = kind.step_ms(gpus=gpus, passes=passes) * step_factor
        return JobPrediction(
            key=question.key,
            device=question.device,
            utilization_ratio=min(kind.utilization_ratio * utilization_factor, 1.0),
            memory=memory,
            step_ms=step_ms,
            model_version=MODEL_VERSION,
        )

    def pairs(self, question: RequestPairPredictions) -> list[PairPrediction]:
        """Return the pairs that a new key is part of, in both directions."""
        keys = [member.key for member in question.members]
        wanted = {(victim, other) for victim in keys for other in question.new_keys}
        wanted |= {(victim, other) for victim in question.new_keys for other in keys}
        found = (self._pair(victim, other, question.device) for victim, other in sorted(wanted))
        return [pair for pair in found if pair is not None]

    def _pair(self, victim: str, other: str, device: str) -> PairPrediction | None:
        known = self._truth.measured_slowdown_ratio(victim, other, device)
        if known is None and not self._truth.predicts_unmeasured:
            return None
        true_ratio = self._truth.slowdown_ratio if known is None else known
        ratio = true_ratio * self._errors.factor(f"slowdown/{victim}/{other}/{device}")
        return PairPrediction(
            victim_key=victim,
            other_key=other,
            device=device,
            slowdown_ratio=ratio,
            upper_ratio=ratio,
            model_version=MODEL_VERSION,
        )


def parse_errors(text: str, *, seed: int) -> Errors:
    """Return the errors that `oracle`, `noise:SIGMA` or `error:E` stands for.

    Raises:
        PredictionsError: It stands for nothing.
    """
    name, _, number = text.partition(":")
    if text == "oracle":
        return NoErrors()
    try:
        size = float(number)
    except ValueError:
        size = -1.0
    if name == "noise" and 0 <= size <= 3:
        return LogNormalErrors(sigma=size, seed=seed)
    if name == "error" and 0 <= size < 1:
        return TwoPointErrors(error_ratio=size, seed=seed)
    raise PredictionsError(
        f"predictions {text!r} are not known; write oracle, trained, held-out, noise:SIGMA (0 to 3) or error:E (0 to "
        "below 1)"
    )
