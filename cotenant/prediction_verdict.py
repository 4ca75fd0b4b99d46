"""Whether the job of a prediction fits on its device."""

from __future__ import annotations

from cotenant.memory_verdict import MemoryVerdict, judge_memory
from cotenant.v1 import prediction_pb2


def verdict_of(answer: prediction_pb2.PredictJobResponse) -> MemoryVerdict:
    """Judges a prediction."""
    memory = answer.memory_bytes
    return judge_memory(
        expected_bytes=max(memory.value, memory.lower),
        bound_bytes=memory.upper_99,
        device_bytes=answer.device_memory_bytes,
    )


def may_run(answer: prediction_pb2.PredictJobResponse) -> bool:
    """Whether nothing speaks against starting the predicted job alone."""
    return verdict_of(answer) in {MemoryVerdict.FITS, MemoryVerdict.MAY_NOT_FIT}
