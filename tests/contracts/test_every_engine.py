"""What every engine must do for the bridge: the simulated one, and Slurm over rows as it writes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from cotenant.engines.errors import EngineRefusedError
from cotenant.engines.placement_notes import placed_note, planned_gpu
from cotenant.engines.port import Engine
from cotenant.engines.records import EngineJob, EnginePhase, Placement
from cotenant.engines.slurm.adapter import SlurmEngine
from cotenant.engines.slurm.reading import DeviceRule
from tests.support.fake_slurm import FakeSlurm
from tests.support.simulated_engine import GIB, SimulatedEngine

COMMENT = "cotenant memory=6GiB"


@dataclass(frozen=True)
class Case:
    """An engine, and how a user hands a job to it."""

    engine: Engine
    submit: Callable[[str, str], None]


def simulated() -> Case:
    made = SimulatedEngine(nodes=2)
    return Case(made, lambda job_id, comment: made.submit(job_id, comment))


def slurm() -> Case:
    commands = FakeSlurm()
    devices = [DeviceRule(nodes="*", device="NVIDIA A10", memory_bytes=24 * GIB)]
    return Case(SlurmEngine(commands, devices), commands.submit)


@pytest.fixture(params=[simulated, slurm], ids=["simulated", "slurm"])
def case(request: pytest.FixtureRequest) -> Case:
    made: Case = request.param()
    return made


def job(case: Case, job_id: str = "1") -> EngineJob:
    return next(one for one in case.engine.read().jobs if one.job_id == job_id)


def placement(job_id: str = "1", *, gpu_id: str = "n1/g1", slots: int = 2) -> Placement:
    note = placed_note(gpu_id, slots)
    return Placement(job_id=job_id, node_id=gpu_id.partition("/")[0], gpu_id=gpu_id, slots=slots, note=note)


def test_it_lists_gpus_with_their_type_memory_and_parts(case: Case) -> None:
    gpus = case.engine.read().gpus
    assert sorted(gpus) == ["n1/g0", "n1/g1", "n2/g0", "n2/g1"]
    assert {(gpu.device, gpu.memory_bytes, gpu.slots) for gpu in gpus.values()} == {("NVIDIA A10", 24 * GIB, 4)}


def test_a_job_that_asks_for_it_is_held_without_a_gpu(case: Case) -> None:
    case.submit("1", COMMENT)
    found = job(case)
    assert (found.phase, dict(found.held_slots)) == (EnginePhase.HELD, {})
    assert found.tag is not None
    assert found.tag.memory_bytes == 6 * GIB


@pytest.mark.parametrize("slots", [0, 2])
def test_a_placed_job_stays_held_until_it_is_released_and_runs_there(case: Case, slots: int) -> None:
    case.submit("1", COMMENT)
    case.engine.place(placement(slots=slots))
    placed = job(case)
    assert (placed.phase, dict(placed.held_slots)) == (EnginePhase.INTERRUPTED, {"n1/g1": slots})
    assert planned_gpu(placed.note) == "n1/g1"
    case.engine.release("1")
    running = job(case)
    assert (running.phase, dict(running.held_slots)) == (EnginePhase.RUNNING, {"n1/g1": slots})


def test_a_note_is_written_and_changes_nothing_else(case: Case) -> None:
    case.submit("1", COMMENT)
    case.engine.annotate("1", "cotenant: waits")
    found = job(case)
    assert (found.note, found.phase) == ("cotenant: waits", EnginePhase.HELD)


def test_a_reader_that_comes_later_finds_the_same(case: Case) -> None:
    case.submit("1", COMMENT)
    case.submit("2", COMMENT)
    case.engine.place(placement("2", gpu_id="n2/g0"))
    assert case.engine.read() == case.engine.read()
    assert dict(job(case, "2").held_slots) == {"n2/g0": 2}


def test_orders_about_jobs_that_are_gone_or_run_are_refused(case: Case) -> None:
    case.submit("1", COMMENT)
    case.engine.place(placement())
    case.engine.release("1")
    with pytest.raises(EngineRefusedError):
        case.engine.place(placement(gpu_id="n1/g0"))
    assert dict(job(case).held_slots) == {"n1/g1": 2}
    with pytest.raises(EngineRefusedError):
        case.engine.release("9")
    with pytest.raises(EngineRefusedError):
        case.engine.annotate("9", "x")


def test_jobs_of_others_are_listed_as_none_of_our_business(case: Case) -> None:
    case.submit("1", "somebody else's")
    assert [one for one in case.engine.read().jobs if one.tag is not None] == []
