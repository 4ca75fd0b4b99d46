"""Best fit by hand: section 5.2 of the OJPP paper with Eq. 1 and 2, on instances small enough for a pencil."""

from __future__ import annotations

from scheduler_service.core.decisions import unfolded
from scheduler_service.policies.best_fit import BestFit
from tests.support.packing import Instance, Packed, placement_of
from tests.support.scheduling import GIB, job, memory, node, pending, prediction, store, view


def packed(*jobs: Packed, gpus: int = 4, **held: list[str]) -> dict[str, list[str]]:
    instance = Instance(jobs=jobs, gpus=gpus, held=held)
    return placement_of(instance, BestFit().decide(instance.view()))


def test_section_5_2_the_largest_job_comes_first_and_small_ones_fill_its_gpu() -> None:
    """Compute decides the order: 0.7, 0.6, 0.4, 0.3; 0.4 fits with 0.6 only, 0.3 with 0.7 leaves nothing."""
    found = packed(
        Packed(name="a", alpha=0.3),
        Packed(name="b", alpha=0.4),
        Packed(name="c", alpha=0.6),
        Packed(name="d", alpha=0.7),
    )
    assert found == {"d": ["g0"], "c": ["g1"], "b": ["g1"], "a": ["g0"]}


def test_section_5_2_the_leftover_counts_compute_and_memory() -> None:
    """With u 0.5 + 0.3 is left, with v 0.2 + 0.5: v is fuller, although u has less compute in use."""
    found = packed(
        Packed(name="u", alpha=0.4, gamma=0.6),
        Packed(name="v", alpha=0.7, gamma=0.4),
        Packed(name="new", alpha=0.1, gamma=0.1),
        u=["g0"],
        v=["g1"],
    )
    assert found["new"] == ["g1"]


def test_equation_1_compute_never_adds_up_to_more_than_one_device() -> None:
    found = packed(Packed(name="a", alpha=0.6), Packed(name="b", alpha=0.5))
    assert found == {"a": ["g0"], "b": ["g1"]}


def test_equation_2_best_fit_counts_every_peak() -> None:
    """0.2 + 0.4 twice is 1.2, although 0.2 + 0.2 + 0.4 would be 0.8 (Eq. 3)."""
    found = packed(Packed(name="a", gamma=0.2, delta=0.4), Packed(name="b", gamma=0.2, delta=0.4))
    assert found == {"a": ["g0"], "b": ["g1"]}


def test_algorithm_2_all_workers_or_none() -> None:
    assert packed(Packed(name="wide", workers=2, alpha=0.6), gpus=1) == {}
    found = packed(Packed(name="wide", workers=3, alpha=0.6), Packed(name="old", alpha=0.5), gpus=3, old=["g0"])
    assert found == {"old": ["g0"]}


def test_algorithm_2_a_worker_too_large_for_an_empty_gpu_waits_and_the_others_go_on() -> None:
    instance = Instance(jobs=(Packed(name="huge", gamma=0.7, delta=0.4), Packed(name="small")), gpus=2)
    decisions = list(unfolded(BestFit().decide(instance.view())))
    assert {one.job_id: one.reason.code for one in decisions} == {"huge": "PEAK_EXCEEDS_GPU", "small": "STARTS_ALONE"}
    assert placement_of(instance, decisions) == {"small": ["g0"]}


def test_where_we_differ_reserved_bounds_have_to_fit_together() -> None:
    """Bounds of 5 GiB each on a device of 8 GiB."""
    known = store([prediction(name, memory=memory(2, upper_gib=5), utilization_ratio=0.1) for name in "ab"])
    waiting = [pending(job(name, key=name)) for name in "ab"]
    first, second = unfolded(BestFit().decide(view(nodes=[node()], waiting=waiting, predictions=known)))
    assert first.reason.code == "STARTS_ALONE"
    assert second.reason.code == "MEMORY_DOES_NOT_FIT"
    assert second.reason.numbers == {"needed_bytes": 5 * GIB, "free_bytes": 3 * GIB, "gpu_memory_bytes": 8 * GIB}
