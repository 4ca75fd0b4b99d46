"""What windows show of pairs: how much one job was slowed down by one other, as soon as its time alone is known.

A window with one co-located job waits until the same job has stepped alone on the same machine at the same
micro-batch, with or without MPS as then; neither machines nor these are mixed inside a slowdown. A device that others
used yields no sample. Unsteady windows do, marked doubtful: the mean of a whole window moves a value, and makes no
interval narrower. The samples follow from the windows and their order alone, so that reading the store again gives the
same.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from cotenant.device_sharing import DeviceSharing
from predictor_service.profile_store.measurement_window import MeasuredJob, MeasurementWindow
from predictor_service.profile_store.rows import SLOWDOWN_MAX, SLOWDOWN_MIN, Place, place_of

PLACES_MAX: Final = 20_000
"""Jobs on machines; those without a window for longest are dropped."""
ALONE_KEPT: Final = 9
"""Newest times alone, of which the median counts."""
WAITING_MAX: Final = 8
"""Newest windows with a co-located job, of a job that was not yet seen alone."""
FOREIGN_LOAD: Final = "foreign_load"


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSample:
    """One measured slowdown.

    Attributes:
        device: Device type.
        victim: The job that was slowed down.
        other: The only co-located job.
        slowdown_ratio: Shared over alone, less 1.
        at_ms: When the window was reported.
        is_doubtful: The window with the other job has a reason for doubt, or all times alone have.
        sharing: How the two shared the device.
    """

    device: str
    victim: MeasuredJob
    other: MeasuredJob
    slowdown_ratio: float
    at_ms: int
    is_doubtful: bool = False
    sharing: DeviceSharing = DeviceSharing.UNSTATED


@dataclass(slots=True)
class _Seen:
    """Of one job at one place: its newest times alone, and windows that wait for the first of them.

    Attributes:
        alone_ms: Steady times.
        doubtful_alone_ms: The others, which count where there is no steady one.
    """

    alone_ms: deque[float] = field(default_factory=lambda: deque(maxlen=ALONE_KEPT))
    doubtful_alone_ms: deque[float] = field(default_factory=lambda: deque(maxlen=ALONE_KEPT))
    waiting: deque[tuple[int, MeasurementWindow]] = field(default_factory=lambda: deque(maxlen=WAITING_MAX))


class PairSamples:
    """Remembers times alone and what waits for them; safe for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: OrderedDict[Place, _Seen] = OrderedDict()

    def take(self, window: MeasurementWindow, at_ms: int) -> list[PairSample]:
        """Takes one window in, each once and in the order of the store.

        Args:
            window: What was measured.
            at_ms: When it was reported.

        Returns:
            What is known of pairs now and was not before.
        """
        if FOREIGN_LOAD in window.quality_flags or len(window.others) > 1:
            return []
        place = place_of(window)
        with self._lock:
            seen = self._places.setdefault(place, _Seen())
            self._places.move_to_end(place)
            if len(self._places) > PLACES_MAX:
                self._places.popitem(last=False)
            if window.others:
                seen.waiting.append((at_ms, window))
            else:
                (seen.doubtful_alone_ms if window.quality_flags else seen.alone_ms).append(window.step_ms)
            return list(_settle(seen)) if seen.alone_ms or seen.doubtful_alone_ms else []


def _settle(seen: _Seen) -> Iterator[PairSample]:
    alone_ms = median(seen.alone_ms or seen.doubtful_alone_ms)
    while seen.waiting:
        at_ms, window = seen.waiting.popleft()
        slowdown_ratio = window.step_ms / alone_ms - 1.0
        if SLOWDOWN_MIN <= slowdown_ratio <= SLOWDOWN_MAX:
            yield PairSample(
                device=window.device,
                victim=window.job,
                other=window.others[0],
                slowdown_ratio=slowdown_ratio,
                at_ms=at_ms,
                is_doubtful=bool(window.quality_flags) or not seen.alone_ms,
                sharing=window.sharing,
            )
