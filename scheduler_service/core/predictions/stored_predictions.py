"""The content of a store of predictions, as a snapshot keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from scheduler_service.core.cluster_view.interference_curves import InterferenceCurve
from scheduler_service.core.predictions.larger_peaks import LargerPeak
from scheduler_service.core.predictions.measured_alone import MeasuredAlone
from scheduler_service.core.predictions.measured_averages import SoloStep
from scheduler_service.core.predictions.measured_speeds import SpeedFit
from scheduler_service.core.predictions.task_speeds import TaskSpeedFit
from scheduler_service.core.records import JobPrediction, MemoryTriple, PairPrediction


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRefresh:
    """Where asking again about the pairs of a device type stands.

    Attributes:
        is_stale: Something was measured since the last question.
        is_asked: An answer is awaited.
        asked_at_ms: When the last question was asked; 0 = never.
    """

    is_stale: bool = False
    is_asked: bool = False
    asked_at_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPredictions:
    """The content of a store, for a snapshot."""

    recent: tuple[str, ...] = ()
    jobs: tuple[JobPrediction, ...] = ()
    failures: tuple[tuple[str, str, str], ...] = ()
    outstanding: tuple[tuple[str, str], ...] = ()
    pairs: tuple[PairPrediction, ...] = ()
    observed: tuple[tuple[str, str, str, float], ...] = ()
    outstanding_pairs: tuple[tuple[str, str], ...] = ()
    solo: tuple[tuple[str, str, int, int, SoloStep], ...] = ()
    alone: tuple[tuple[str, str, int, MeasuredAlone], ...] = ()
    broken_trials: tuple[tuple[str, str, str, int], ...] = ()
    observed_windows: tuple[int, ...] = ()
    doubted: tuple[tuple[str, str, str], ...] = ()
    refreshes: Mapping[str, PairRefresh] = field(default_factory=dict)
    speed_fits: tuple[tuple[str, str, SpeedFit], ...] = ()
    curves: Mapping[str, InterferenceCurve] = field(default_factory=dict)
    memory_states: tuple[tuple[str, str, MemoryTriple], ...] = ()
    task_speeds: tuple[tuple[str, str, int, int, int, SoloStep], ...] = ()
    task_speed_fits: tuple[tuple[str, str, TaskSpeedFit], ...] = ()
    larger_peaks: tuple[tuple[str, str, LargerPeak], ...] = ()
