"""Facts about curves: the predictor was asked to fit one to what jobs report, and answered or did not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from scheduler_service.core.events import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedFitted(Event):
    """The predictor was asked for a curve through measured step times.

    Attributes:
        step_ms: The step time alone in ms at every number of GPUs that was asked about.
        error_ratio: Mean of |fitted - measured| / measured over the samples.
        code: Why it did not answer; empty = it did.
    """

    key: str
    device: str
    step_ms: Mapping[int, float] = field(default_factory=dict)
    error_ratio: float = 0.0
    code: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpeedFitted(Event):
    """The same for jobs with parameter servers.

    Attributes:
        step_ms: The step time alone in ms at all numbers of workers and servers that were asked about.
        error_ratio: Mean of |fitted - measured| / measured over the samples.
        code: Why it did not answer; empty = it did.
    """

    key: str
    device: str
    step_ms: Mapping[tuple[int, int], float] = field(default_factory=dict)
    error_ratio: float = 0.0
    code: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossFitted(Event):
    """The predictor was asked when a job reaches its target loss.

    Attributes:
        steps_total: Optimizer steps of the whole job; 0 = not foreseeable, here and below.
        steps_lower: Lower end of the interval.
        steps_upper: Upper end of the interval.
        confidence: Of the interval.
        is_reliable: The fitted shapes agree.
        is_reached: The losses have come down to the target.
        code: Why it did not answer; empty = it did.
    """

    job_id: str
    steps_total: float = 0.0
    steps_lower: float = 0.0
    steps_upper: float = 0.0
    confidence: float = 0.0
    is_reliable: bool = False
    is_reached: bool = False
    code: str = ""
