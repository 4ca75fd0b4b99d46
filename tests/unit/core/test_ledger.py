"""What one round counts as given away, by the figures that plans are checked against."""

from __future__ import annotations

from typing import Any

from scheduler_service.core.cluster_view.capacity import Resident
from scheduler_service.core.cluster_view.ledger import Ledger
from scheduler_service.core.cluster_view.view import HostUse, RunningJob
from scheduler_service.core.records import Assignment
from tests.support.cases import for_each
from tests.support.scheduling import GIB, job, node, running, view

MACHINE: dict[str, Any] = {"cpu_cores": 8.0, "host_memory_bytes": 64 * GIB}


def moved(one: RunningJob, reserved_bytes: int, *gpu_ids: str) -> Ledger:
    ledger = Ledger(view(nodes=[node("n0", 2, **MACHINE), node("n1", 1, **MACHINE)], holding=[one]))
    resident = Resident(request=one.request, micro_batch_size=1, memory_reserved_bytes=reserved_bytes)
    ledger.move(one, resident, [Assignment(gpu_id=gpu_id, rank=rank) for rank, gpu_id in enumerate(gpu_ids)])
    return ledger


@for_each("need", [{"cpu_cores": 5.0}, {"host_memory_bytes": 40 * GIB}])
def test_what_a_job_that_leaves_occupied_of_a_host_is_room_for_another(need: dict[str, Any]) -> None:
    leaving, coming = job("leaves", **need), job("comes", **need)
    machine = node("n0", 1, **MACHINE)
    ledger = Ledger(view(nodes=[machine], holding=[running(leaving, ["n0.0"])]))
    freed = HostUse(cpu_cores=leaving.cpu_cores, host_memory_bytes=leaving.host_memory_bytes)
    assert not ledger.host_fits(machine, coming, gpus_here=1, gpus=1)
    assert ledger.host_fits(machine, coming, gpus_here=1, gpus=1, freed=freed)


@for_each(("then_gib", "used_gib"), [(3, 3), (1, 2)])
def test_a_job_that_stays_on_its_gpu_takes_what_it_grows_by_and_gives_nothing_back_yet(
    then_gib: int, used_gib: int
) -> None:
    ledger = moved(running(job("runs"), ["n0.0"], memory_reserved_bytes=2 * GIB), then_gib * GIB, "n0.0")
    assert ledger.memory_used_bytes("n0.0") == used_gib * GIB


@for_each(("kind", "need", "left"), [("cpu_cores", 6.0, 2.0), ("host_memory_bytes", 48 * GIB, 16 * GIB)])
def test_a_gang_that_draws_together_asks_its_host_for_the_part_that_comes(kind: str, need: float, left: float) -> None:
    gang = running(job("runs", gpus=2, global_batch_size=2, **{kind: need}), ["n0.0", "n1.0"])
    ledger, machine = moved(gang, 2 * GIB, "n0.0", "n0.1"), node("n0", 2, **MACHINE)
    assert ledger.host_fits(machine, job("fits", **{kind: left}), gpus_here=1, gpus=1)
    assert not ledger.host_fits(machine, job("large", **{kind: left + 1}), gpus_here=1, gpus=1)
