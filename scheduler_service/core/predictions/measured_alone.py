"""What was measured of a key alone on one GPU takes the place of a prediction that is not reliable.

A job whose prediction is unsure has a GPU to itself. Its first sound measurement window there tells memory, utilization
and step time; from then on they are what is known of the key on that device type, with a margin over the peak, and the
job may share on trial. A prediction that is reliable keeps its own values, but for a utilization that was measured
outside its range: a script that waits in its own loop looks busier from its graph than it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from scheduler_service.core.cluster_view.capacity import is_reliable
from scheduler_service.core.copied_record import CopiedRecord
from scheduler_service.core.records import JobPrediction, Level, MemoryPoint

MARGIN_RATIO = 0.15
"""Added to a measured peak: later phases of a training may take more than its first windows."""
MARGIN_BYTES_MIN = 64 * 2**20


@dataclass(frozen=True, kw_only=True)
class MeasuredAlone(CopiedRecord):
    """What sound windows of a key alone on one GPU said, at one micro-batch.

    Attributes:
        windows: How many.
        memory_peak_bytes: The largest peak; 0 = the device does not tell.
        utilization_ratio: Of a late window; None = the device does not tell.
        step_ms: Mean step time until that window.
    """

    windows: int = 0
    memory_peak_bytes: int = 0
    utilization_ratio: float | None = None
    step_ms: float = 0.0

    @property
    def is_repeated(self) -> bool:
        """Whether it may contradict a reliable prediction: a first window alone may be that of a beginning."""
        return self.windows > 1

    def counts_only(self, memory_peak_bytes: int) -> bool:
        """Return whether of one more window nothing counts but that it was: the later, the more such windows."""
        return memory_peak_bytes <= self.memory_peak_bytes and (self.windows + 1).bit_count() > 1

    def joined_by(self, memory_peak_bytes: int, utilization_ratio: float | None, step_ms: float) -> MeasuredAlone:
        """Return it with one more window; the later one comes, the more windows must pass until its values count."""
        windows = self.windows + 1
        if self.counts_only(memory_peak_bytes):
            return self.changed(windows=windows)
        return MeasuredAlone(
            windows=windows,
            memory_peak_bytes=max(memory_peak_bytes, self.memory_peak_bytes),
            utilization_ratio=self.utilization_ratio if utilization_ratio is None else utilization_ratio,
            step_ms=step_ms,
        )


def bound_of_peak(peak_bytes: int) -> int:
    """Return the memory that is kept for a job with this measured peak."""
    return peak_bytes + max(int(peak_bytes * MARGIN_RATIO), MARGIN_BYTES_MIN)


def with_measured(
    key: str, device: str, predicted: JobPrediction | None, measured: Mapping[int, MeasuredAlone]
) -> JobPrediction | None:
    """Return what is known of a key on a device type.

    Args:
        key: The key.
        device: The device type.
        predicted: What the predictor said; None = nothing.
        measured: Alone on one GPU, by micro-batch.
    """
    sizes = tuple(sorted(size for size, one in measured.items() if one.step_ms > 0))
    if not sizes:
        return predicted
    if predicted is not None and is_reliable(predicted):
        return _corrected(predicted, measured, sizes)
    known = {size: measured[size] for size in sizes if measured[size].memory_peak_bytes}
    if not known:
        return predicted
    newest = known[max(known)]
    base = predicted or JobPrediction(key=key, device=device, utilization_ratio=1.0)
    utilization_ratio = base.utilization_ratio if newest.utilization_ratio is None else newest.utilization_ratio
    return replace(
        base,
        utilization_ratio=utilization_ratio,
        utilization_lower_ratio=utilization_ratio,
        utilization_upper_ratio=utilization_ratio,
        memory={
            size: MemoryPoint(
                memory_bytes=one.memory_peak_bytes, memory_bytes_upper_99=bound_of_peak(one.memory_peak_bytes)
            )
            for size, one in known.items()
        },
        step_ms={(1, size): one.step_ms for size, one in known.items()},
        # Ranges are those of predictions, of which what was measured knows nothing.
        step_ms_lower=0.0,
        step_ms_upper=0.0,
        memory_triple=None,
        level=Level.OBSERVED,
        in_domain=True,
        range_not_calibrated=False,
        measured_micro_batch_sizes=tuple(known),
    )


def _corrected(
    predicted: JobPrediction, measured: Mapping[int, MeasuredAlone], sizes: tuple[int, ...]
) -> JobPrediction:
    """Return a reliable prediction, with the measured utilization where this is outside its range."""
    newest = measured[sizes[-1]]
    utilization_ratio = newest.utilization_ratio
    known = replace(predicted, measured_micro_batch_sizes=sizes)
    if utilization_ratio is None or not newest.is_repeated:
        return known
    if predicted.utilization_lower_ratio <= utilization_ratio <= predicted.utilization_upper_ratio:
        return known
    return replace(
        known,
        utilization_ratio=utilization_ratio,
        utilization_lower_ratio=utilization_ratio,
        utilization_upper_ratio=utilization_ratio,
    )
