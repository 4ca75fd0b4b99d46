"""A whole campaign with real trainings on the last core: orderings only, because times depend on the machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cotenant_profiler.campaign import Method, read_campaign
from cotenant_profiler.dataset import gather, pair_rows, slowdown_ratio, solo_rows
from cotenant_profiler.job_spec import JobSpec
from cotenant_profiler.journal import Journal, Record, read_journal
from cotenant_profiler.plan import Kind, build_plan

from cotenant.profile_schema import check_row
from tests.support.profiler import RECOMMENDER

pytestmark = pytest.mark.last_core
RECOMMENDER_WAIT = JobSpec(architecture="recommender", batch=64, input_wait_ratio=0.6)

# What is under test here is the bench, not the machine: every load is accepted.
CAMPAIGN = """
name = "fixture"
device = "cpu-standin"
seed = 5
traces = true
[method]
trace_samples = 20
trace_ms_max = 400
warm_up_ms = 100
warm_up_ms_max = 1000
warm_in_ms = 100
window_ms = 500
tail_ms = 50
reference_ms = 300
memory_steps = 3
foreign_ratio_max = 1.0
speed_change_ratio_max = 100.0
anchor_drift_ratio_max = 100.0
[core_jobs.recommender]
architecture = "recommender"
batch = 64
[core_jobs.recommender_wait]
architecture = "recommender"
batch = 64
input_wait_ratio = 0.6
[solo]
repeats = 1
"""
GRAPHS = {"recommender": "b" * 64}


def command(folder: Path) -> list[str]:
    program = [sys.executable, "-m", "cotenant_profiler", "run", str(folder / "campaign.toml")]
    return [*program, "--out", str(folder / "results"), "--keep-weight"]


def kill_after(lines: int, folder: Path) -> None:
    """Run the campaign until it has reported `lines` runs, then kill it without warning."""
    with subprocess.Popen(command(folder), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for _ in range(lines):
            assert process.stderr.readline()
        process.send_signal(signal.SIGKILL)


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Journal:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("the stand-in device needs a core of its own; this machine lends only one")
    folder = tmp_path_factory.mktemp("campaign")
    (folder / "campaign.toml").write_text(CAMPAIGN)
    kill_after(4, folder)
    subprocess.run(command(folder), check=True, capture_output=True, timeout=100)
    return read_journal(folder / "results")


@pytest.mark.timeout(600)
def test_a_killed_campaign_ends_with_every_run_and_none_twice(journal: Journal, tmp_path: Path) -> None:
    (tmp_path / "campaign.toml").write_text(CAMPAIGN)
    planned = [run.run_id for run in build_plan(read_campaign(tmp_path / "campaign.toml"))]
    accepted = [record.run_id for record in journal.records if record.status == "ok"]
    assert sorted(accepted) == sorted(planned)


def undisturbed(journal: Journal, kind: Kind, *jobs: JobSpec) -> Record:
    """The run of these jobs, if the device core was ours during it; what another process disturbed proves nothing."""
    run = next(item for item in journal.records if item.kind is kind and item.jobs == jobs and item.status == "ok")
    if run.foreign_ratio > Method().foreign_ratio_max:
        pytest.skip(f"other programs took {run.foreign_ratio:.0%} of the device core during this run")
    return run


def test_step_time_times_rate_is_one(journal: Journal) -> None:
    assert undisturbed(journal, Kind.SOLO, RECOMMENDER).figures[0]["rate_check_ratio"] == pytest.approx(1, abs=0.02)


def test_jobs_that_wait_hurt_each_other_less_than_jobs_that_compute(journal: Journal) -> None:
    waiting = slowdown_ratio(undisturbed(journal, Kind.GROUP, RECOMMENDER_WAIT, RECOMMENDER_WAIT), 0)
    computing = slowdown_ratio(undisturbed(journal, Kind.GROUP, RECOMMENDER, RECOMMENDER), 0)
    assert waiting is not None
    assert computing is not None
    assert waiting < computing


def test_a_waiting_job_uses_less_of_the_device(journal: Journal) -> None:
    waiting = undisturbed(journal, Kind.SOLO, RECOMMENDER_WAIT).figures[0]["utilization_ratio"]
    assert waiting < undisturbed(journal, Kind.SOLO, RECOMMENDER).figures[0]["utilization_ratio"]


def test_memory_is_that_of_the_job_without_interpreter_and_libraries(journal: Journal) -> None:
    [figures] = [
        record.figures[0] for record in journal.records if record.jobs == (RECOMMENDER,) and _is_memory(record)
    ]
    # Weights, gradients and two Adam moments of 665,026 parameters are the least that it can be.
    assert 4 * 4 * 665_026 < figures["peak_bytes"] < figures["baseline_bytes"] * 2


def test_a_trace_samples_the_memory_of_the_job_in_order_of_time(journal: Journal) -> None:
    [samples] = [item.figures for item in journal.records if item.kind is Kind.TRACE and item.jobs == (RECOMMENDER,)]
    assert len(samples) == 20
    offsets_ms = [sample["offset_ms"] for sample in samples]
    assert offsets_ms == sorted(offsets_ms)
    # Weights and two Adam moments of 665,026 parameters are held at every instant.
    assert min(sample["allocated_bytes"] for sample in samples) > 3 * 4 * 665_026
    assert all(sample["allocated_bytes"] <= sample["reserved_bytes"] for sample in samples)


def _is_memory(record: Record) -> bool:
    return record.kind is Kind.MEMORY


def test_every_row_follows_the_profile_schema(journal: Journal) -> None:
    sources = gather(journal, GRAPHS, drift_ratio_max=0.05)
    solo = list(solo_rows(sources))
    pairs = list(pair_rows(sources))
    assert (len(solo), len(pairs)) == (2, 6)
    for row in solo:
        check_row(row)
    for pair in pairs:
        check_row(pair)


def test_the_waiting_of_a_job_is_the_same_before_and_after_the_kill(journal: Journal) -> None:
    waits = {
        wait_ms
        for record in journal.records
        for job, wait_ms in zip(record.jobs, record.waits_ms, strict=True)
        if job == RECOMMENDER_WAIT
    }
    assert len(waits) == 1
    assert waits != {0.0}
