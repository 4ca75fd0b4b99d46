"""A question about one job with everything found out that does not depend on its batch.

Schedulers try one job at many batches. Checks, graph, models and the job's key but for its batch are found once; what
is left is reading curves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Final

from cotenant.memory_verdict import MemoryVerdict, judge_memory
from predictor_service.errors import invalid_field
from predictor_service.features.device_names import NamedDevice
from predictor_service.features.graphs.graph_description import GraphDescription
from predictor_service.features.graphs.graph_extraction import UNCOUNTED_MACS
from predictor_service.features.job_settings import check_batch_size
from predictor_service.inference.job_estimator import JobEstimator
from predictor_service.inference.observed_jobs import ObservedJobs, RelatedJob, line_key, weigh_observed
from predictor_service.inference.records import Estimate, JobAnswer, JobQuestion, Level, MicroBatchEstimate, Notice
from predictor_service.inference.related_jobs import Curve, follow_memory, follow_step, keep_above_smaller
from predictor_service.inference.unusual_features import OF_OTHERS, UNUSUAL_MAX
from predictor_service.registry.manifest import BasisRecord, say_basis
from predictor_service.registry.served_version import ServedVersion
from predictor_service.selection.targets import MEMORY, STEP, UTILIZATION

MICRO_BATCH_SIZES_MAX: Final = 64
NO_VERSION: Final = "none"
_NO_TRAINED_MODEL: Final = Notice(
    code="NO_TRAINED_MODEL",
    message="no model of such jobs on this device type: estimated from others; `cotenant retrain` learns from rows",
)
_PUBLIC_MODEL: Final = "learned from what others measured of this device type (public sets): ranges not checked here"
_GENERIC_PEAKS_FACTOR: Final = 5.0
"""How far the peaks of the known GPUs are from their middle, either way; times the error of a bare roofline."""
_UNCOUNTED: Final = "multiply-adds of operators without a known shape, which count as 0"
_GIBIBYTE: Final = 1 << 30
_REASONS_MAX: Final = 1_024


class PreparedJob:
    """Answers a question at any batch; safe for many threads.

    Args:
        question: Checked; its batch is not looked at.
        device: What the question's device type means, with the memory asked for.
        graph: The job's graph.
        estimator: Of the job.
        version: Whose models the estimator asks; None = nothing was ever trained.
        at_precision: Estimator of the same job at another precision; None = measurements there are not looked at.
        notices: Further ones that every answer carries.
    """

    def __init__(
        self,
        question: JobQuestion,
        device: NamedDevice,
        graph: GraphDescription,
        estimator: JobEstimator,
        version: ServedVersion | None,
        *,
        at_precision: Callable[[str], JobEstimator] | None = None,
        notices: Sequence[Notice] = (),
    ) -> None:
        self.question = question
        self.graph = graph
        self.version = version
        self.device = device
        self._estimator = estimator
        self._at_precision = at_precision
        self._key_at = question.settings.keys(graph.graph_sha256)
        graph_notices = (Notice(code=warning.code, message=warning.message) for warning in graph.warnings)
        self._steady_notices = (*graph_notices, *_generic_notices(device), *notices)

    def answer(self, batch: int, prediction_id: str, observed: ObservedJobs) -> JobAnswer:
        """Predicts the job at one batch.

        Args:
            batch: Samples per step.
            prediction_id: Of the answer.
            observed: What was measured of jobs.

        Raises:
            InvalidBatchError: The batch is outside its range.
            InvalidRequestError: A micro-batch is larger than the batch.
        """
        question, estimator, device = self.question, self._estimator, self.device
        memory_bytes = device.device.memory_bytes if device.is_memory_known else 0
        check_batch_size(batch, "global_batch_size")
        check_micro_batch_sizes(question.micro_batch_sizes, batch)
        memory, step, utilization = estimator.memory(batch), estimator.step(batch), estimator.utilization(batch)
        if question.explain:
            memory, step = estimator.explain(memory, MEMORY, batch), estimator.explain(step, STEP, batch)
            utilization = estimator.explain(utilization, UTILIZATION, batch)
        step, job_key = self._widened(step), self._key_at(batch)
        predicted_99 = memory.upper_99 or memory.upper
        memory, step, utilization = self._as_counted(memory, step, utilization)
        seen, related = observed.find(device.device.name, job_key), self._related(observed)
        if related:
            memory, step = self._follow(batch, related)
        if seen is not None:
            utilization, memory, weighed = weigh_observed(seen, utilization=utilization, memory=memory, step=step)
            step = step if step.level is Level.OBSERVED else weighed
        if related:
            memory = keep_above_smaller(memory, question.settings.precision, batch, related)
        raised_ratio = max((memory.upper_99 or memory.upper) / predicted_99, 1.0)
        fits = (memory.upper_99 or memory.upper) <= memory_bytes
        notices = _notices(memory, step, memory_bytes, is_generic=device.is_generic)
        if memory_bytes and not fits:
            notices += _risk_notices(estimator, memory, batch, memory_bytes)
        # By position: sixteen names double the time.
        return JobAnswer(
            prediction_id,
            self.version.version if self.version else NO_VERSION,
            utilization,
            estimator.sm_activity(batch),
            memory,
            step,
            fits,
            estimator.largest_batch(int(memory_bytes / raised_ratio))
            if question.find_largest_batch and memory_bytes
            else None,
            tuple([self._micro_batch(batch, size) for size in question.micro_batch_sizes]),
            self.graph,
            memory_bytes,
            (*self._steady_notices, *notices, *(_explanations(estimator, batch) if question.explain else ())),
            job_key,
            device.device.name,
            device.is_generic,
            estimator.memory_states(batch, memory) if question.find_memory_states else None,
        )

    @cached_property
    def _line(self) -> str:
        return line_key(self.graph.graph_sha256, self.question.settings)

    @cached_property
    def _uncounted_factor(self) -> float:
        """How much more there may be than was counted, if operators without a shape do what the others do; 1 = none."""
        graph = self.graph
        if not any(warning.code == UNCOUNTED_MACS for warning in graph.warnings):
            return 1.0
        return graph.nodes / max(graph.nodes - graph.unshaped_nodes, 1)

    def _as_counted(self, memory: Estimate, step: Estimate, utilization: Estimate) -> tuple[Estimate, ...]:
        """What is estimated of a graph that may lack counts; a share of time is at most 1."""
        factor = self._uncounted_factor
        if factor == 1.0:
            return memory, step, utilization
        return _uncounted(memory, factor), _uncounted(step, factor), _uncounted(utilization, 1.0)

    def _micro_batch(self, batch: int, size: int) -> MicroBatchEstimate:
        found = _micro_batch_size(self._estimator, batch, size)
        factor = self._uncounted_factor
        if factor == 1.0:
            return found
        memory, step = _uncounted(found.memory_bytes, factor), _uncounted(found.step_ms, factor)
        return dataclasses.replace(found, memory_bytes=memory, step_ms=step)

    def _widened(self, step: Estimate) -> Estimate:
        """A step time; less is known of it where not even the peaks of the device are."""
        if not self.device.is_generic:
            return step
        return step._replace(lower=step.lower / _GENERIC_PEAKS_FACTOR, upper=step.upper * _GENERIC_PEAKS_FACTOR)

    def _related(self, observed: ObservedJobs) -> Sequence[RelatedJob]:
        """What was measured of the job at any batch, and at precisions whose predictions it can be compared with."""
        if not observed.has_related:
            return ()
        found = observed.related(self.device.device.name, self._line)
        if self._at_precision is not None:
            return found
        return [each for each in found if each.precision == self.question.settings.precision]

    def _follow(self, batch: int, related: Sequence[RelatedJob]) -> tuple[Estimate, Estimate]:
        """Memory and step time, corrected by what was measured of the job at other batches and precisions."""
        precision = self.question.settings.precision

        def estimator_of(asked: str) -> JobEstimator:
            return self._estimator if asked == precision or not self._at_precision else self._at_precision(asked)

        def step_of(asked: str) -> Curve:
            estimator = estimator_of(asked)
            return lambda at: self._widened(estimator.step(at))

        return (
            follow_memory(lambda asked: estimator_of(asked).memory, precision, batch, related),
            follow_step(step_of, precision, batch, related),
        )


def _uncounted(estimate: Estimate, factor: float) -> Estimate:
    """An estimate of a graph that lacks counts, which no measurement has checked: it is wider, and says so."""
    return estimate._replace(
        upper=estimate.upper * factor,
        upper_99=None if estimate.upper_99 is None else estimate.upper_99 * factor,
        in_domain=False,
        range_not_calibrated=True,
        unusual_features=(*estimate.unusual_features[: UNUSUAL_MAX - 1], _UNCOUNTED),
    )


def check_micro_batch_sizes(sizes: Sequence[int], batch: int) -> None:
    """Refuses micro-batches that no step of this batch has.

    Raises:
        InvalidRequestError: Too many, or one is larger than the batch.
        InvalidBatchError: One is outside the range of batches.
    """
    if len(sizes) > MICRO_BATCH_SIZES_MAX:
        raise invalid_field("micro_batch_sizes", f"{len(sizes)} of them", f"send at most {MICRO_BATCH_SIZES_MAX}")
    for size in sizes:
        check_batch_size(size, "micro_batch_sizes")
        if size > batch:
            raise invalid_field("micro_batch_sizes", f"{size} is more than the batch of {batch}", "divide the batch")


def _micro_batch_size(estimator: JobEstimator, batch: int, size: int) -> MicroBatchEstimate:
    """One optimizer step as several passes."""
    passes = -(-batch // size)
    return MicroBatchEstimate(
        micro_batch_size=size,
        accumulation_steps=passes,
        memory_bytes=estimator.accumulated_memory(size, passes),
        step_ms=estimator.accumulated_step(size, passes),
    )


def _explanations(estimator: JobEstimator, batch: int) -> Iterator[Notice]:
    yield from _interval_notices(estimator.novelty(batch))
    yield from _basis_notices(estimator.step_basis())


def _interval_notices(novelty: Mapping[str, float]) -> Iterator[Notice]:
    if novelty:
        placed = ", ".join(f"{name} at {share:.0%}" for name, share in sorted(novelty.items()))
        message = f"from 0 % (its graph was measured at other settings) to 100 % (nothing like it was): {placed}"
        yield Notice(code="INTERVAL_WIDTH", message=message)


def _basis_notices(basis: BasisRecord | None) -> Iterator[Notice]:
    if basis is not None:
        yield Notice(code="STEP_TIME_MODEL", message=f"step time: {say_basis(basis)}")


def _generic_notices(device: NamedDevice) -> Iterator[Notice]:
    if not device.is_generic:
        return
    near = f"; known names that look like it: {', '.join(device.nearest)}" if device.nearest else ""
    peaks = "the peaks that its driver states" if device.has_facts else "the peaks of a mid-range GPU"
    message = f"nothing is known of {device.device.name!r}: counted with {peaks}{near}"
    yield Notice(code="GENERIC_DEVICE", message=message)
    if not device.is_memory_known:
        message = "the memory of this device type is not known, so whether the job fits is unknown: state it"
        yield Notice(code="DEVICE_MEMORY_UNKNOWN", message=message)


def _notices(memory: Estimate, step: Estimate, device_memory_bytes: int, *, is_generic: bool) -> tuple[Notice, ...]:
    found: tuple[Notice, ...] = ()
    if memory.level is Level.FALLBACK:
        found = () if is_generic else (_NO_TRAINED_MODEL,)
    elif not (memory.in_domain and step.in_domain):
        found = (_out_of_domain((memory if not memory.in_domain else step).unusual_features),)
    bound_bytes = memory.upper_99 or memory.upper
    verdict = judge_memory(expected_bytes=memory.value, bound_bytes=bound_bytes, device_bytes=device_memory_bytes)
    if verdict is MemoryVerdict.DOES_NOT_FIT:
        return (*found, _does_not_fit(memory.value, device_memory_bytes))
    return (*found, _may_not_fit(memory.value, bound_bytes)) if verdict is MemoryVerdict.MAY_NOT_FIT else found


def _risk_notices(
    estimator: JobEstimator, memory: Estimate, batch: int, device_memory_bytes: int
) -> tuple[Notice, ...]:
    """How likely a job that may not fit runs out of memory; the chance comes from errors inside of what was trained."""
    if memory.range_not_calibrated:
        return (_RISK_NOT_KNOWN,) if estimator.has_memory_model else ()
    oom_risk = estimator.oom_risk(batch, device_memory_bytes)
    return () if oom_risk is None else (_risk(f"a chance of up to {oom_risk:.0%}"),)


def _risk(chance: str) -> Notice:
    return Notice(code="MEMORY_RISK", message=f"runs out of device memory with {chance}")


_RISK_NOT_KNOWN: Final = _risk("a chance that is not known")


@lru_cache(_REASONS_MAX)
def _out_of_domain(unusual_features: tuple[str, ...]) -> Notice:
    if unusual_features[0] == OF_OTHERS:
        others = "; ".join(unusual_features[1:])
        unlike = f"; this job is unlike what they measured: {others}" if others else ""
        return Notice(code="PUBLIC_MODEL", message=f"{_PUBLIC_MODEL}{unlike}")
    return Notice(
        code="OUT_OF_DOMAIN",
        message="unlike every job that was measured on this device type: " + "; ".join(unusual_features),
    )


def _does_not_fit(expected_bytes: float, device_memory_bytes: int) -> Notice:
    expected, size = expected_bytes / _GIBIBYTE, device_memory_bytes / _GIBIBYTE
    message = f"{expected:.2f} GiB are expected, the device has {size:.2f} GiB; step time and utilization are those of "
    return Notice(code="DOES_NOT_FIT", message=message + "a device that is large enough")


def _may_not_fit(expected_bytes: float, bound_bytes: float) -> Notice:
    expected, bound = expected_bytes / _GIBIBYTE, bound_bytes / _GIBIBYTE
    message = f"{expected:.2f} GiB are expected, which fit, and only the bound of {bound:.2f} GiB does not: "
    return Notice(code="MAY_NOT_FIT", message=message + "run it alone first, then its measured memory counts")
