"""The use case: predict one job, predict pairs. The gRPC servicer and the offline command both call it."""

from __future__ import annotations

import dataclasses
import math
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Protocol

from predictor_service.errors import InvalidRequestError, UnboundDimensionError, UnknownDeviceError
from predictor_service.features.devices import DEVICE_TYPES, DeviceType, find_device_type
from predictor_service.features.graph_description import GraphDescription
from predictor_service.features.job_settings import check_batch
from predictor_service.inference.graph_library import GraphLibrary
from predictor_service.inference.job_estimator import JobEstimator
from predictor_service.inference.kept_estimators import ESTIMATORS_MAX, KeptEstimators
from predictor_service.inference.measured_graph import MeasuredGraph
from predictor_service.inference.observed_jobs import ObservedJobs, weigh_observed
from predictor_service.inference.observed_pairs import ObservedPairs
from predictor_service.inference.pair_estimator import estimate_pairs
from predictor_service.inference.records import (
    JobAnswer,
    JobQuestion,
    Level,
    Notice,
    PairJob,
    PairsAnswer,
    PairsQuestion,
    SubBatchEstimate,
)
from predictor_service.outcome_journal import PredictionEntry
from predictor_service.registry.served_version import ServedTarget, ServedVersion
from predictor_service.selection.targets import MEMORY, SLOWDOWN, STEP, UTILIZATION

PAIR_JOBS_MAX: Final = 500
SUB_BATCHES_MAX: Final = 64
_NO_VERSION: Final = "none"


class ServedVersionSource(Protocol):
    """Hands out the version to answer with; it may change between two requests, never within one."""

    def current(self) -> ServedVersion | None:
        """The version, or None when nothing was ever trained."""
        ...


class Predictor:
    """Answers questions about jobs; safe for many threads.

    Args:
        graphs: Knows graphs by content.
        versions: Hands out the models.
        estimators_max: Jobs whose curves are kept; 0 = compute every answer anew.
    """

    def __init__(
        self, graphs: GraphLibrary, versions: ServedVersionSource, estimators_max: int = ESTIMATORS_MAX
    ) -> None:
        self._graphs = graphs
        self._versions = versions
        self._estimators = KeptEstimators(estimators_max)
        self._observed = ObservedPairs()
        self._observed_jobs = ObservedJobs()

    def predict_job(self, question: JobQuestion) -> JobAnswer:
        """Predicts one job on one device type.

        Raises:
            PredictorError: The question or its graph is refused, see `errors`.
        """
        device = self.check_job(question)
        graph = self._describe(question)
        description = graph.description
        version = self._versions.current()
        estimator = self._estimators.find(graph, question.settings, device, version, question.confidence)
        batch = question.settings.batch_size
        memory, step, utilization = estimator.memory(batch), estimator.step(batch), estimator.utilization(batch)
        if question.explain:
            memory, step = estimator.explain(memory, MEMORY, batch), estimator.explain(step, STEP, batch)
            utilization = estimator.explain(utilization, UTILIZATION, batch)
        job_key = question.settings.key(description.graph_sha256)
        seen = self._observed_jobs.find(device.name, job_key)
        if seen is not None:
            utilization, memory, step = weigh_observed(seen, utilization=utilization, memory=memory, step=step)
        fits = (memory.upper_99 or memory.upper) <= device.memory_bytes
        oom_risk = None if fits else estimator.oom_risk(batch, device.memory_bytes)
        return JobAnswer(
            prediction_id=str(uuid.uuid4()),
            model_version=version.version if version else _NO_VERSION,
            utilization_ratio=utilization,
            sm_activity_ratio=estimator.sm_activity(batch),
            memory_bytes=memory,
            step_ms=step,
            fits=fits,
            largest_batch_that_fits=(
                estimator.largest_batch(device.memory_bytes) if question.find_largest_batch else None
            ),
            sub_batches=tuple(_sub_batch(estimator, batch, size) for size in question.sub_batches),
            graph=description,
            device_memory_bytes=device.memory_bytes,
            warnings=tuple(_notices(description, memory.level, memory.in_domain and step.in_domain, oom_risk)),
            job_key=job_key,
        )

    def predict_pairs(self, question: PairsQuestion) -> PairsAnswer:
        """Predicts who slows down whom.

        Raises:
            PredictorError: The question is refused, see `errors`.
        """
        device = self.check_pairs(question)
        version = self._versions.current()

        def estimator_of(job: PairJob) -> JobEstimator:
            graph = self._graphs.find(job.graph_sha256, job.settings.dimension_bindings)
            return self._estimators.find(graph, job.settings, device, version, question.confidence)

        model = self._targets(version, device).get(SLOWDOWN.name)
        question = dataclasses.replace(
            question, jobs=tuple(self._observed_jobs.complete(device.name, job) for job in question.jobs)
        )
        measured = self._observed.among(device.name, [job.key for job in question.jobs])
        answer = estimate_pairs(question, device, model, estimator_of, measured)
        name = version.version if version else _NO_VERSION
        return dataclasses.replace(answer, prediction_id=str(uuid.uuid4()), model_version=name)

    def learn_outcomes(self, joined: Iterable[tuple[PredictionEntry, Mapping[str, Any]]]) -> None:
        """Learns what was measured of jobs and pairs at once; models wait for a retraining.

        Args:
            joined: Outcomes beside their predictions, oldest first.
        """
        joined = list(joined)
        self._observed.learn(joined)
        self._observed_jobs.learn(joined)

    def keep_graph(self, data: bytes) -> tuple[str, GraphDescription | None, Sequence[Notice]]:
        """Keeps a graph under its hash.

        Returns:
            The hash, the description (None when dimensions must be bound first), and what to know about it.

        Raises:
            GraphError: It is malformed, unsupported or too large.
        """
        try:
            description = self._graphs.describe(data, {}).description
        except UnboundDimensionError as error:
            notice = Notice(code="UNBOUND_DIMENSIONS", message=f"bind in every request: {', '.join(error.symbols)}")
            return self._graphs.keep(data), None, [notice]
        return (
            description.graph_sha256,
            description,
            [Notice(code=warning.code, message=warning.message) for warning in description.warnings],
        )

    def check_job(self, question: JobQuestion) -> DeviceType:
        """Checks everything of a question that needs no graph.

        Returns:
            The device type with the memory asked for.

        Raises:
            InvalidRequestError: A field is outside its range.
        """
        _check_confidence(question.confidence)
        if bool(question.onnx_graph) == bool(question.graph_sha256):
            raise _invalid(
                "graph",
                "exactly one of onnx_graph and graph_sha256 must be set, and not empty",
                remedy="send the bytes of an .onnx file, or the hash of an uploaded one",
            )
        if len(question.sub_batches) > SUB_BATCHES_MAX:
            raise _invalid("sub_batches", f"{len(question.sub_batches)} sub-batches, at most {SUB_BATCHES_MAX}")
        for size in question.sub_batches:
            check_batch(size, "sub_batches")
            if size > question.settings.batch_size:
                raise _invalid("sub_batches", f"{size} is more than the batch of {question.settings.batch_size}")
        if question.device_memory_bytes < 0:
            raise _invalid("device_memory_bytes", f"{question.device_memory_bytes} is below 0")
        device = self._device(question.device)
        if not question.device_memory_bytes:
            return device
        return _with_memory(device.name, question.device_memory_bytes)

    def check_pairs(self, question: PairsQuestion) -> DeviceType:
        """Checks everything of a question that needs no graph; see `check_job`."""
        _check_confidence(question.confidence)
        if not 1 <= len(question.jobs) <= PAIR_JOBS_MAX:
            raise _invalid("jobs", f"{len(question.jobs)} jobs; 1 to {PAIR_JOBS_MAX} are accepted")
        ids = {job.job_id for job in question.jobs}
        if len(ids) < len(question.jobs):
            raise _invalid("jobs", "two jobs have the same job_id")
        for job in question.jobs:
            _check_known(job)
        for pair, slowdown_ratio in question.observed.items():
            if not set(pair) <= ids:
                raise _invalid("observed", f"{pair[0]!r} beside {pair[1]!r}: not both are among the jobs")
            if not (math.isfinite(slowdown_ratio) and slowdown_ratio > -1):
                raise _invalid("observed", f"slowdown_ratio {slowdown_ratio:g} must be above -1")
        return self._device(question.device)

    def devices(self) -> list[tuple[DeviceType, bool]]:
        """All known device types by name, each with whether it was trained for."""
        version = self._versions.current()
        trained = version.devices if version else {}
        return [(DEVICE_TYPES[name], name in trained) for name in sorted(DEVICE_TYPES)]

    def _device(self, name: str) -> DeviceType:
        device = find_device_type(name)
        if device is None:
            raise UnknownDeviceError(
                f"device {name!r} is unknown",
                remedy=f"known: {', '.join(sorted(DEVICE_TYPES))}",
                details={"field": "device"},
            )
        return device

    def _describe(self, question: JobQuestion) -> MeasuredGraph:
        bindings = question.settings.dimension_bindings
        if question.onnx_graph:
            return self._graphs.describe(question.onnx_graph, bindings)
        return self._graphs.find(question.graph_sha256, bindings)

    def _targets(self, version: ServedVersion | None, device: DeviceType) -> Mapping[str, ServedTarget]:
        return version.devices.get(device.name, {}) if version else {}


@lru_cache(maxsize=256)
def _with_memory(device_name: str, memory_bytes: int) -> DeviceType:
    """A device type with other memory than the usual one; the sizes that a cluster has are few."""
    return dataclasses.replace(DEVICE_TYPES[device_name], memory_bytes=memory_bytes)


def _sub_batch(estimator: JobEstimator, batch: int, size: int) -> SubBatchEstimate:
    """One optimizer step as several passes."""
    passes = -(-batch // size)
    return SubBatchEstimate(
        sub_batch=size,
        accumulation_steps=passes,
        memory_bytes=estimator.memory(size),
        step_ms=estimator.accumulated_step(size, passes),
    )


def _notices(description: GraphDescription, level: Level, in_domain: bool, oom_risk: float | None) -> Iterator[Notice]:
    for warning in description.warnings:
        yield Notice(code=warning.code, message=warning.message)
    if level is Level.FALLBACK:
        yield Notice(
            code="NO_TRAINED_MODEL", message="no measurements of this device type: counted from its peaks alone"
        )
    elif not in_domain:
        yield Notice(code="OUT_OF_DOMAIN", message="unlike every job that was measured on this device type")
    if oom_risk is not None:
        yield Notice(code="MEMORY_RISK", message=f"runs out of device memory with a chance of up to {oom_risk:.0%}")


def _check_confidence(confidence: float) -> None:
    if not 0.5 <= confidence <= 0.999:
        raise _invalid("confidence", f"{confidence:g} is outside 0.5 to 0.999; leave it out for 0.9")


def _check_known(job: PairJob) -> None:
    if not job.is_known and not job.graph_sha256:
        raise _invalid("jobs", f"job {job.job_id!r} has neither a graph nor all three known figures")
    for name, value in (("known_step_ms", job.known_step_ms), ("known_memory_bytes", job.known_memory_bytes)):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise _invalid("jobs", f"job {job.job_id!r}: {name} is {value:g}, must be above 0")
    utilization_ratio = job.known_utilization_ratio
    if utilization_ratio is not None and not 0 <= utilization_ratio <= 1:
        raise _invalid("jobs", f"job {job.job_id!r}: known_utilization_ratio is {utilization_ratio:g}, not in 0 to 1")


def _invalid(field: str, message: str, remedy: str = "send a value in the range that is named") -> InvalidRequestError:
    return InvalidRequestError(f"{field}: {message}", remedy=remedy, details={"field": field})
