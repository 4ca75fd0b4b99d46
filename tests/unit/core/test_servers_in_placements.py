"""Jobs that ask for the same but for their number of parameter servers are not alike: hosts hold whole servers."""

from __future__ import annotations

from typing import Any

from scheduler_service.core.cluster_view.ledger import Ledger
from scheduler_service.core.cluster_view.view import PendingJob, RunningJob
from scheduler_service.core.decisions import unfolded
from scheduler_service.core.jobs.replica_terms import ReplicaTerms
from scheduler_service.core.records import TaskDemand
from scheduler_service.policies.placement.preemption import PreemptionPlanner
from scheduler_service.policies.srtf import Srtf
from tests.support.scheduling import DEVICE, GIB, job, node, pending, prediction, running, store, view

KNOWN = store([prediction("key", step_ms={(gpus, 1): 1_000.0 for gpus in (1, 2)})])
NODES = [node("n0", cpu_cores=2.0), node("n1", cpu_cores=2.0)]
"""Each has room for half of the cores of a job below, and for no half server more."""


def served(job_id: str, servers: int, steps: int) -> PendingJob:
    """A job for both GPUs: two servers are one on each node, of three one node holds two."""
    return pending(
        job(
            job_id,
            key="key",
            gpus=2,
            global_batch_size=2,
            steps_total=steps,
            cpu_cores=4.0,
            server_demand=TaskDemand(cpu_cores=1.0),
            replicas=ReplicaTerms(servers=servers),
        )
    )


def decided(holding: list[RunningJob]) -> list[tuple[str, str]]:
    """What is decided about a job whose servers do not come out even, and a longer one whose servers do."""
    facts: dict[str, Any] = {"nodes": NODES, "predictions": KNOWN, "holding": holding, "nodes_per_job_max": 0}
    waiting = [served("uneven", 3, 10), served("even", 2, 20)]
    return [(one.job_id, one.reason.code) for one in unfolded(Srtf().decide(view(waiting=waiting, **facts)))]


def long_running(job_id: str, gpu_id: str) -> RunningJob:
    return running(job(job_id, key="key", steps_total=100_000), [gpu_id])


def test_a_job_starts_although_an_equal_one_with_another_number_of_servers_found_no_room_on_the_hosts() -> None:
    assert sorted(decided([])) == [("even", "STARTS_ALONE"), ("uneven", "HOST_DOES_NOT_FIT")]


def test_jobs_make_room_although_they_made_none_for_an_equal_job_with_another_number_of_servers() -> None:
    decisions = decided([long_running("r0", "n0.0"), long_running("r1", "n1.0")])
    assert decisions == [
        ("r0", "STOPPED_FOR_SHORTER"),
        ("r1", "STOPPED_FOR_SHORTER"),
        ("uneven", "NO_FREE_GPU"),
        ("even", "STOPS_LONGER"),
    ]


def test_a_search_for_victims_that_failed_says_nothing_of_jobs_with_another_number_of_servers() -> None:
    holding = [long_running("r0", "n0.0"), long_running("r1", "n1.0")]
    seen = view(nodes=NODES, holding=holding, predictions=KNOWN, nodes_per_job_max=0)
    planner = PreemptionPlanner(Ledger(seen))
    kind = (DEVICE, 8 * GIB)
    assert planner.find(served("uneven", 3, 10).request, kind, 10_000.0) is None
    plan = planner.find(served("even", 2, 20).request, kind, 20_000.0)
    assert plan is not None
    assert plan.victims == ("r0", "r1")
