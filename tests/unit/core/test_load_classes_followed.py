"""Which load classes are left after every start, found by the GPUs that changed alone."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler_service.core.gpu_arrays import GpuArrays
from scheduler_service.policies.placement.class_prices import CLASSES_FOLLOWED_MAX, AlikeChanges
from tests.support.scheduling import node, view

GPUS = 400


def arrays() -> GpuArrays:
    nodes = [node(f"n{number:02}", gpus=8) for number in range(GPUS // 8)]
    seen = view(nodes=nodes)
    return seen.index.arrays.for_one_round()


def firsts_of(gpus: GpuArrays) -> dict[int, str]:
    numbers, positions = np.unique(gpus.class_of, return_index=True)
    return {int(number): gpus.gpu_ids[position] for number, position in zip(numbers, positions, strict=True)}


@pytest.mark.parametrize("moved_count", [1, 3, 8 * CLASSES_FOLLOWED_MAX])
def test_classes_that_are_left_are_those_that_a_look_at_every_gpu_finds(moved_count: int) -> None:
    gpus, changes, generator = arrays(), AlikeChanges(), np.random.default_rng(moved_count)
    seen: dict[int, dict[int, str]] = {}
    for _ in range(60):
        changes.follow(gpus)
        seen[changes.version] = now = firsts_of(gpus)
        alike = changes.alike
        assert dict(zip(alike.numbers.tolist(), alike.gpu_ids, strict=True)) == now
        gpus.class_of[generator.integers(GPUS, size=moved_count)] = generator.integers(40, size=moved_count)
    for version in range(changes.version - 30, changes.version):
        came = changes.came_since(version)
        assert came is not None
        # Whatever is new is told; what went and came again may be, too.
        assert now.items() - seen[version].items() <= {*came} <= now.items()


def test_one_start_is_followed_without_a_look_at_the_class_of_every_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus, changes, looks = arrays(), AlikeChanges(), list[int]()
    unique = np.unique

    def counted(*args: object, **named: object) -> object:
        looks.append(1)
        return unique(*args, **named)  # type: ignore[call-overload]

    changes.follow(gpus)
    monkeypatch.setattr(np, "unique", counted)
    for position in range(50):
        gpus.class_of[position] = 1 + position % 7
        changes.follow(gpus)
    assert changes.version == 51
    assert not looks
