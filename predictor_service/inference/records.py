"""Questions and answers of the use case, free of any transport."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cotenant.device_calibration import DeviceCalibration
from cotenant.device_facts import DeviceFacts
from cotenant.device_sharing import DeviceSharing
from cotenant.job_settings import JobSettings
from predictor_service.features.graphs.graph_description import GraphDescription
from predictor_service.features.memory_states import MemoryStates

DEFAULT_CONFIDENCE = 0.9


class Level(IntEnum):
    """What an estimate is based on, best first; the numbers are those of the contract."""

    OBSERVED = 1
    SOLO_KNOWN = 2
    GRAPH = 3
    FALLBACK = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """How much one input moves an estimate, in the estimate's unit; see `contributions` for the names that are none."""

    feature: str
    feature_value: float
    contribution: float


class Estimate(NamedTuple):
    """One predicted quantity; bounds enclose `confidence` of measured values, `upper_99` exceeds 99 % of them.

    Unless `range_not_calibrated`: then no measurement checked how often they do. `unusual_features` are the reasons why
    it is not in domain, worst first.

    A tuple, because every answer has four: made in less than half of the time of a frozen dataclass.
    """

    value: float
    lower: float
    upper: float
    confidence: float
    level: Level
    in_domain: bool
    upper_99: float | None = None
    explanation: Sequence[Contribution] = ()
    range_not_calibrated: bool = False
    unusual_features: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchEstimate:
    """Memory and time of one optimizer step made of several micro-batches."""

    micro_batch_size: int
    accumulation_steps: int
    memory_bytes: Estimate
    step_ms: Estimate


class Notice(NamedTuple):
    """Something that the caller should know although the request was answered."""

    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobQuestion:
    """What is asked about one job.

    Attributes:
        settings: How it runs.
        device: Device type by name, as `device_names` reads it.
        onnx_graph: The graph itself; empty = `graph_sha256` names it.
        graph_sha256: Hash of a graph sent before.
        device_memory_bytes: 0 = the known size of the device type.
        micro_batch_sizes: Micro-batches that are wanted as well.
        explain: Whether estimates carry their largest contributions.
        find_largest_batch: Whether the largest batch that fits is wanted.
        confidence: Coverage of the intervals.
        calibration: What was measured of the device at hand, checked; None = not calibrated.
        find_memory_states: Whether it is wanted what of its memory the job holds all the time.
        device_facts: What the driver says of a device that no table knows; None = nothing.
    """

    settings: JobSettings
    device: str
    onnx_graph: bytes = b""
    graph_sha256: str = ""
    device_memory_bytes: int = 0
    micro_batch_sizes: Sequence[int] = ()
    explain: bool = False
    find_largest_batch: bool = False
    confidence: float = DEFAULT_CONFIDENCE
    calibration: DeviceCalibration | None = None
    find_memory_states: bool = False
    device_facts: DeviceFacts | None = None


class JobAnswer(NamedTuple):
    """What was predicted about one job."""

    prediction_id: str
    model_version: str
    utilization_ratio: Estimate
    sm_activity_ratio: Estimate | None
    memory_bytes: Estimate
    step_ms: Estimate
    fits: bool
    largest_batch_that_fits: int | None
    micro_batches: Sequence[MicroBatchEstimate]
    graph: GraphDescription
    device_memory_bytes: int
    warnings: Sequence[Notice]
    job_key: str
    device: str
    device_is_generic: bool
    memory_states: MemoryStates | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PairJob:
    """A job of a pair question, with what is known of it alone on the device.

    Attributes:
        measured_key: Key that it was measured under before; empty = it follows from graph and settings, or is its id.
    """

    job_id: str
    settings: JobSettings
    graph_sha256: str = ""
    known_step_ms: float | None = None
    known_utilization_ratio: float | None = None
    known_memory_bytes: float | None = None
    measured_key: str = ""

    @property
    def key(self) -> str:
        """What equal jobs share; a job without a graph is known by its id only."""
        if self.measured_key:
            return self.measured_key
        return self.settings.key(self.graph_sha256) if self.graph_sha256 else self.job_id

    @property
    def is_known(self) -> bool:
        """Whether nothing has to be predicted of the job alone."""
        return None not in (self.known_step_ms, self.known_utilization_ratio, self.known_memory_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairsQuestion:
    """How much each job slows down each other one.

    Attributes:
        device: Device type by name.
        jobs: At most 500, with different ids.
        observed: Measured slowdowns by (victim id, other id).
        doubted: Those of `observed` that make no interval narrower.
        confidence: Coverage of the intervals.
        device_memory_bytes: Distinguishes device types of one short name; 0 = not stated.
        calibration: As in `JobQuestion`, as are the `device_facts`.
        sharing: How the jobs would share the device; of what was measured here nothing else counts. Unstated = all.
    """

    device: str
    jobs: Sequence[PairJob]
    observed: Mapping[tuple[str, str], float] = field(default_factory=dict)
    doubted: frozenset[tuple[str, str]] = frozenset()
    confidence: float = DEFAULT_CONFIDENCE
    device_memory_bytes: int = 0
    calibration: DeviceCalibration | None = None
    sharing: DeviceSharing = DeviceSharing.UNSTATED
    device_facts: DeviceFacts | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairsAnswer:
    """Slowdowns of all ordered pairs; arrays have shape (jobs, jobs), victim by other.

    Attributes:
        times_measured: How often each pair was measured; 0 = never.
        device: The device type as it was understood.
    """

    prediction_id: str
    model_version: str
    job_ids: Sequence[str]
    slowdown_ratio: npt.NDArray[np.float32]
    lower: npt.NDArray[np.float32]
    upper: npt.NDArray[np.float32]
    level: npt.NDArray[np.int32]
    in_domain: npt.NDArray[np.bool_]
    times_measured: npt.NDArray[np.int32]
    device: str = ""

    def of_first(self, count: int) -> PairsAnswer:
        """Returns the answer about the first jobs only."""
        if count == len(self.job_ids):
            return self
        names = ("slowdown_ratio", "lower", "upper", "level", "in_domain", "times_measured")
        cut = {name: getattr(self, name)[:count, :count] for name in names}
        return dataclasses.replace(self, job_ids=self.job_ids[:count], **cut)


@dataclass(frozen=True, slots=True, kw_only=True)
class RiskQuestion:
    """How likely jobs run out of one device's memory together.

    Attributes:
        device: Device type by name.
        jobs: At most 64, with different ids; of what is known of them only the memory counts.
        device_memory_bytes: 0 = the known size of the device type.
        confidence: Coverage of the intervals.
        calibration: As in `JobQuestion`.
    """

    device: str
    jobs: Sequence[PairJob]
    device_memory_bytes: int = 0
    confidence: float = DEFAULT_CONFIDENCE
    calibration: DeviceCalibration | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RiskAnswer:
    """Chances from 0 to 1, see `oom_risk`; None where the memory of a job was not learned from measurements.

    Attributes:
        model_version: What answered.
        independent_ratio: Chance if the errors of different jobs have nothing to do with each other.
        union_bound_ratio: At most this, however they hang together.
        bounds_fit: Whether the 99 % bounds of all jobs together stay within the device.
        device_memory_bytes: What they share.
        memory_bytes: Of each job, in the order of the question.
        warnings: What the caller should know.
    """

    model_version: str
    independent_ratio: float | None
    union_bound_ratio: float | None
    bounds_fit: bool
    device_memory_bytes: int
    memory_bytes: Sequence[Estimate]
    warnings: Sequence[Notice]
