"""FIFO as the SJF-BSBF paper describes it (section VI-A1), on instances small enough for a pencil."""

from __future__ import annotations

from dataclasses import replace

from scheduler_service.core.decisions import Start, unfolded
from scheduler_service.policies.fifo import Fifo
from tests.support.scheduling import gpu, job, node, pending, prediction, running, store, view

SLOW, FAST = "slow", "fast"
NODES = (
    node("n0", [gpu("s0", device=SLOW), gpu("s1", device=SLOW)]),
    node("n1", [gpu("f0", device=FAST), gpu("f1", device=FAST)]),
)
# A step of either job takes twice as long on a slow GPU.
KNOWN = store(
    prediction(key, device=device, step_ms={(1, 1): step_ms, (2, 1): step_ms})
    for key in ("key-a", "key-b")
    for device, step_ms in ((SLOW, 20.0), (FAST, 10.0))
)


def starts_of(*waiting: str, busy: tuple[str, ...] = ()) -> dict[str, list[str]]:
    """Jobs are written "a2" = job a on two GPUs, in order of arrival."""
    jobs = [
        pending(
            job(name, key=f"key-{name[0]}", gpus=int(name[1]), global_batch_size=int(name[1])), submitted_at_ms=position
        )
        for position, name in enumerate(waiting)
    ]
    holding = [running(job(f"r-{gpu_id}"), [gpu_id]) for gpu_id in busy]
    seen = view(nodes=NODES, waiting=jobs, holding=holding, predictions=KNOWN, now_ms=100, nodes_per_job_max=1)
    decisions = unfolded(Fifo().decide(seen))
    return {one.job_id: [part.gpu_id for part in one.assignments] for one in decisions if isinstance(one, Start)}


def test_section_6_a1_the_first_job_gets_the_gpus_with_the_least_execution_time() -> None:
    assert starts_of("a2") == {"a2": ["f0", "f1"]}
    assert starts_of("a2", "b1") == {"a2": ["f0", "f1"], "b1": ["s0"]}
    assert starts_of("a1", busy=("f0", "f1")) == {"a1": ["s0"]}


def test_section_6_a1_a_wide_job_at_the_head_blocks_the_line_behind_it() -> None:
    assert starts_of("a2", "b1", busy=("s0", "f0")) == {}
    assert starts_of("b1", "a2", busy=("s0", "f0")) == {"b1": ["f1"]}


def test_a_node_whose_host_is_full_is_none_of_the_nodes_that_a_job_may_span() -> None:
    nodes = (
        replace(node("a", 3), cpu_cores=1.0),
        replace(node("b", 2), cpu_cores=64.0),
        replace(node("c", 2), cpu_cores=64.0),
    )
    wide = pending(job("wide", gpus=4, global_batch_size=4, cpu_cores=8.0))
    (start,) = unfolded(Fifo().decide(view(nodes=nodes, waiting=[wide], nodes_per_job_max=2)))
    assert isinstance(start, Start)
    assert [part.gpu_id for part in start.assignments] == ["b.0", "b.1", "c.0", "c.1"]
