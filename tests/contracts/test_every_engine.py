"""What every engine must do: one simulated, Slurm over its rows, Kubernetes over HTTP, Ray over tables, our agents."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

import pytest

from cotenant.engines.device_rules import DeviceRule
from cotenant.engines.errors import EngineRefusedError
from cotenant.engines.kubernetes.adapter import KubernetesEngine
from cotenant.engines.placement_notes import placed_note, planned_gpu
from cotenant.engines.port import Engine
from cotenant.engines.ray.adapter import RayEngine
from cotenant.engines.records import EngineJob, EnginePhase, Placement
from cotenant.engines.slurm.adapter import SlurmEngine
from tests.support import own_engine
from tests.support.agent import open_folder
from tests.support.fake_kubernetes import FakeKubernetes, node_row, pod_row, reached, served
from tests.support.fake_ray import FakeRay
from tests.support.fake_slurm import FakeSlurm
from tests.support.scheduler_process import wait_until
from tests.support.simulated_engine import GIB, SimulatedEngine

WISHES = "memory=6GiB"
DEVICES = [DeviceRule(nodes="*", device="NVIDIA A10", memory_bytes=24 * GIB)]


@dataclass(frozen=True)
class Case:
    """An engine, and how a user hands a job to it.

    Attributes:
        submit: Takes the job's id and what its user says; None = nothing.
        prefix: Of every job's id.
        slots: Parts of each GPU.
        device: Type of every GPU, of 24 GiB.
    """

    engine: Engine
    submit: Callable[[str, str | None], object]
    prefix: str = ""
    slots: int = 4
    device: str = "NVIDIA A10"


@contextmanager
def simulated() -> Iterator[Case]:
    made = SimulatedEngine(nodes=2)
    yield Case(made, lambda job_id, wishes: made.submit(job_id, comment(wishes)))


@contextmanager
def slurm() -> Iterator[Case]:
    commands = FakeSlurm()
    yield Case(SlurmEngine(commands, DEVICES), lambda job_id, wishes: commands.submit(job_id, comment(wishes)))


@contextmanager
def kubernetes() -> Iterator[Case]:
    cluster = FakeKubernetes()
    for name in ("n1", "n2"):
        cluster.add(node_row(name))

    def submit(job_id: str, wishes: str | None) -> None:
        # Who names our scheduler asks for us, whatever else he says.
        scheduler = "default-scheduler" if wishes is None else "cotenant"
        pod = pod_row(job_id.removeprefix("team/"), wishes, scheduler=scheduler)
        pod["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "train", "controller": True}]
        cluster.add(pod)

    with served(cluster) as address, closing(reached(address)) as api:
        yield Case(KubernetesEngine(api, DEVICES), submit, prefix="team/", slots=100)


@contextmanager
def ray() -> Iterator[Case]:
    cluster = FakeRay()
    cluster.is_watched = True

    def pass_grace() -> None:
        for _ in range(3):
            cluster.pass_time(31)

    made = RayEngine(cluster, DEVICES, prepare=pass_grace)
    yield Case(made, lambda job_id, wishes: cluster.submit(job_id, comment(wishes)), slots=100)


@contextmanager
def our_agents(cluster: own_engine.OwnAgents) -> Iterator[Case]:
    made = own_engine.OwnEngine(cluster.client)
    try:
        yield Case(
            made,
            lambda job_id, wishes: cluster.submit(job_id, comment(wishes)),
            slots=own_engine.SLOTS,
            device=own_engine.DEVICE,
        )
    finally:
        cluster.end_jobs()


@pytest.fixture(scope="module")
def cluster() -> Iterator[own_engine.OwnAgents]:
    with open_folder() as folder, own_engine.own_agents(folder) as running:
        yield running


def comment(wishes: str | None) -> str:
    return "somebody else's" if wishes is None else f"cotenant {wishes}"


@pytest.fixture(params=[simulated, slurm, kubernetes, ray, our_agents], ids=lambda made: made.__name__)
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    # Our programs start once for all cases, and only where one of them asks for them.
    running = [request.getfixturevalue("cluster")] if request.param is our_agents else []
    with request.param(*running) as made:
        yield made


def job(case: Case, job_id: str = "1") -> EngineJob:
    return next(one for one in case.engine.read().jobs if one.job_id == case.prefix + job_id)


def submit(case: Case, job_id: str = "1", *, wishes: str | None = WISHES) -> None:
    case.submit(case.prefix + job_id, wishes)


def waiting(case: Case) -> list[EngineJob]:
    return [one for one in case.engine.read().jobs if one.tag is not None and one.phase is not EnginePhase.RUNNING]


def placement(case: Case, job_id: str = "1", *, gpu_id: str = "n1/g1", slots: int = 2) -> Placement:
    note = placed_note(gpu_id, slots)
    return Placement(
        job_id=case.prefix + job_id, node_id=gpu_id.partition("/")[0], gpu_id=gpu_id, slots=slots, note=note
    )


def test_it_lists_gpus_with_their_type_memory_and_parts(case: Case) -> None:
    gpus = case.engine.read().gpus
    assert sorted(gpus) == ["n1/g0", "n1/g1", "n2/g0", "n2/g1"]
    assert {(gpu.device, gpu.memory_bytes, gpu.slots) for gpu in gpus.values()} == {(case.device, 24 * GIB, case.slots)}


def test_a_job_that_asks_for_it_is_held_without_a_gpu(case: Case) -> None:
    submit(case, "1")
    found = job(case)
    assert (found.phase, dict(found.held_slots)) == (EnginePhase.HELD, {})
    assert found.tag is not None
    assert found.tag.memory_bytes == 6 * GIB


@pytest.mark.parametrize("slots", [0, 2])
def test_a_placed_job_stays_held_until_it_is_released_and_runs_there(case: Case, slots: int) -> None:
    submit(case, "1")
    case.engine.place(placement(case, slots=slots))
    placed = job(case)
    assert (placed.phase, dict(placed.held_slots)) == (EnginePhase.INTERRUPTED, {"n1/g1": slots})
    assert planned_gpu(placed.note) == "n1/g1"
    case.engine.release(case.prefix + "1")
    running = job(case)
    assert (running.phase, dict(running.held_slots)) == (EnginePhase.RUNNING, {"n1/g1": slots})


def test_several_jobs_are_released_at_once_and_those_that_are_gone_are_named(case: Case) -> None:
    for job_id in ("1", "2"):
        submit(case, job_id)
        case.engine.place(placement(case, job_id, slots=1))
    told = case.engine.release_all([case.prefix + job_id for job_id in ("1", "9", "2")])
    assert [*told] == [case.prefix + "9"]
    assert told[case.prefix + "9"]
    assert {job(case, job_id).phase for job_id in ("1", "2")} <= {EnginePhase.PLACED, EnginePhase.RUNNING}
    assert case.engine.release_all([]) == {}


def test_a_note_is_written_and_changes_nothing_else(case: Case) -> None:
    submit(case, "1")
    case.engine.annotate(case.prefix + "1", "cotenant: waits")
    found = job(case)
    assert (found.note, found.phase) == ("cotenant: waits", EnginePhase.HELD)


def test_a_reader_that_comes_later_finds_the_same(case: Case) -> None:
    submit(case, "1")
    submit(case, "2")
    case.engine.place(placement(case, "2", gpu_id="n2/g0"))
    assert case.engine.read() == case.engine.read()
    assert dict(job(case, "2").held_slots) == {"n2/g0": 2}


def test_orders_about_jobs_that_are_gone_or_run_are_refused(case: Case) -> None:
    submit(case, "1")
    case.engine.place(placement(case))
    case.engine.release(case.prefix + "1")
    with pytest.raises(EngineRefusedError):
        case.engine.place(placement(case, gpu_id="n1/g0"))
    assert dict(job(case).held_slots) == {"n1/g1": 2}
    with pytest.raises(EngineRefusedError):
        case.engine.release(case.prefix + "9")
    with pytest.raises(EngineRefusedError):
        case.engine.annotate(case.prefix + "9", "x")


def test_jobs_of_others_are_listed_as_none_of_our_business(case: Case) -> None:
    submit(case, "1", wishes=None)
    assert [one for one in case.engine.read().jobs if one.tag is not None] == []


def start(case: Case, job_id: str = "1") -> None:
    submit(case, job_id)
    case.engine.place(placement(case, job_id))
    case.engine.release(case.prefix + job_id)


def test_a_job_that_is_held_again_before_it_is_released_does_not_start(case: Case) -> None:
    submit(case)
    case.engine.place(placement(case))
    case.engine.hold(case.prefix + "1")
    # Slurm alone tells an operator's hold from ours: such a job keeps its GPU, and no bridge releases it.
    is_told_apart = isinstance(case.engine, SlurmEngine)
    held = (EnginePhase.PLACED,) if is_told_apart else (EnginePhase.HELD, EnginePhase.INTERRUPTED)
    assert job(case).phase in held


def test_a_job_that_has_started_cannot_be_held(case: Case) -> None:
    start(case)
    with pytest.raises(EngineRefusedError):
        case.engine.hold(case.prefix + "1")
    assert job(case).phase is EnginePhase.RUNNING


def test_a_job_that_is_queued_again_gives_its_gpu_up_and_waits_once(case: Case) -> None:
    start(case)
    case.engine.requeue(case.prefix + "1", grace_s=30)
    assert [one for one in case.engine.read().jobs if one.phase is EnginePhase.RUNNING and one.tag is not None] == []
    [again] = waiting(case)
    assert again.tag is not None
    assert again.tag.memory_bytes == 6 * GIB


def test_a_job_that_is_stopped_ends_for_good(case: Case) -> None:
    start(case)
    if isinstance(case.engine, KubernetesEngine):
        # A Job would make another pod: the order is refused, and changes nothing.
        with pytest.raises(EngineRefusedError, match="would start pod team/1 again"):
            case.engine.stop(case.prefix + "1", grace_s=1)
        assert job(case).phase is EnginePhase.RUNNING
        return
    case.engine.stop(case.prefix + "1", grace_s=1)
    assert [one for one in case.engine.read().jobs if one.tag is not None] == []


@pytest.mark.parametrize("order", ["hold", "stop", "requeue"])
def test_a_job_that_is_gone_gets_no_order(case: Case, order: str) -> None:
    grace = {} if order == "hold" else {"grace_s": 1}
    with pytest.raises(EngineRefusedError):
        getattr(case.engine, order)(case.prefix + "9", **grace)


def test_our_agents_go_on_from_the_checkpoint_of_a_requeued_job_and_tell_its_steps(
    cluster: own_engine.OwnAgents,
) -> None:
    with our_agents(cluster) as case:
        start(case)
        wait_until(lambda: cluster.steps_done("1") >= 5, what="it has trained")
        case.engine.requeue("1", grace_s=30)
        assert job(case).phase is EnginePhase.HELD
        case.engine.place(placement(case, gpu_id="n1/g0"))
        assert dict(job(case).held_slots) == {"n1/g0": 2}
        wait_until(lambda: "start at" in cluster.log("1"), what="it has begun again")
        first_step = int(cluster.log("1").partition("start at ")[2].split()[0])
        assert first_step >= 5
