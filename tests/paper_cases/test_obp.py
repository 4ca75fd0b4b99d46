"""OBP as the Horus paper describes it (section 5.2), on instances small enough for a pencil."""

from __future__ import annotations

from scheduler_service.core.decisions import Start, unfolded
from scheduler_service.policies.obp import OpportunisticBinPacking
from tests.support.scheduling import all_pairs, gpu, job, memory, node, pending, prediction, running, store, view

KEYS = ("small", "middle", "large")
# GiB of the 99 % bound; utilization is high on purpose: OBP does not look at it.
KNOWN = store(
    [prediction(key, memory=memory(size), utilization_ratio=0.9) for key, size in zip(KEYS, (1, 3, 6), strict=True)],
    all_pairs(KEYS, 0.1),
)
NODES = (node("n0", [gpu("g0"), gpu("g1"), gpu("g2")]),)


def starts_of(*waiting: str, held: dict[str, str], gpus: int = 1) -> dict[str, list[str]]:
    jobs = [
        pending(job(f"j{index}", key=key, gpus=gpus, global_batch_size=gpus), index)
        for index, key in enumerate(waiting)
    ]
    holding = [running(job(f"r-{gpu_id}", key=key), [gpu_id]) for gpu_id, key in held.items()]
    seen = view(nodes=NODES, waiting=jobs, holding=holding, predictions=KNOWN, now_ms=100)
    decisions = unfolded(OpportunisticBinPacking().decide(seen))
    return {one.job_id: [part.gpu_id for part in one.assignments] for one in decisions if isinstance(one, Start)}


def test_section_5_2_a_gpu_is_taken_if_more_memory_is_free_than_estimated() -> None:
    """2, 5 and 2 GiB are free of 8."""
    held = {"g0": "large", "g1": "middle", "g2": "large"}
    assert starts_of("middle", held=held) == {"j0": ["g1"]}
    assert starts_of("large", held=held) == {}


def test_section_5_2_the_least_loaded_gpu_comes_first() -> None:
    """8, 5 and 7 GiB are free; after the first job 5, 5 and 7."""
    held = {"g1": "middle", "g2": "small"}
    assert starts_of("middle", "middle", "small", held=held) == {"j0": ["g0"], "j1": ["g2"], "j2": ["g0"]}
    assert starts_of("small", held=held, gpus=2) == {"j0": ["g0", "g2"]}


def test_section_5_2_jobs_are_taken_as_they_come_and_a_large_one_lets_others_pass() -> None:
    held = {"g0": "middle", "g1": "middle", "g2": "middle"}
    assert starts_of("large", "middle", held=held) == {"j1": ["g0"]}
