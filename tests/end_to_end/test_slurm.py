"""The bridge beside a real Slurm: which job runs on which GPU, what is left alone, and what kills change."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.engines.bridge import Bridge, RoundReport
from cotenant.engines.device_rules import DeviceRule
from cotenant.engines.errors import EngineRefusedError, EngineUnreachableError
from cotenant.engines.placement_notes import planned_gpu
from cotenant.engines.records import EnginePhase
from cotenant.engines.slurm.adapter import SlurmEngine
from cotenant.engines.slurm.commands import InstalledCommands
from cotenant.v1 import scheduling_pb2
from scheduler_service.grpc_api.snapshots.decide import decide
from tests.support.slurm_daemons import SlurmDaemons, missing_daemons

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.alone,
    pytest.mark.skipif(bool(missing_daemons()), reason=f"not installed: {', '.join(missing_daemons())}"),
    pytest.mark.timeout(300),
]

DEVICES = [DeviceRule(nodes="n*", device="NVIDIA A10", memory_bytes=24 * 2**30)]
LIGHT = "cotenant memory=6GiB utilization=0.3 slowdown=0.1 max_slowdown=0.5"
HEAVY = "cotenant memory=6GiB utilization=0.9 slowdown=0.9 max_slowdown=0.1"
SHOW = 'echo "$SLURM_JOB_ID $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES"'
JOBS = int(os.environ.get("COTENANT_SLURM_JOBS", "50"))


@pytest.fixture(scope="module")
def daemons() -> Iterator[SlurmDaemons]:
    folder = Path(tempfile.mkdtemp(prefix="slurm", dir="/tmp"))
    try:
        with SlurmDaemons(folder) as running:
            yield running
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def operator(daemons: SlurmDaemons, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("PATH", "SLURM_CONF"):
        monkeypatch.setenv(name, daemons.environment[name])
    yield
    daemons.cancel_all()


def ask(request: scheduling_pb2.DecideRequest) -> scheduling_pb2.DecideResponse:
    return asyncio.run(decide(request, predictor=None, seconds_left=60))


def engine() -> SlurmEngine:
    return SlurmEngine(InstalledCommands(), DEVICES)


def run_round(*, places: bool = True) -> RoundReport:
    return Bridge(engine(), ask, policy="horus", places=places).run_round(now_ms=1_000)


def held_gpus(*job_ids: str) -> list[list[str]]:
    jobs = {job.job_id: job for job in engine().read().jobs}
    return [sorted(jobs[job_id].held_slots) for job_id in job_ids]


def test_two_jobs_that_go_together_share_a_gpu_and_incompatible_ones_do_not(daemons: SlurmDaemons) -> None:
    comments = (HEAVY, HEAVY, HEAVY, LIGHT, LIGHT, HEAVY)
    *placed, waiting = [daemons.submit("--comment", comment, script="sleep 60") for comment in comments]
    assert run_round().placed == placed
    for job_id in placed:
        daemons.wait_for(job_id, "RUNNING")
    *heavy, first, second = [gpus[0] for gpus in held_gpus(*placed)]
    assert len({*heavy, first}) == 4
    assert first == second
    assert daemons.job(waiting)["job_state"] == "PENDING"
    assert run_round().disagreements == []


def test_every_task_of_an_array_runs_on_the_gpu_that_was_planned_for_it(daemons: SlurmDaemons) -> None:
    daemons.submit("--array=0-4%4", "--comment", HEAVY, script="sleep 60")
    placed = run_round().placed
    assert [name.partition("_")[2] for name in placed] == ["0", "1", "2", "3"]
    for name in placed:
        daemons.wait_for_task(name, "RUNNING")
    gpus = held_gpus(*placed)
    assert sorted(gpus) == [["n1/g0"], ["n1/g1"], ["n2/g0"], ["n2/g1"]]
    assert run_round().disagreements == []


def test_a_constraint_and_all_of_a_nodes_memory_are_kept(daemons: SlurmDaemons) -> None:
    for field in ("AvailableFeatures", "ActiveFeatures"):
        daemons.run(["scontrol", "update", "NodeName=n2", f"{field}=ampere"])
    chosen = daemons.submit("--constraint=ampere", "--comment", HEAVY, script="sleep 60")
    whole = daemons.submit("--mem=0", "--comment", HEAVY, script="sleep 60")
    assert sorted(run_round().placed) == [chosen, whole]
    for job_id, node in ((chosen, "n2"), (whole, "n1")):
        daemons.wait_for(job_id, "RUNNING")
        assert daemons.job(job_id)["nodes"] == node
    waiting = daemons.submit("--constraint=ampere", "--mem=7901", "--comment", HEAVY, script="sleep 60")
    assert run_round().placed == []
    assert "host memory" in daemons.job(waiting)["admin_comment"]


def test_a_job_whose_name_is_no_text_does_not_blind_the_bridge(daemons: SlurmDaemons) -> None:
    daemons.submit("--job-name", os.fsdecode(b"na\xffme"), script="sleep 60")
    job_id = daemons.submit("--comment", LIGHT, script="sleep 1")
    assert run_round().placed == [job_id]


def test_who_is_held_by_an_operator_or_waits_for_another_job_keeps_no_gpu(daemons: SlurmDaemons) -> None:
    first = daemons.submit("--comment", LIGHT, script="sleep 5")
    held = daemons.submit("--comment", LIGHT, script="sleep 1")
    later = daemons.submit("--dependency", f"afterok:{first}", "--comment", LIGHT, script="sleep 1")
    engine().hold(held)
    assert run_round().placed == [first]
    daemons.wait_for(first, "COMPLETED", "")
    assert run_round().placed == [later]
    daemons.wait_for(later, "COMPLETED", "")
    assert daemons.job(held)["state_reason"] == "JobHeldAdmin"
    daemons.run(["scontrol", "uhold", held])
    assert run_round().placed == [held]


def test_a_bridge_without_slurmctld_says_so(daemons: SlurmDaemons) -> None:
    daemons.stop("slurmctld")
    try:
        with pytest.raises(
            EngineUnreachableError, match=r"Failed while looking for jobs|Unable to contact slurm controller"
        ):
            run_round()
    finally:
        daemons.start_controller()
        daemons.wait_answering()
        daemons.wait_ready()


def test_every_job_runs_on_the_gpu_that_was_planned(daemons: SlurmDaemons) -> None:
    jobs = [daemons.submit("--comment", (LIGHT, HEAVY)[n % 2], script=f"{SHOW}; sleep 0.2") for n in range(JOBS)]
    planned: dict[str, str] = {}
    for _ in itertools.count():
        run_round()
        left = {job.job_id: job for job in engine().read().jobs if job.job_id in jobs}
        planned |= {job_id: planned_gpu(job.note) for job_id, job in left.items() if planned_gpu(job.note)}
        planned |= {
            job_id: planned_gpu(str(daemons.job(job_id).get("admin_comment")))
            for job_id in jobs
            if job_id not in planned
        }
        planned = {job_id: gpu_id for job_id, gpu_id in planned.items() if gpu_id}
        if not left and len(planned) == len(jobs):
            break
    for job_id in jobs:
        daemons.wait_for(job_id, "COMPLETED", "")
        lines = daemons.output(job_id).splitlines()
        node, _, type_name = planned[job_id].partition("/")
        assert lines == [f"{job_id} {node} {type_name.removeprefix('g')}"]


def test_jobs_that_ask_for_gpus_themselves_are_never_altered(daemons: SlurmDaemons) -> None:
    foreign = daemons.submit("--gres=gpu:g0:1", script="sleep 60")
    own = daemons.submit("--gres=gpu:g1:1", "--comment", LIGHT, script="sleep 60")
    for job_id in (foreign, own):
        daemons.wait_for(job_id, "RUNNING")
    before = [daemons.job(job_id) for job_id in (foreign, own)]
    joining = daemons.submit("--comment", LIGHT, script="sleep 60")
    run_round()
    daemons.wait_for(joining, "RUNNING")
    assert held_gpus(joining)[0][0] not in {gpu for gpus in held_gpus(foreign, own) for gpu in gpus}
    for job_id, row in zip((foreign, own), before, strict=True):
        found = daemons.job(job_id)
        assert [found[name] for name in ("tres_per_node", "nodes", "admin_comment")] == [
            row[name] for name in ("tres_per_node", "nodes", "admin_comment")
        ]


def test_advice_is_a_comment_of_the_operator_and_nothing_else(daemons: SlurmDaemons) -> None:
    jobs = [daemons.submit("--gres=gpu:g0:1", "--nodelist=n1", "--comment", LIGHT, script="sleep 60") for _ in range(2)]
    daemons.wait_for(jobs[0], "RUNNING")
    run_round(places=False)
    waiting = daemons.job(jobs[1])
    assert waiting["job_state"] == "PENDING"
    assert waiting["admin_comment"].startswith("cotenant: would start on n")


def test_a_job_that_its_user_holds_is_not_released(daemons: SlurmDaemons) -> None:
    job_id = daemons.submit("--hold", "--comment", LIGHT, script="sleep 1")
    assert run_round().placed == []
    assert daemons.job(job_id)["job_state"] == "PENDING"


def test_a_bridge_killed_between_two_orders_is_followed_by_one_that_goes_on(
    daemons: SlurmDaemons, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = daemons.submit("--comment", LIGHT, script="sleep 60")
    with monkeypatch.context() as killed:
        killed.setattr(SlurmEngine, "release_all", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run_round()
    [job] = [job for job in engine().read().jobs if job.job_id == job_id]
    assert job.phase is EnginePhase.INTERRUPTED
    run_round()
    daemons.wait_for(job_id, "RUNNING")
    assert held_gpus(job_id) == [[planned_gpu(job.note)]]


def test_one_job_is_queued_again_held_and_stopped_by_an_order(daemons: SlurmDaemons) -> None:
    job_id = daemons.submit("--comment", LIGHT, script="sleep 60")
    run_round()
    daemons.wait_for(job_id, "RUNNING")
    [gpu] = held_gpus(job_id)
    with pytest.raises(EngineRefusedError):
        engine().hold(job_id)
    engine().requeue(job_id, grace_s=1)
    daemons.wait_for(job_id, "PENDING")
    engine().hold(job_id)
    [job] = [job for job in engine().read().jobs if job.job_id == job_id]
    # Who holds a job that ran before is not the bridge, which leaves it alone.
    assert (job.phase, [*job.held_slots]) == (EnginePhase.PLACED, gpu)
    run_round()
    assert daemons.job(job_id)["priority"] == 0
    engine().stop(job_id, grace_s=1)
    daemons.wait_for(job_id, "CANCELLED", "")


def test_kills_of_the_daemons_lose_no_job_and_double_none(daemons: SlurmDaemons) -> None:
    jobs = [daemons.submit("--comment", LIGHT, script=f"{SHOW}; sleep 12") for _ in range(6)]
    run_round()
    # Slurm itself loses what it accepted since it last saved its state, every 5 s.
    daemons.wait_saved()
    daemons.stop("slurmctld", signal.SIGKILL)
    daemons.start_controller()
    daemons.wait_answering()
    run_round()
    daemons.stop("n1", signal.SIGKILL)
    daemons.start_node("n1")
    for job_id in jobs:
        daemons.wait_for(job_id, "COMPLETED", "")
        assert len(daemons.output(job_id).splitlines()) == 1
