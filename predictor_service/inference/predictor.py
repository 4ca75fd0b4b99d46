"""The use case: predict one job, predict pairs. The gRPC servicer and the offline command both call it."""

from __future__ import annotations

import dataclasses
import itertools
import math
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from cotenant.device_facts import DeviceFacts
from cotenant.device_sharing import DeviceSharing
from cotenant.job_settings import JobSettings
from predictor_service.errors import PredictorError, UnboundDimensionError, UnknownDeviceError, invalid_field
from predictor_service.features.device_names import NamedDevice, resolve_device
from predictor_service.features.device_scale import DeviceScale
from predictor_service.features.devices import DEVICE_TYPES, DeviceType
from predictor_service.features.graphs.graph_description import GraphDescription
from predictor_service.inference.calibrated_devices import (
    CalibratedDevices,
    calibration_notices,
    place_notices,
    reference_jobs,
    reference_pairs,
)
from predictor_service.inference.calibrated_estimator import share_of_capacity
from predictor_service.inference.device_estimators import DeviceEstimators
from predictor_service.inference.estimator_cache import ESTIMATORS_MAX, EstimatorCache
from predictor_service.inference.graph_library import GraphLibrary
from predictor_service.inference.job_estimator import JobEstimator
from predictor_service.inference.measured_graph import MeasuredGraph
from predictor_service.inference.memory_risk import RISK_JOBS_MAX, estimate_memory_risk
from predictor_service.inference.observed_jobs import ObservedJobs
from predictor_service.inference.pair_estimator import estimate_pairs
from predictor_service.inference.pair_table import MeasuredPair, PairTable
from predictor_service.inference.prepared_job import NO_VERSION, PreparedJob, check_micro_batch_sizes
from predictor_service.inference.records import (
    JobAnswer,
    JobQuestion,
    Notice,
    PairJob,
    PairsAnswer,
    PairsQuestion,
    RiskAnswer,
    RiskQuestion,
)
from predictor_service.outcome_journal import PredictionEntry
from predictor_service.profile_store.measurement_window import StoredMeasurementWindow
from predictor_service.registry.served_version import ServedTarget, ServedVersion
from predictor_service.selection.targets import SLOWDOWN

PAIR_JOBS_MAX: Final = 500
PARTNERS_MAX: Final = 40
"""Measured jobs that join a question: the work grows with the square of all."""
UNREAD_GRAPHS_MAX: Final = 2


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
        estimators_max: Jobs whose curves are kept; 0 = compute every answer again.
    """

    def __init__(
        self, graphs: GraphLibrary, versions: ServedVersionSource, estimators_max: int = ESTIMATORS_MAX
    ) -> None:
        self._graphs = graphs
        self._versions = versions
        self._estimators = EstimatorCache(estimators_max)
        self._calibrated = CalibratedDevices(graphs, self._estimators)
        self._pairs = PairTable()
        self._observed_jobs = ObservedJobs()
        # Unlike any other process' ids, and ascending: an index of the journal then grows at its end only.
        self._ids_of_process = uuid.uuid4().hex
        self._numbers = itertools.count(1)

    @property
    def version(self) -> ServedVersion | None:
        """The version that answers now; None when nothing was ever trained."""
        return self._versions.current()

    def predict_job(self, question: JobQuestion) -> JobAnswer:
        """Predicts one job on one device type.

        Raises:
            PredictorError: The question or its graph is refused, see `errors`.
        """
        return self.answer_job(self.prepare_job(question), question.settings.global_batch_size)

    def prepare_job(self, question: JobQuestion) -> PreparedJob:
        """Does everything about a question that its batch does not change.

        Raises:
            PredictorError: The question or its graph is refused, see `errors`.
        """
        named = self.check_job(question)
        graph = self._describe(question)
        version = self._versions.current()
        scale = self._calibrated.scale(question.calibration, named.device, version)

        estimators = DeviceEstimators(
            of_type=self._estimators,
            device=named.device,
            version=version,
            confidence=question.confidence,
            scale=scale,
        )

        def estimator_of(settings: JobSettings) -> JobEstimator:
            return estimators.find(graph, settings)

        return PreparedJob(
            question,
            named,
            graph.description,
            estimator_of(question.settings),
            version,
            at_precision=lambda precision: estimator_of(dataclasses.replace(question.settings, precision=precision)),
            notices=(
                *calibration_notices(question.calibration, estimators.scale_of(graph, question.settings)),
                *place_notices(scale, named.device, version),
            ),
        )

    def answer_job(self, job: PreparedJob, batch: int) -> JobAnswer:
        """Answers a prepared question at one batch.

        Raises:
            CallerError: The batch is outside its range, or smaller than a micro-batch.
        """
        return job.answer(batch, self._next_id(), self._observed_jobs)

    def predict_pairs(self, question: PairsQuestion) -> PairsAnswer:
        """Predicts how much each job slows down each other one.

        Raises:
            PredictorError: The question is refused, see `errors`.
        """
        device = self.check_pairs(question)
        version = self._versions.current()
        found = self._calibrated.scale(question.calibration, device, version)
        scale = found.for_pairs() if found is not None else None

        estimator_of = self._estimators_of_jobs(device, version, question.confidence, scale)
        model = self._targets(version, device).get(SLOWDOWN.name)
        keys = [job.key for job in question.jobs]
        partners = [
            *self._partners(keys, device, question.sharing),
            *reference_jobs(question.calibration, question.sharing),
        ]
        completed = (self._observed_jobs.complete(device.name, job) for job in (*question.jobs, *partners))
        asked = dataclasses.replace(question, jobs=tuple(share_of_capacity(job, scale) for job in completed))
        self._pairs.note_alone(device.name, dict(zip(keys, question.jobs, strict=True)))
        measured = self._pairs.among(device.name, [*keys, *(job.key for job in partners)], question.sharing)
        measured |= reference_pairs(question.calibration, question.sharing)
        answer = estimate_pairs(asked, device, model, estimator_of, measured).of_first(len(question.jobs))
        name = version.version if version else NO_VERSION
        return dataclasses.replace(answer, prediction_id=self._next_id(), model_version=name, device=device.name)

    def predict_memory_risk(self, question: RiskQuestion) -> RiskAnswer:
        """Predicts how likely jobs run out of one device's memory together.

        Raises:
            PredictorError: The question is refused, see `errors`.
        """
        device = self.check_memory_risk(question)
        version = self._versions.current()
        scale = self._calibrated.scale(question.calibration, device, version)
        return estimate_memory_risk(
            question.jobs,
            device,
            self._estimators_of_jobs(device, version, question.confidence, scale),
            lambda job: self._observed_jobs.find(device.name, job.key),
            version.version if version else NO_VERSION,
        )

    def learn_outcomes(self, joined: Iterable[tuple[PredictionEntry, Mapping[str, Any]]]) -> None:
        """Learns what was measured of jobs and pairs at once; models wait for a retraining.

        Args:
            joined: Outcomes with their predictions, oldest first.
        """
        joined = list(joined)
        self._pairs.learn_outcomes(joined)
        self._observed_jobs.learn(joined)

    def learn_windows(self, stored: Iterable[StoredMeasurementWindow]) -> None:
        """Learns what agents measured of pairs at once.

        Args:
            stored: Windows as they were kept, each once, in the order of the store.
        """
        self._pairs.learn_windows(stored)

    def relearn(
        self, joined: Iterable[tuple[PredictionEntry, Mapping[str, Any]]], stored: Iterable[StoredMeasurementWindow]
    ) -> None:
        """Learns as if it had been started now; what is no longer there is forgotten.

        Args:
            joined: As for `learn_outcomes`.
            stored: As for `learn_windows`.
        """
        self._pairs, self._observed_jobs = PairTable(), ObservedJobs()
        self.learn_outcomes(joined)
        self.learn_windows(stored)

    def measured_pairs(self, device: str = "") -> list[MeasuredPair]:
        """What was measured of pairs, by device type and keys.

        Args:
            device: This device type only; empty = all.

        Raises:
            UnknownDeviceError: There is no such device type.
        """
        try:
            return self._pairs.rows(resolve_device(device).device.name if device else "")
        except UnknownDeviceError as error:
            rows = self._pairs.rows(device)
            if rows:
                return rows
            # A question for the list states no memory.
            remedy = f"did you mean {error.details['candidates'] or 'one of: ' + ', '.join(sorted(DEVICE_TYPES))}?"
            raise UnknownDeviceError(error.message, remedy=remedy, details=error.details) from error

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

    def check_job(self, question: JobQuestion) -> NamedDevice:
        """Checks everything of a question that needs no graph.

        Returns:
            The device type with the memory asked for.

        Raises:
            InvalidRequestError: A field is outside its range, or the device's name is unknown or fits several types.
        """
        _check_confidence(question.confidence)
        if bool(question.onnx_graph) == bool(question.graph_sha256):
            raise invalid_field(
                "graph",
                "exactly one of onnx_graph and graph_sha256 must be set, and not empty",
                remedy="send the bytes of an .onnx file, or the hash of an uploaded one",
            )
        check_micro_batch_sizes(question.micro_batch_sizes, question.settings.global_batch_size)
        return _device(question.device, question.device_memory_bytes, question.device_facts)

    def check_pairs(self, question: PairsQuestion) -> DeviceType:
        """Checks everything of a question that needs no graph; see `check_job`."""
        _check_confidence(question.confidence)
        ids = _check_jobs(question.jobs, PAIR_JOBS_MAX)
        for job in question.jobs:
            if not job.is_known and not job.graph_sha256:
                raise invalid_field("jobs", f"job {job.job_id!r} has neither a graph nor all three known figures")
        for pair, slowdown_ratio in question.observed.items():
            if not set(pair) <= ids:
                raise invalid_field("observed", f"{pair[0]!r} with {pair[1]!r}: not both are among the jobs")
            if not (math.isfinite(slowdown_ratio) and slowdown_ratio > -1):
                raise invalid_field("observed", f"slowdown_ratio {slowdown_ratio:g} must be above -1")
        memory_bytes = question.device_memory_bytes
        named = _device(question.device, memory_bytes, question.device_facts)
        # Memory distinguishes types of one name; for slowdowns the catalogue's size is used.
        return named.device if named.is_generic else resolve_device(named.device.name).device

    def check_memory_risk(self, question: RiskQuestion) -> DeviceType:
        """Checks everything of a question that needs no graph; see `check_job`."""
        _check_confidence(question.confidence)
        _check_jobs(question.jobs, RISK_JOBS_MAX)
        for job in question.jobs:
            if job.known_memory_bytes is None and not job.graph_sha256:
                raise invalid_field("jobs", f"job {job.job_id!r} has neither a graph nor a known memory")
        named = _device(question.device, question.device_memory_bytes)
        if not named.is_memory_known:
            raise invalid_field("device_memory_bytes", f"that of {named.device.name!r} is not known", "state it")
        return named.device

    def devices(self) -> list[tuple[DeviceType, bool]]:
        """All known device types by name, each with whether it was trained for."""
        version = self._versions.current()
        trained = version.devices if version else {}
        return [(DEVICE_TYPES[name], name in trained) for name in sorted(DEVICE_TYPES)]

    def _next_id(self) -> str:
        return f"{self._ids_of_process}-{next(self._numbers):012x}"

    def _describe(self, question: JobQuestion) -> MeasuredGraph:
        bindings = question.settings.dimension_bindings
        if question.onnx_graph:
            return self._graphs.describe(question.onnx_graph, bindings)
        return self._graphs.find(question.graph_sha256, bindings)

    def _estimators_of_jobs(
        self, device: DeviceType, version: ServedVersion | None, confidence: float, scale: DeviceScale | None
    ) -> Callable[[PairJob], JobEstimator]:
        """Finds estimators of jobs that compete for a device."""
        estimators = DeviceEstimators(
            of_type=self._estimators,
            device=device,
            version=version,
            confidence=confidence,
            scale=scale,
            of_device=True,
        )

        def find(job: PairJob) -> JobEstimator:
            return estimators.find(self._graphs.find(job.graph_sha256, job.settings.dimension_bindings), job.settings)

        return find

    def _partners(self, keys: Sequence[str], device: DeviceType, sharing: DeviceSharing) -> list[PairJob]:
        """Measured jobs that join a question; a graph that has to be read again takes long, so few of these do."""
        found: list[PairJob] = []
        unread = 0
        for job in self._pairs.partners(device.name, keys, sharing):
            bindings = job.settings.dimension_bindings
            if not job.is_known and not self._graphs.remembers(job.graph_sha256, bindings):
                unread += 1
                if unread > UNREAD_GRAPHS_MAX or not self._can_read(job):
                    continue
            found.append(job)
            if len(found) == PARTNERS_MAX:
                break
        return found

    def _can_read(self, job: PairJob) -> bool:
        try:
            self._graphs.find(job.graph_sha256, job.settings.dimension_bindings)
        except PredictorError:
            return False
        return True

    def _targets(self, version: ServedVersion | None, device: DeviceType) -> Mapping[str, ServedTarget]:
        return version.devices.get(device.name, {}) if version else {}


def _device(name: str, memory_bytes: int, facts: DeviceFacts | None = None) -> NamedDevice:
    if memory_bytes < 0:
        raise invalid_field("device_memory_bytes", f"{memory_bytes} is below 0")
    return resolve_device(name, memory_bytes, facts)


def _check_confidence(confidence: float) -> None:
    if not 0.5 <= confidence <= 0.999:
        raise invalid_field("confidence", f"{confidence:g} is outside 0.5 to 0.999; leave it out for 0.9")


def _check_jobs(jobs: Sequence[PairJob], jobs_max: int) -> set[str]:
    """Checks the jobs of a list; returns their ids."""
    if not 1 <= len(jobs) <= jobs_max:
        raise invalid_field("jobs", f"{len(jobs)} jobs; 1 to {jobs_max} are accepted")
    ids = {job.job_id for job in jobs}
    if len(ids) < len(jobs):
        raise invalid_field("jobs", "two jobs have the same job_id")
    for job in jobs:
        _check_known(job)
    return ids


def _check_known(job: PairJob) -> None:
    for name, value in (("known_step_ms", job.known_step_ms), ("known_memory_bytes", job.known_memory_bytes)):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise invalid_field("jobs", f"job {job.job_id!r}: {name} is {value:g}, must be above 0")
    utilization_ratio = job.known_utilization_ratio
    if utilization_ratio is not None and not 0 <= utilization_ratio <= 1:
        raise invalid_field(
            "jobs", f"job {job.job_id!r}: known_utilization_ratio is {utilization_ratio:g}, not in 0 to 1"
        )
