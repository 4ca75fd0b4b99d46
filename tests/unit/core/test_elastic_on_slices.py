"""Slices of GPUs are kinds by themselves, and a job costs no more to weigh for each of them that is like another."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_service.core.decisions import Start
from scheduler_service.policies import elastic
from scheduler_service.policies.elasticity import reshaping
from tests.support.elastic import BATCH, STEPS, request
from tests.support.scheduling import GIB, gpu, node, pending, prediction, store, view

SLICES, JOBS = 40, 10


@pytest.mark.parametrize("sizes", [1, 2])
def test_a_job_is_weighed_once_for_all_slices_of_one_size(sizes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    weighed: list[str] = []
    real = reshaping.profiled_remaining_ms

    def profiled_remaining_ms(asked: Any, *arguments: Any, **named: Any) -> int | None:
        weighed.append(asked.job_id)
        return real(asked, *arguments, **named)

    monkeypatch.setattr(elastic, "profiled_remaining_ms", profiled_remaining_ms)
    names = [f"j{number}" for number in range(JOBS)]
    slices = [gpu(f"MIG-{each}", index=each, memory_bytes=(8 + each % sizes) * GIB) for each in range(SLICES)]
    seen = view(
        nodes=[node("n0", slices)],
        waiting=[pending(request(name, {1: 10.0}), number) for number, name in enumerate(names)],
        predictions=store([prediction(f"key-{name}", step_ms={(1, BATCH): 10_000 / STEPS}) for name in names]),
    )
    found = elastic.Elastic().decide(seen)
    assert len({one.assignments[0].gpu_id for one in found if isinstance(one, Start)}) == JOBS
    assert weighed == [name for name in names for _ in range(sizes)]
