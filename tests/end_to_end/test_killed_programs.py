"""kill -9 of every program at random moments under load: no job lost, none twice at once, none finished too early."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from cotenant.client import ChannelOptions, SchedulerClient, open_channel
from cotenant.client_errors import UnavailableError
from cotenant.local_cluster import AgentOptions, LocalCluster, Program
from cotenant.v1 import resources_pb2, scheduling_pb2
from tests.support import journalled_training
from tests.support.agent import CORES, prepare_baseline
from tests.support.daemons import free_ports
from tests.support.forked_cluster import fork_programs

STEPS = 60
STEP_MS = 25
FINISH_DEADLINE_S = 480
VICTIMS = ("scheduler", "predictor", "agent-local")


@dataclass(frozen=True)
class History:
    """What one job's witness wrote over all its attempts."""

    fences: list[int]
    steps: list[tuple[int, int]]
    ends: int
    was_twice: bool

    @property
    def lost_steps(self) -> set[int]:
        return set(range(1, STEPS + 1)) - {step for _, step in self.steps}


def read_history(directory: Path, job_id: str) -> History:
    lines = [line.split() for line in (directory / f"{job_id}.journal").read_text().splitlines()]
    return History(
        fences=[int(words[1]) for words in lines if words[0] == "start"],
        steps=[(int(words[1]), int(words[2])) for words in lines if words[0] == "step"],
        ends=sum(words[0] == "end" for words in lines),
        was_twice=any(words[0] == "twice" for words in lines),
    )


@contextmanager
def running_cluster(state_dir: Path, directory: Path) -> Iterator[LocalCluster]:
    prepare_baseline(state_dir / "agent-local")
    agent = AgentOptions(standin_cores=tuple(CORES[:2]), allowed_directories=(directory,), stop_jobs_on_exit=True)
    predictor_port, scheduler_port = free_ports(2)
    cluster = LocalCluster(
        state_dir=state_dir,
        policy="fifo",
        agents=(agent,),
        predictor_port=predictor_port,
        scheduler_port=scheduler_port,
    )
    with pytest.MonkeyPatch.context() as patch:
        fork_programs(patch)
        cluster.start()
        try:
            yield cluster
        finally:
            cluster.stop()


def kill_and_restart(program: Program) -> None:
    program.kill()
    program.start()
    program.wait_ready()


def submit_stubbornly(client: SchedulerClient, spec: scheduling_pb2.JobSpec, request_id: str) -> str:
    """Repeats a submission through any outage, as a careful user's script does."""
    deadline = time.monotonic() + 240
    while True:
        try:
            return client.submit_job(spec, request_id=request_id).job_id
        except UnavailableError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def specification(directory: Path, number: int) -> scheduling_pb2.JobSpec:
    script = journalled_training.__file__
    return scheduling_pb2.JobSpec(
        name=f"witness-{number}",
        command=[sys.executable, script, str(directory), str(STEPS), str(STEP_MS)],
        working_directory=str(directory),
        steps_total=STEPS,
        settings=resources_pb2.JobSettings(global_batch_size=8),
        restart_limit=100,
    )


def kill_under_load(
    cluster: LocalCluster, directory: Path, *, seed: int, kills_per_program: int, job_count: int
) -> tuple[SchedulerClient, list[str]]:
    """Submits jobs in one thread while programs are killed in this one."""
    generator = random.Random(seed)
    client = SchedulerClient(open_channel(ChannelOptions(address=cluster.target("scheduler"))))
    job_ids: list[str] = []

    def submit_all() -> None:
        for number in range(job_count):
            spec = specification(directory, number)
            job_ids.append(submit_stubbornly(client, spec, request_id=f"{seed}-{number}"))
            time.sleep(0.4)

    submitter = threading.Thread(target=submit_all)
    submitter.start()
    victims = [name for name in VICTIMS for _ in range(kills_per_program)]
    generator.shuffle(victims)
    for name in victims:
        time.sleep(generator.uniform(0.05, 1.5))
        kill_and_restart(cluster.programs[name])
    submitter.join()
    return client, job_ids


def wait_until_ended(client: SchedulerClient, job_ids: list[str]) -> dict[str, scheduling_pb2.Job]:
    deadline = time.monotonic() + FINISH_DEADLINE_S
    ended = (scheduling_pb2.JOB_PHASE_FINISHED, scheduling_pb2.JOB_PHASE_FAILED, scheduling_pb2.JOB_PHASE_CANCELLED)
    while time.monotonic() < deadline:
        jobs = {job.job_id: job for job in client.list_jobs()}
        if all(jobs[job_id].phase in ended for job_id in job_ids):
            return jobs
        time.sleep(0.25)
    unfinished = [(job.job_id, job.phase, job.reason.message) for job in jobs.values() if job.phase not in ended]
    raise AssertionError(f"not ended after {FINISH_DEADLINE_S} s without faults: {unfinished}")


def check_that_nothing_was_lost(state_dir: Path, *, seed: int, kills_per_program: int, job_count: int) -> None:
    directory = state_dir / "work"
    directory.mkdir()
    with running_cluster(state_dir / "cluster", directory) as cluster:
        client, job_ids = kill_under_load(
            cluster, directory, seed=seed, kills_per_program=kills_per_program, job_count=job_count
        )
        jobs = wait_until_ended(client, job_ids)
    context = f"seed={seed}"
    assert len(set(job_ids)) == len(job_ids), context
    assert set(jobs) == set(job_ids), f"{context}: a repeated submission made another job"
    for job_id in job_ids:
        history = read_history(directory, job_id)
        assert jobs[job_id].phase == scheduling_pb2.JOB_PHASE_FINISHED, (context, jobs[job_id])
        assert not history.was_twice, f"{context}: two attempts of {job_id} ran at once"
        assert history.lost_steps == set(), f"{context}: {job_id} ended without all its steps"
        assert history.ends == 1, f"{context}: {job_id} ended {history.ends} times"
        assert history.fences == sorted(set(history.fences)), f"{context}: fences of {job_id} repeat"
        assert jobs[job_id].steps_done == STEPS, context


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_kill_of_each_program_loses_no_job_and_repeats_none(tmp_path: Path) -> None:
    check_that_nothing_was_lost(tmp_path, seed=1, kills_per_program=1, job_count=6)


@pytest.mark.endurance
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("seed", [11, 12, 13])
def test_twenty_kills_of_each_program_lose_no_job_and_repeat_none(tmp_path: Path, seed: int) -> None:
    check_that_nothing_was_lost(tmp_path, seed=seed, kills_per_program=20, job_count=60)
