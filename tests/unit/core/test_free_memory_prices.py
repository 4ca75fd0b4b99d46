"""Which load classes are asked again what they cost a shape of job."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scheduler_service.core.change_log import ChangeLog
from scheduler_service.core.cluster_view.capacity import Resident
from scheduler_service.core.cluster_view.gpu_arrays import LoadClass
from scheduler_service.core.records import Gpu, JobRequest
from scheduler_service.policies.packing.free_memory_prices import FreeMemoryPrices

GPU = Gpu(gpu_id="gpu", index=0, device="a100", memory_bytes=100)
SHAPES = ("red", "green", "blue")
HELD = ("", "red", "blue", "red green", "red red", "full")


def request_of(key: str) -> JobRequest:
    return JobRequest(job_id=f"job of {key}", key=key, gpus=1)


def load_of(held: str) -> LoadClass:
    keys = held.split()
    residents = [Resident(request=request_of(key), micro_batch_size=1, memory_reserved_bytes=10) for key in keys]
    used_bytes = GPU.memory_bytes if held == "full" else 10 * len(keys)
    return LoadClass(gpu=GPU, residents=tuple(residents), memory_used_bytes=used_bytes, is_releasing=False)


CLASSES = [load_of(held) for held in HELD]


def asked(prices: FreeMemoryPrices, present: Sequence[int] = range(len(HELD))) -> set[tuple[str, str]]:
    """Return which shapes of job were asked about which of the classes that GPUs are in, as (key, what is held)."""
    found: set[tuple[str, str]] = set()
    assert prices.catch_up()
    for key in SHAPES:

        def ask(load: LoadClass, key: str = key) -> float:
            found.add((key, HELD[CLASSES.index(load)]))
            return -1.0

        numbers = np.array(present, dtype=np.intp)
        costs = prices.costs_of(request_of(key), numbers, CLASSES, ask)[numbers]
        assert costs.tolist() == [np.inf if HELD[number] == "full" else -1.0 for number in present]
    return found


def test_only_classes_that_a_gpu_is_in_are_asked_about_and_once() -> None:
    prices = FreeMemoryPrices(ChangeLog())
    assert asked(prices, (0, 1)) == {(key, held) for key in SHAPES for held in ("", "red")}
    assert asked(prices, (1, 0, 2)) == {(key, "blue") for key in SHAPES}
    assert asked(prices, (0, 1, 2, 5)) == set()


def test_a_pair_that_changed_is_asked_about_where_both_would_be_and_nowhere_else() -> None:
    changes = ChangeLog()
    prices = FreeMemoryPrices(changes)
    asked(prices)
    changes.note("green", "red")
    both_there = {(key, "red green") for key in SHAPES}
    assert asked(prices) == both_there | {("green", "red"), ("green", "red red"), ("red", "red green")}
    changes.note("red", "red")
    assert asked(prices) == {(key, "red red") for key in SHAPES} | {("red", "red"), ("red", "red green")}


def test_a_key_that_changed_is_asked_about_wherever_it_is_or_comes() -> None:
    changes = ChangeLog()
    prices = FreeMemoryPrices(changes)
    asked(prices)
    changes.note("blue")
    assert asked(prices) == {(key, "blue") for key in SHAPES} | {("blue", held) for held in HELD if held != "full"}


def test_after_more_changes_than_are_kept_everything_is_forgotten() -> None:
    changes = ChangeLog()
    prices = FreeMemoryPrices(changes)
    for _ in range(5_000):
        changes.note("red", "blue")
    assert not prices.catch_up()
