"""Which load classes are left after every start, found by the GPUs that changed alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from scheduler_service.core.cluster_view.capacity import Resident
from scheduler_service.core.cluster_view.gpu_arrays import NEAR_GPUS, GpuArrays, Positions
from scheduler_service.policies.placement.class_prices import CLASSES_FOLLOWED_MAX, AlikeChanges
from tests.support.scheduling import GIB, job, node, view

GPUS = 400


def arrays() -> GpuArrays:
    nodes = [node(f"n{number:02}", gpus=8) for number in range(GPUS // 8)]
    seen = view(nodes=nodes)
    return seen.index.arrays.for_one_round()


class CountedPositions(np.ndarray[tuple[int, ...], np.dtype[np.intp]]):
    """Classes by position that note at how many of them one comparison looked at most."""

    compared_max = 0

    @classmethod
    def of(cls, values: Positions) -> CountedPositions:
        return values.view(cls)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **named: Any) -> Any:
        CountedPositions.compared_max = max(CountedPositions.compared_max, *(np.size(one) for one in inputs))
        plain = [one.view(np.ndarray) if isinstance(one, CountedPositions) else one for one in inputs]
        return getattr(ufunc, method)(*plain, **named)


def firsts_of(gpus: GpuArrays) -> dict[int, str]:
    numbers, positions = np.unique(gpus.class_of, return_index=True)
    return {int(number): gpus.gpu_ids[position] for number, position in zip(numbers, positions, strict=True)}


@pytest.mark.parametrize("in_one_round", [True, False])
@pytest.mark.parametrize("moved_count", [1, 3, 8 * CLASSES_FOLLOWED_MAX])
def test_classes_that_are_left_are_those_that_a_look_at_every_gpu_finds(moved_count: int, in_one_round: bool) -> None:
    gpus, changes, generator = arrays(), AlikeChanges(), np.random.default_rng(moved_count)
    seen: dict[int, dict[int, str]] = {}
    for _ in range(60):
        changes.follow(gpus)
        seen[changes.version] = now = firsts_of(gpus)
        alike = changes.alike
        assert dict(zip(alike.numbers.tolist(), alike.gpu_ids, strict=True)) == now
        places = generator.integers(GPUS, size=moved_count)
        if in_one_round:
            gpus.moved.extend(places.tolist())
        else:
            gpus = gpus.for_one_round()
        gpus.class_of[places] = generator.integers(40, size=moved_count)
    for version in range(changes.version - 30, changes.version):
        came = changes.came_since(version)
        assert came is not None
        # Whatever is new is told; what went and came again may be, too.
        assert now.items() - seen[version].items() <= {*came} <= now.items()


def test_one_start_is_followed_by_the_gpus_that_it_moved_alone() -> None:
    gpus, changes = arrays(), AlikeChanges()
    changes.follow(gpus)
    resident = Resident(request=job("a", gpus=8), micro_batch_size=1, memory_reserved_bytes=GIB)
    gpus.class_of = CountedPositions.of(gpus.class_of)
    for first in range(0, 80, 8):
        gpus.place(resident, range(first, first + 8))
        changes.follow(gpus)
    assert CountedPositions.compared_max <= NEAR_GPUS
    assert changes.version == 11
    assert dict(zip(changes.alike.numbers.tolist(), changes.alike.gpu_ids, strict=True)) == firsts_of(gpus)
