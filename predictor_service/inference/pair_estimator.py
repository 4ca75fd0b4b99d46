"""Slowdowns of all ordered pairs of a list of jobs, computed as arrays."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from statistics import NormalDist
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from cotenant.device_sharing import read_sharing
from predictor_service.features.devices import DeviceType
from predictor_service.features.pair_features import (
    SoloFigures,
    build_pair_features,
    fair_share_slowdowns,
)
from predictor_service.inference.job_estimator import JobEstimator
from predictor_service.inference.observed_pairs import Observation, Pair, log_slowdown
from predictor_service.inference.pair_correction import FloatArray, IndexArray, correct_pairs
from predictor_service.inference.records import Level, PairJob, PairsAnswer, PairsQuestion
from predictor_service.inference.speed_wander import widen_by_wander
from predictor_service.inference.untrained_pairs import expect_pairs, start_pairs
from predictor_service.registry.served_version import Bounded, ServedTarget
from predictor_service.selection.conformal import ConformalBounds

EstimatorOf = Callable[[PairJob], JobEstimator]
Correct = Callable[[PairsAnswer, Mapping[Pair, Observation]], None]
"""Changes an answer in place by what was measured, by keys of jobs."""

_COMMON_CONFIDENCE: Final = 0.9
_STATED_COUNT: Final = 5.0


def estimate_pairs(
    question: PairsQuestion,
    device: DeviceType,
    model: ServedTarget | None,
    estimator_of: EstimatorOf,
    measured: Mapping[Pair, Observation] | None = None,
) -> PairsAnswer:
    """Estimates every ordered pair; the diagonal is a job with a copy of itself.

    Args:
        question: Jobs and what was observed.
        device: What they share.
        model: Trained slowdowns of the device type; None = nothing but what the jobs do alone and what was measured.
        estimator_of: Predicts what is not known of a job alone.
        measured: What was measured of pairs on this device type, by the keys of victim and other job.

    Returns:
        Everything but the names of prediction and model version.
    """
    jobs = question.jobs
    count = len(jobs)
    alone = [_look_alone(job, estimator_of) for job in jobs]
    figures = _solo_figures(alone)
    victim, other = (axis.reshape(-1) for axis in np.indices((count, count), dtype=np.intp))
    analytical_estimate = fair_share_slowdowns(figures, victim, other)
    known = np.array([job.is_known for job in jobs])
    both_known = known[victim] & known[other]
    if model is None:
        start = start_pairs(figures, victim, other, question.sharing)
        bounded = Bounded(value=start, lower=start, upper=start, upper_99=start)
        level = np.full(count * count, Level.FALLBACK, dtype=np.int32)
        in_domain = np.zeros(count * count, dtype=bool)
    else:
        columns = build_pair_features(figures, victim, other, device.memory_bytes)
        bounded = _bounded(model, columns, analytical_estimate, both_known, question.confidence)
        trained, solo_in_domain = (
            np.array([getattr(each, name) for each in alone]) for name in ("is_trained", "is_in_domain")
        )
        usable = trained[victim] & trained[other]
        level = np.where(both_known, Level.SOLO_KNOWN, np.where(usable, Level.GRAPH, Level.FALLBACK)).astype(np.int32)
        in_domain = model.contains(columns) & solo_in_domain[victim] & solo_in_domain[other] & _teaches(model, question)
    shape = (count, count)
    answer = PairsAnswer(
        prediction_id="",
        model_version="",
        job_ids=[job.job_id for job in jobs],
        slowdown_ratio=bounded.value.astype(np.float32).reshape(shape),
        lower=bounded.lower.astype(np.float32).reshape(shape),
        upper=bounded.upper.astype(np.float32).reshape(shape),
        level=level.reshape(shape),
        in_domain=in_domain.reshape(shape),
        times_measured=np.zeros(shape, dtype=np.int32),
    )
    demand = np.clip([each.demand_ratio for each in alone], 0.0, 1.0)
    correct = _correction(model, question, np.outer(demand, demand))
    wait_ratio = np.array([each.wait_ratio for each in alone])
    return _correct(answer, question, correct, measured or {}, wait_ratio)


def _teaches(model: ServedTarget, question: PairsQuestion) -> bool:
    """Whether a model learned from pairs that shared the device as is asked about, as far as either is said."""
    learned = read_sharing(model.record.share_mode)
    return not learned or not question.sharing or learned is question.sharing


class _Alone(NamedTuple):
    """What one job does alone.

    Attributes:
        is_in_domain: It is measured, or predicted in domain.
        is_trained: It is measured, or predicted by a trained model.
        demand_ratio: Utilization where that is known or predicted by a model, else the share of a step not spent
            waiting for input: how the pairs of unmeasured jobs differ, before it is known by how much.
        wait_ratio: Share of a step spent waiting for input.
    """

    utilization_ratio: float
    step_ms: float
    memory_bytes: float
    is_in_domain: bool
    is_trained: bool
    demand_ratio: float
    wait_ratio: float


def _solo_figures(alone: Sequence[_Alone]) -> SoloFigures:
    numbers = np.array([each[:3] for each in alone], dtype=np.float64)
    return SoloFigures(
        utilization_ratio=np.clip(numbers[:, 0], 0.0, 1.0),
        step_ms=numbers[:, 1],
        memory_bytes=numbers[:, 2],
        input_wait_ratio=np.array([each.wait_ratio for each in alone]),
    )


def _look_alone(job: PairJob, estimator_of: EstimatorOf) -> _Alone:
    known = (job.known_utilization_ratio, job.known_step_ms, job.known_memory_bytes)
    if None not in known:
        utilization_ratio, step_ms, memory_bytes = (value or 0.0 for value in known)
        wait_ratio = job.settings.input_wait_share(step_ms)
        return _Alone(utilization_ratio, step_ms, memory_bytes, True, True, utilization_ratio, wait_ratio)
    estimator = estimator_of(job)
    batch = job.settings.global_batch_size
    estimates = (estimator.utilization(batch), estimator.step(batch), estimator.memory(batch))
    missing = [estimate for estimate, value in zip(estimates, known, strict=True) if value is None]
    values = [estimate.value if value is None else value for estimate, value in zip(estimates, known, strict=True)]
    wait_ratio = job.settings.input_wait_share(values[1])
    is_guessed = known[0] is None and estimates[0].level is Level.FALLBACK
    return _Alone(
        values[0],
        values[1],
        values[2],
        all(estimate.in_domain for estimate in missing),
        all(estimate.level is not Level.FALLBACK for estimate in missing),
        1.0 - wait_ratio if is_guessed else values[0],
        wait_ratio,
    )


def _bounded(
    model: ServedTarget,
    columns: np.ndarray[tuple[int, ...], np.dtype[np.float32]],
    analytical_estimate: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    both_known: np.ndarray[tuple[int, ...], np.dtype[np.bool_]],
    confidence: float,
) -> Bounded:
    """Bounds of measured jobs where both are measured, the wider ones of predicted jobs elsewhere."""
    narrow: ConformalBounds = model.record.bounds
    if both_known.all():
        return model.predict_bounded(columns, analytical_estimate, confidence, narrow)
    wide = model.predict_bounded(columns, analytical_estimate, confidence, model.record.graph_bounds or narrow)
    if not both_known.any():
        return wide
    close = model.predict_bounded(columns, analytical_estimate, confidence, narrow)
    return Bounded(
        value=close.value,
        lower=np.where(both_known, close.lower, wide.lower),
        upper=np.where(both_known, close.upper, wide.upper),
        upper_99=np.where(both_known, close.upper_99, wide.upper_99),
    )


def _stated(question: PairsQuestion, *, is_doubtful: bool) -> dict[Pair, Observation]:
    """What the caller measured, with or without doubt: averages of several windows."""
    if not question.observed:
        return {}
    key_of = {job.job_id: job.key for job in question.jobs}
    return {
        (key_of[victim], key_of[other]): Observation(
            count=_STATED_COUNT, mean=log_slowdown(slowdown_ratio), is_doubtful=is_doubtful, times=int(not is_doubtful)
        )
        for (victim, other), slowdown_ratio in question.observed.items()
        if ((victim, other) in question.doubted) is is_doubtful
    }


def _correction(model: ServedTarget | None, question: PairsQuestion, trend: FloatArray) -> Correct:
    """How measured pairs correct all of them; the trend is what fair turns would cost."""
    if model is None:
        return lambda answer, measured: _expect_untrained(answer, question, trend, measured)
    # As the model's own interval promises, of ln(1 + slowdown).
    error_variance = (model.record.bounds.half_width(_COMMON_CONFIDENCE) / _deviations(_COMMON_CONFIDENCE)) ** 2
    return lambda answer, measured: _fold_in_measured(answer, question, error_variance, measured)


def _deviations(confidence: float) -> float:
    """Half width of a central interval in standard deviations."""
    return NormalDist().inv_cdf(0.5 + confidence / 2)


def _correct(
    answer: PairsAnswer,
    question: PairsQuestion,
    correct: Correct,
    measured: Mapping[Pair, Observation],
    wait_ratio: FloatArray,
) -> PairsAnswer:
    """Corrects an answer by what was measured; what is doubtful of it moves values and makes no interval narrower.

    A pair that was predicted surely and measured with doubt only, above the interval that the answer would state
    without that, is sure no more: it is answered as a measured one out of domain, which is tried before it is relied
    on. The scheduler's `PairStore.pair` goes by the same rule until the predictor was told.
    """
    known = {**_stated(question, is_doubtful=True), **measured, **_stated(question, is_doubtful=False)}
    corrected = _copied(answer) if any(seen.is_doubtful for seen in known.values()) else None
    sound = {pair: seen for pair, each in known.items() if (seen := each.without_doubts) is not None}
    certain = _told_of(answer, question, correct, sound)
    stated = widen_by_wander(certain, wait_ratio, question.calibration, question.confidence)
    if corrected is None:
        return stated
    corrected = _told_of(corrected, question, correct, known)
    is_contradicted = _contradicted(stated, question, {pair: known[pair] for pair in known.keys() - sound.keys()})
    certain.level[is_contradicted], certain.in_domain[is_contradicted] = Level.OBSERVED, False
    certain = _united(certain, corrected)
    moved = dataclasses.replace(
        certain, slowdown_ratio=corrected.slowdown_ratio, times_measured=corrected.times_measured
    )
    # Around another value, or of a pair that now counts as measured, the widened range may not hold the stated one.
    return _united(widen_by_wander(moved, wait_ratio, question.calibration, question.confidence), stated)


def _united(answer: PairsAnswer, other: PairsAnswer) -> PairsAnswer:
    """An answer with ranges that hold those of another as well."""
    lower, upper = np.minimum(answer.lower, other.lower), np.maximum(answer.upper, other.upper)
    return dataclasses.replace(answer, lower=lower, upper=upper)


def _contradicted(
    stated: PairsAnswer, question: PairsQuestion, doubtful: Mapping[Pair, Observation]
) -> npt.NDArray[np.bool_]:
    """Which sure answers promise less than was measured with doubt; shape (jobs, jobs)."""
    seen, copies = _place_measured(question, doubtful)
    measured = np.full(stated.in_domain.shape, -np.inf)
    for pair, each in seen.items():
        measured[pair] = each.mean
    is_sure = stated.in_domain & (stated.level != Level.FALLBACK)
    return np.asarray(is_sure & (measured[copies] > np.log1p(stated.upper.astype(np.float64))))


def _told_of(
    answer: PairsAnswer, question: PairsQuestion, correct: Correct, measured: Mapping[Pair, Observation]
) -> PairsAnswer:
    correct(answer, measured)
    _override_observed(answer, question)
    return answer


_COLUMNS: Final = ("slowdown_ratio", "lower", "upper", "level", "in_domain", "times_measured")


def _copied(answer: PairsAnswer) -> PairsAnswer:
    return dataclasses.replace(answer, **{name: getattr(answer, name).copy() for name in _COLUMNS})


def _fold_in_measured(
    answer: PairsAnswer, question: PairsQuestion, error_variance: float, measured: Mapping[Pair, Observation]
) -> None:
    """Corrects all pairs by the measured ones; bounds of measured pairs are those of their next window.

    Copies of a job, whose keys are equal, are corrected as the first of them is.
    """
    if not measured:
        return
    seen, copies = _place_measured(question, measured)
    predicted = np.log1p(answer.slowdown_ratio.astype(np.float64))
    correction = correct_pairs(predicted, error_variance, seen)
    shift = correction.shift[copies]
    for matrix in (answer.slowdown_ratio, answer.lower, answer.upper):
        matrix[:] = np.maximum(np.expm1(np.log1p(matrix.astype(np.float64)) + shift), 0.0)
    least = _deviations(question.confidence) * correction.left[copies]
    value = np.log1p(answer.slowdown_ratio.astype(np.float64))
    answer.lower[:] = np.minimum(answer.lower, np.maximum(np.expm1(value - least), 0.0))
    answer.upper[:] = np.maximum(answer.upper, np.expm1(value + least))
    chosen = [seen[pair] for pair in zip(correction.victim.tolist(), correction.other.tolist(), strict=True)]
    number = np.full(predicted.shape, -1)
    number[correction.victim, correction.other] = np.arange(len(chosen))
    number = number[copies]
    at, which = np.nonzero(number >= 0), number[number >= 0]
    window = np.array([each.variance for each in chosen])
    reach = (_deviations(question.confidence) * np.sqrt(correction.deviation**2 + window))[which]
    answer.lower[at] = np.maximum(np.expm1(value[at] - reach), 0.0)
    answer.upper[at] = np.expm1(value[at] + reach)
    answer.level[at] = Level.OBSERVED
    answer.in_domain[at] = True
    answer.times_measured[at] = np.array([each.times for each in chosen])[which]


def _expect_untrained(
    answer: PairsAnswer, question: PairsQuestion, trend: FloatArray, measured: Mapping[Pair, Observation]
) -> None:
    """Replaces the start of every pair by what is expected; copies of a job are answered as the first of them is."""
    seen, copies = _place_measured(question, measured)
    expect_pairs(answer, trend, question.confidence, seen)
    if seen:
        for name in _COLUMNS:
            matrix = getattr(answer, name)
            matrix[:] = matrix[copies]


def _place_measured(
    question: PairsQuestion, measured: Mapping[Pair, Observation]
) -> tuple[dict[tuple[int, int], Observation], tuple[IndexArray, ...]]:
    """Measured pairs by the places of their jobs, and for every pair the place of the first of its copies."""
    first: dict[str, int] = {}
    place_of = [first.setdefault(job.key, place) for place, job in enumerate(question.jobs)]
    seen = {(first[victim], first[other]): each for (victim, other), each in measured.items()}
    return seen, np.ix_(place_of, place_of)


def _override_observed(answer: PairsAnswer, question: PairsQuestion) -> None:
    places = {job_id: place for place, job_id in enumerate(answer.job_ids)}
    for (victim_id, other_id), slowdown_ratio in question.observed.items():
        if (victim_id, other_id) in question.doubted:
            continue
        place = (places[victim_id], places[other_id])
        for matrix in (answer.slowdown_ratio, answer.lower, answer.upper):
            matrix[place] = max(math.expm1(log_slowdown(slowdown_ratio)), 0.0)
        answer.level[place] = Level.OBSERVED
        answer.in_domain[place] = True
