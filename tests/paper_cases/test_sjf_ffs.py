"""SJF-FFS as the SJF-BSBF paper describes it (section VI-A4), on instances small enough for a pencil."""

from __future__ import annotations

from scheduler_service.core.decisions import Start, unfolded
from scheduler_service.core.records import Share
from scheduler_service.policies.sjf_ffs import SjfFfs
from tests.support.cases import for_each
from tests.support.scheduling import all_pairs, job, memory, node, pending, prediction, running, store, view

LENGTHS = {"a": 10, "b": 20, "c": 30}
KEYS = [f"key-{name}" for name in "abcr"]
KNOWN = store(
    [prediction(key, step_ms={(gpus, 1): 1_000.0 for gpus in (1, 2, 3)}, memory=memory(3)) for key in KEYS],
    all_pairs(KEYS, 0.15),
)


def starts_of(names: str, *, jobs_on_gpus: str, share: Share = Share.SAFE) -> dict[str, list[str]]:
    """Jobs are written "a2" = job a on two GPUs; GPUs "021" = the first is free, the second holds two jobs, ..."""
    waiting = [
        pending(
            job(
                name,
                key=f"key-{name[0]}",
                gpus=int(name[1]),
                global_batch_size=int(name[1]),
                steps_total=LENGTHS[name[0]],
            )
        )
        for name in names.split()
    ]
    holding = [
        running(job(f"r{gpu}-{place}", key="key-r", share=share), [f"n0.{gpu}"])
        for gpu, count in enumerate(jobs_on_gpus)
        for place in range(int(count))
    ]
    seen = view(nodes=[node("n0", len(jobs_on_gpus))], waiting=waiting, holding=holding, predictions=KNOWN)
    decisions = unfolded(SjfFfs().decide(seen))
    return {one.job_id: [part.gpu_id[-1] for part in one.assignments] for one in decisions if isinstance(one, Start)}


@for_each(
    ("names", "jobs_on_gpus", "expected"),
    [
        ("a1", "101", {"a1": ["1"]}),
        ("a1", "111", {"a1": ["0"]}),
        ("a1", "211", {"a1": ["1"]}),
        ("a1", "222", {}),
        ("a2", "101", {"a2": ["0", "2"]}),
        ("a2", "102", {"a2": ["0", "1"]}),
        ("a3", "102", {}),
        ("b1 a1", "12", {"a1": ["0"]}),
        ("c1 b1 a1", "11", {"a1": ["0"], "b1": ["1"]}),
        ("c1 b1 a1", "01", {"a1": ["0"], "b1": ["0"], "c1": ["1"]}),
    ],
)
def test_section_6_a4_jobs_join_the_first_gpus_with_one_job_where_free_ones_do_not_suffice(
    names: str, jobs_on_gpus: str, expected: dict[str, list[str]]
) -> None:
    assert starts_of(names, jobs_on_gpus=jobs_on_gpus) == expected


def test_no_job_joins_one_that_never_shares() -> None:
    assert starts_of("a1", jobs_on_gpus="11", share=Share.NEVER) == {}
