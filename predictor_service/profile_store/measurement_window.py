"""A measurement window: steps of one job on one device with the same co-located jobs, and whether it may be kept.

Every text in it is a hash, a name out of a list, or of a form that leaves no room for a user, a path or a command.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Final

from cotenant.device_sharing import DeviceSharing
from cotenant.job_settings import JobSettings, read_stored_settings, stored_settings
from predictor_service.errors import CallerError
from predictor_service.features.devices import find_device_type
from predictor_service.features.job_settings import check_settings

OTHERS_MAX: Final = 3
STEPS_MAX: Final = 1_000_000_000
WINDOW_MS_MIN: Final = 1_000
WINDOW_MS_MAX: Final = 24 * 3_600_000
STEP_MS_MIN: Final = 1e-3
STEP_MS_MAX: Final = 3_600_000.0
POWER_WATTS_MAX: Final = 10_000.0
MEMORY_FACTOR_MAX: Final = 4
"""Device memory of a job, as a multiple of what its device type usually has."""
BINDINGS_MAX: Final = 32
BINDING_MAX: Final = 1_000_000_000
QUALITY_FLAGS: Final = ("foreign_load", "unsteady")
_WINDOW_ID: Final = re.compile(r"[0-9a-f]{32}")
_CAMPAIGN: Final = re.compile(r"collected_[0-9a-f]{8}|outcomes")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
# A symbolic dimension is named in the graph; a name of this form holds neither a path nor a sentence.
_DIMENSION: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,31}")
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


class Source(StrEnum):
    """What measured it."""

    AGENT = "agent"
    OUTCOME = "outcome"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredJob:
    """A job as far as it may be disclosed."""

    graph_sha256: str
    settings: JobSettings

    @property
    def key(self) -> str:
        """The key that equal jobs share."""
        return self.settings.key(self.graph_sha256)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementWindow:
    """What was measured; None = not measured.

    Attributes:
        window_id: 32 hexadecimal digits; equal for what is sent twice.
        campaign: The machine that measured, by a name that reveals nothing about it.
        device: Device type.
        others: Jobs on the same device meanwhile; none = alone.
        micro_batch_size: Samples per micro-step.
        window_ms: Time that the steps took.
        quality_flags: Reasons for doubt, of `QUALITY_FLAGS`.
        under_mps: Kernels of co-located jobs ran side by side, not in turns.
    """

    window_id: str
    campaign: str
    device: str
    job: MeasuredJob
    others: tuple[MeasuredJob, ...] = ()
    micro_batch_size: int
    steps: int
    window_ms: int
    utilization_ratio: float | None = None
    sm_activity_ratio: float | None = None
    memory_peak_bytes: int | None = None
    power_watts: float | None = None
    quality_flags: tuple[str, ...] = ()
    source: Source = Source.AGENT
    under_mps: bool = False

    @property
    def step_ms(self) -> float:
        """Mean time of one step."""
        return self.window_ms / self.steps

    @property
    def sharing(self) -> DeviceSharing:
        """How co-located jobs share the device."""
        return DeviceSharing.MPS if self.under_mps else DeviceSharing.TIME_SLICING


def find_fault(window: MeasurementWindow) -> str:
    """Returns why a window is not kept; empty when it is. One of a few sentences, so that they can be counted."""
    names = (
        (_WINDOW_ID, window.window_id),
        (_CAMPAIGN, window.campaign),
        *((_SHA256, job.graph_sha256) for job in (window.job, *window.others)),
    )
    if any(not pattern.fullmatch(text) for pattern, text in names):
        return "an id, a campaign or a graph's hash is not of its form"
    if any(_has_odd_bindings(job.settings) for job in (window.job, *window.others)):
        return "a dimension binding is not of the form that is kept"
    if len(window.others) > OTHERS_MAX:
        return f"more than {OTHERS_MAX} co-located jobs"
    if not set(window.quality_flags) <= set(QUALITY_FLAGS):
        return f"a quality flag is none of {', '.join(QUALITY_FLAGS)}"
    return _find_number_fault(window)


def _find_number_fault(window: MeasurementWindow) -> str:
    device = find_device_type(window.device)
    if device is None:
        return "its device type is unknown here"
    if not 1 <= window.steps <= STEPS_MAX or not WINDOW_MS_MIN <= window.window_ms <= WINDOW_MS_MAX:
        return "its steps or their time are outside what a window can be"
    if window.step_ms > STEP_MS_MAX:
        return f"a step of more than {STEP_MS_MAX / 1000:g} s"
    if not 1 <= window.micro_batch_size <= window.job.settings.global_batch_size:
        return "its micro-batch is not between 1 and its batch"
    if not (_is_within(window.utilization_ratio, 1.0) and _is_within(window.sm_activity_ratio, 1.0)):
        return "a utilization or activity outside 0 to 1"
    if not _is_within(window.memory_peak_bytes, MEMORY_FACTOR_MAX * device.memory_bytes):
        return f"more than {MEMORY_FACTOR_MAX} times the memory of its device type"
    return "" if _is_within(window.power_watts, POWER_WATTS_MAX) else f"not between 0 and {POWER_WATTS_MAX:g} W"


def _is_within(value: float | None, maximum: float) -> bool:
    return value is None or (math.isfinite(value) and 0 <= value <= maximum)


def _has_odd_bindings(settings: JobSettings) -> bool:
    bindings = settings.dimension_bindings
    return len(bindings) > BINDINGS_MAX or any(
        not _DIMENSION.fullmatch(name) or not 1 <= size <= BINDING_MAX for name, size in bindings.items()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMeasurementWindow:
    """A window as it was read back.

    Attributes:
        window: None when this program cannot read it; `fault` states why.
        unknown: Names of fields that this program does not know; they stay in the store.
        at_ms: When it was reported.
    """

    window: MeasurementWindow | None
    unknown: frozenset[str] = field(default_factory=frozenset)
    fault: str = ""
    at_ms: int = 0


def encode(window: MeasurementWindow) -> str:
    """Writes a window without its id as JSON; what was not measured, and what is usual, is left out."""
    plain = {stored: getattr(window, name) for stored, name in _PLAIN.items()}
    content = {stored: value for stored, value in plain.items() if value is not False and value not in (None, ())}
    others = {"others": [_encode_job(job) for job in window.others]} if window.others else {}
    return _ENCODER.encode({**content, **others, "job": _encode_job(window.job)})


def decode(window_id: str, text: str) -> StoredMeasurementWindow:
    """Reads what `encode` wrote, in this version or another one."""
    try:
        content = json.loads(text)
        unknown = frozenset(content) - _KNOWN
        values = {_PLAIN[stored]: value for stored, value in content.items() if stored in _PLAIN}
        window = MeasurementWindow(
            window_id=window_id,
            **{
                **values,
                "job": _decode_job(content["job"]),
                "others": tuple(_decode_job(job) for job in content.get("others", ())),
                "quality_flags": tuple(content.get("quality_flags", ())),
                "source": Source(content.get("source", Source.AGENT)),
            },
        )
        fault = find_fault(window)
    except (KeyError, TypeError, ValueError, AttributeError, CallerError) as error:
        return StoredMeasurementWindow(window=None, fault=f"written by another version ({type(error).__name__})")
    unknown |= {f"job.{name}" for name in frozenset(content["job"]["settings"]) - _SETTINGS}
    return StoredMeasurementWindow(window=window, unknown=unknown, fault=fault)


def _encode_job(job: MeasuredJob) -> Mapping[str, object]:
    return {"graph_sha256": job.graph_sha256, "settings": stored_settings(job.settings)}


def _decode_job(content: Mapping[str, Any]) -> MeasuredJob:
    settings = check_settings(read_stored_settings(content["settings"]))
    return MeasuredJob(graph_sha256=content["graph_sha256"], settings=settings)


_SETTINGS: Final = frozenset(item.name for item in fields(JobSettings)) | {"batch_size"}
_STORED_NAMES: Final = {"micro_batch_size": "sub_batch"}
"""What a field is called in the store, where that is not its name: rows of years ago are read by it."""
_PLAIN: Final = {
    _STORED_NAMES.get(item.name, item.name): item.name
    for item in fields(MeasurementWindow)
    if item.name not in ("window_id", "job", "others")
}
"""Fields by their names in the store."""
_KNOWN: Final = frozenset(_PLAIN) | {"job", "others"}
