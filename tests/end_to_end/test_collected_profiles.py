"""A cluster that never ran a campaign: what its jobs do becomes rows, but for those whose owner or node forbids it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from cotenant.client import ChannelOptions, PredictorClient, SchedulerClient, open_channel
from cotenant.local_cluster import AgentOptions, LocalCluster
from cotenant.v1 import resources_pb2, scheduling_pb2
from predictor_service.commands.program import program
from predictor_service.learning.profile_files import read_profiles
from predictor_service.outcome_journal import FILE_NAME as JOURNAL_FILE
from predictor_service.outcome_journal import OutcomeJournal
from predictor_service.profile_store.store import FILE_NAME, ProfileStore
from predictor_service.profile_store.stretch import Stretch
from tests.support import paced_training
from tests.support.agent import prepare_baseline
from tests.support.measured_dataset import dense_network

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
STEPS = 100_000
STEP_MS = 20
ENOUGH_STEPS = 200
WAIT_S = 150
ENDED = (scheduling_pb2.JOB_PHASE_FINISHED, scheduling_pb2.JOB_PHASE_FAILED, scheduling_pb2.JOB_PHASE_CANCELLED)


@dataclass(frozen=True)
class Cluster:
    """Clients of a running cluster, and where its predictor keeps what it knows."""

    scheduler: SchedulerClient
    predictor: PredictorClient
    state: Path
    folder: Path

    def submit(self, graph_sha256: str, *, no_profiles: bool = False) -> str:
        """Submits a long job that shares with anybody; returns its id."""
        spec = scheduling_pb2.JobSpec(
            name="thesis-of-alice",
            command=[sys.executable, paced_training.__file__, str(STEPS), str(STEP_MS)],
            working_directory=str(self.folder),
            graph_sha256=graph_sha256,
            settings=resources_pb2.JobSettings(batch_size=16, input_wait_ratio=0.9),
            steps_total=STEPS,
            share=resources_pb2.SHARE_MODE_ANY,
            no_profiles=no_profiles,
        )
        return self.scheduler.submit_job(spec).job_id

    def wait_for(self, is_so: Callable[[], bool], what: str) -> None:
        """Waits for what must come true."""
        deadline = time.monotonic() + WAIT_S
        while not is_so():
            jobs = [(job.job_id, job.phase, job.reason.message) for job in self.scheduler.list_jobs()]
            assert time.monotonic() < deadline, f"not within {WAIT_S} s: {what}; {jobs}"
            time.sleep(0.2)

    def let_step(self, job_id: str) -> None:
        """Waits while a job does some steps from now on."""
        goal = self.scheduler.get_job(job_id).steps_done + ENOUGH_STEPS
        self.wait_for(lambda: self.scheduler.get_job(job_id).steps_done >= goal, f"{job_id} steps")

    def end(self, job_id: str) -> None:
        """Cancels a job and waits for its end."""
        self.scheduler.cancel_job(job_id)
        self.wait_for(lambda: self.scheduler.get_job(job_id).phase in ENDED, f"{job_id} ends")

    def stretches(self) -> list[Stretch]:
        with closing(ProfileStore(self.state / FILE_NAME)) as store:
            return [item.stretch for item in store.read() if item.stretch is not None]

    def outcomes(self) -> set[str]:
        """Keys of the jobs of which the journal has an outcome."""
        with closing(OutcomeJournal(self.state / JOURNAL_FILE)) as journal:
            return {str(entry.content.get("job_key")) for entry, _ in journal.joined()}


@contextmanager
def running_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, collect_profiles: bool = True
) -> Iterator[Cluster]:
    """Starts a cluster whose predictor has no data set to learn from."""
    state, folder = tmp_path / "cluster", tmp_path / "home-of-alice"
    for path in (folder, tmp_path / "no-datasets"):
        path.mkdir()
    prepare_baseline(state / "agent-local")
    monkeypatch.setenv("COTENANT_PREDICTOR_DATASETS", str(tmp_path / "no-datasets"))
    monkeypatch.setenv("COTENANT_SCHEDULER_HEARTBEAT_MS", "200")
    options = AgentOptions(
        standin_cores=(max(os.sched_getaffinity(0)),),
        allowed_directories=(folder,),
        stop_jobs_on_exit=True,
        collect_profiles=collect_profiles,
    )
    cluster = LocalCluster(state_dir=state, policy="horus", agents=(options,))
    cluster.start()
    try:
        with (
            open_channel(ChannelOptions(address=cluster.scheduler_address)) as scheduler,
            open_channel(ChannelOptions(address=cluster.predictor_address)) as predictor,
        ):
            yield Cluster(
                scheduler=SchedulerClient(scheduler),
                predictor=PredictorClient(predictor),
                state=state / "predictor",
                folder=folder,
            )
    finally:
        cluster.stop()


def test_rows_appear_where_no_campaign_ever_ran_and_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_cluster(tmp_path, monkeypatch) as cluster:
        hashes = [
            cluster.predictor.upload_graph(dense_network(widths)).graph_sha256
            for widths in ([64, 48, 10], [32, 32, 10], [16, 10])
        ]
        first = cluster.submit(hashes[0])
        cluster.let_step(first)
        second = cluster.submit(hashes[1])
        cluster.let_step(second)
        cluster.end(first)
        cluster.let_step(second)
        cluster.end(second)
        private = cluster.submit(hashes[2], no_profiles=True)
        cluster.let_step(private)
        cluster.end(private)
        cluster.wait_for(
            lambda: (
                len({item.job.key for item in cluster.stretches() if not item.others}) == 2
                and len({item.job.key for item in cluster.stretches() if item.others}) == 2
            ),
            "stretches of both alone and beside each other",
        )
        stretches, outcomes = cluster.stretches(), cluster.outcomes()
        private_key = cluster.scheduler.get_job(private).job_key
        check_that_no_name_is_kept(cluster.state)
    assert {item.job.graph_sha256 for item in stretches} == set(hashes[:2])
    assert all(STEP_MS <= item.step_ms < 20 * STEP_MS for item in stretches)
    assert {item.job.key for item in stretches} >= outcomes
    assert private_key not in outcomes
    assert outcomes, "outcomes of the other jobs are told"
    export_and_read_back(tmp_path, cluster.state)


def check_that_no_name_is_kept(state: Path) -> None:
    for path in (*state.glob(f"{FILE_NAME}*"), *state.glob(f"{JOURNAL_FILE}*")):
        content = path.read_bytes()
        assert not [word for word in (b"alice", b"thesis", b"paced_training", b"local") if word in content], path


def export_and_read_back(tmp_path: Path, state: Path) -> None:
    folder = str(tmp_path / "collected")
    for arguments in (
        ["profiles", "export", "--to", folder, "--state-dir", str(state)],
        ["profiles", "export", "--to", str(tmp_path / "solo.parquet"), "--state-dir", str(state)],
        ["datasets", "check", folder],
    ):
        done = CliRunner().invoke(program, arguments)
        assert done.exit_code == 0, done.output
    profiles = read_profiles(tmp_path / "collected")
    assert len(profiles.graphs) == 2
    assert read_profiles(tmp_path / "solo.parquet").solo == profiles.solo


def test_a_node_that_collects_nothing_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_cluster(tmp_path, monkeypatch, collect_profiles=False) as cluster:
        graph_sha256 = cluster.predictor.upload_graph(dense_network([64, 48, 10])).graph_sha256
        job_id = cluster.submit(graph_sha256)
        cluster.let_step(job_id)
        cluster.end(job_id)
        time.sleep(2.5)  # both ways to the predictor are walked once a second
        assert cluster.scheduler.get_job(job_id).solo_step_ms > 0
        assert cluster.stretches() == []
        assert cluster.outcomes() == set()
