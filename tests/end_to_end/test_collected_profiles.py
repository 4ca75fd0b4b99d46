"""A cluster that never ran a campaign: what its jobs do becomes rows, but for those whose owner or node forbids it."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from predictor_service.commands.program import program
from predictor_service.learning.profile_files import read_profiles
from predictor_service.outcome_journal import FILE_NAME as JOURNAL_FILE
from predictor_service.outcome_journal import OutcomeJournal
from predictor_service.profile_store.measurement_window import MeasurementWindow
from predictor_service.profile_store.store import FILE_NAME, ProfileStore
from tests.support import paced_training
from tests.support.learning_cluster import LearningCluster, learning_cluster
from tests.support.measured_dataset import dense_network

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
STEP_MS = 20
HOME = "home-of-alice"


def submit(cluster: LearningCluster, graph_sha256: str, *, no_profiles: bool = False) -> str:
    return cluster.submit(
        graph_sha256, paced_training.__file__, STEP_MS, name="thesis-of-alice", no_profiles=no_profiles
    )


def state_of(cluster: LearningCluster) -> Path:
    """Returns where the predictor keeps what it knows."""
    return cluster.programs.state_dir / "predictor"


def windows_in(state: Path) -> list[MeasurementWindow]:
    with closing(ProfileStore(state / FILE_NAME)) as store:
        return [item.window for item in store.read() if item.window is not None]


def outcomes_in(state: Path) -> set[str]:
    """Keys of the jobs of which the journal has an outcome."""
    with closing(OutcomeJournal(state / JOURNAL_FILE)) as journal:
        return {str(entry.content.get("job_key")) for entry, _ in journal.joined()}


def test_rows_appear_where_no_campaign_ever_ran_and_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with learning_cluster(tmp_path, monkeypatch, folder=HOME) as cluster:
        state = state_of(cluster)
        hashes = [
            cluster.predictor.upload_graph(dense_network(widths)).graph_sha256
            for widths in ([64, 48, 10], [32, 32, 10], [16, 10])
        ]
        first = submit(cluster, hashes[0])
        cluster.let_measure(first)
        second = submit(cluster, hashes[1])
        cluster.let_measure(second, first)
        cluster.end(first)
        cluster.let_measure(second)
        cluster.end(second)
        private = submit(cluster, hashes[2], no_profiles=True)
        cluster.let_measure(private)
        cluster.end(private)
        cluster.wait_for(
            lambda: (
                len({item.job.key for item in windows_in(state) if not item.others}) == 2
                and len({item.job.key for item in windows_in(state) if item.others}) == 2
                and len(outcomes_in(state)) > 0
            ),
            "windows of both alone and together, and an outcome",
        )
        windows, outcomes = windows_in(state), outcomes_in(state)
        private_key = cluster.scheduler.get_job(private).job_key
        check_that_no_name_is_kept(state)
    assert {item.job.graph_sha256 for item in windows} == set(hashes[:2])
    assert all(STEP_MS <= item.step_ms < 20 * STEP_MS for item in windows)
    assert {item.job.key for item in windows} >= outcomes
    assert private_key not in outcomes
    export_and_read_back(tmp_path, state)


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


def test_a_node_that_collects_nothing_sends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with learning_cluster(tmp_path, monkeypatch, folder=HOME, collect_profiles=False) as cluster:
        job_id = submit(cluster, cluster.predictor.upload_graph(dense_network([64, 48, 10])).graph_sha256)
        cluster.let_measure(job_id)
        cluster.end(job_id)
        time.sleep(2.5)  # both ways to the predictor are walked once a second
        assert cluster.scheduler.get_job(job_id).solo_step_ms > 0
        assert windows_in(state_of(cluster)) == []
        assert outcomes_in(state_of(cluster)) == set()
