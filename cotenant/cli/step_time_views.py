"""Step times of a job over numbers of GPUs, as labelled lines that say what each is based on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cotenant import quantities
from cotenant.v1 import scheduling_pb2

_BASES: Final[Mapping[int, str]] = {
    scheduling_pb2.STEP_TIME_BASIS_MEASURED: "measured",
    scheduling_pb2.STEP_TIME_BASIS_FITTED: "fitted to {} measurements",
    scheduling_pb2.STEP_TIME_BASIS_CORRECTED: "foreseen, corrected by {} measured",
    scheduling_pb2.STEP_TIME_BASIS_FORESEEN: "foreseen",
}


def step_time_lines(job: scheduling_pb2.Job) -> list[tuple[str, str]]:
    """Returns the step time alone on each number of GPUs that a job may have."""
    return [
        ("step alone", f"on {_count(known)} {quantities.format_ms(known.step_ms)} ({_basis(known)}), {one.device}")
        for one in job.predictions
        for known in one.step_times
    ]


def _count(known: scheduling_pb2.KnownStepTime) -> str:
    gpus = "1 GPU" if known.gpus == 1 else f"{known.gpus} GPUs"
    return f"{gpus} with {known.servers} server(s)" if known.servers else gpus


def _basis(known: scheduling_pb2.KnownStepTime) -> str:
    return _BASES.get(known.basis, "basis not known").format(known.measurements)
