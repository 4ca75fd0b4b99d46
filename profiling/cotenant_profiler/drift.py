"""Whether the machine stayed the same: the anchor job, measured next to every run of a job alone."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from cotenant_profiler.journal import Record
from cotenant_profiler.plan import Kind

# With fewer anchors a median is unreliable.
ANCHORS_MIN = 5


def anchor_ms(record: Record) -> float | None:
    """Return the step time of the anchor job around a run of a job alone, milliseconds; None for other runs."""
    if record.kind is not Kind.SOLO or not record.references_ms:
        return None
    return statistics.fmean(record.references_ms[0])


def anchor_median_ms(records: Sequence[Record]) -> float | None:
    """Return the median of the anchor's step times, milliseconds; None while there are too few."""
    times_ms = [time_ms for time_ms in map(anchor_ms, records) if time_ms is not None]
    return statistics.median(times_ms) if len(times_ms) >= ANCHORS_MIN else None


def drift_ratio(record: Record, records: Sequence[Record]) -> float:
    """Return by how much the anchor around `record` deviates from its median over `records`; 0 when unknown."""
    time_ms = anchor_ms(record)
    median_ms = anchor_median_ms(records)
    return 0.0 if time_ms is None or median_ms is None else time_ms / median_ms - 1
