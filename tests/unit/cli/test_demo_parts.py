"""The demo's arithmetic and its checks, without any process."""

from __future__ import annotations

import copy
import os
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from cotenant import process_tree
from cotenant.access.local_access import prepare_local_access
from cotenant.cli.demo import scenario
from cotenant.cli.demo.calibrating import calibration_facts, calibration_lines
from cotenant.cli.demo.demonstration import _build_cluster, _cancel_what_runs
from cotenant.cli.demo.exclusive import ExclusiveJob, Outcome, run_exclusively
from cotenant.cli.demo.job_tracker import ALONE, JobTracker, Window
from cotenant.cli.demo.live_view import placement_notes, summary_line
from cotenant.cli.demo.report import (
    PAIR_WINDOW_MS_LEAST,
    Comparison,
    DemoReport,
    compare_pairs,
    comparison_rows,
    error_summary,
    is_measured_alone,
    verdict_lines,
)
from cotenant.cli.demo.stages import crash_is_due
from cotenant.cli.demo.verification import check_crash, check_jobs, step_fault
from cotenant.device_calibration import AnchorPair
from cotenant.device_calibration_message import calibration_message
from cotenant.local_cluster import Program
from cotenant.v1 import scheduling_pb2
from predictor_service.inference.observed_pairs import WINDOW_MS_MIN
from tests.support.calibrations import calibration
from tests.support.cli_cluster import ended_job, pending_job, running_job


def test_the_calibration_is_shown_with_what_its_networks_lost_together() -> None:
    pairs = (
        AnchorPair(victim="lenet", other="mlp", slowdown_ratio=0.48, input_wait_ratio=0.5, other_input_wait_ratio=0.6),
        AnchorPair(victim="lenet", other="mlp", slowdown_ratio=1.1),
    )
    plain, paired = (calibration_message(replace(calibration(), pairs=found)) for found in ((), pairs))
    (line,) = set(calibration_lines(paired)) - set(calibration_lines(plain))
    assert line == "two together: lenet lost 48 % with mlp where both wait, lenet lost 110 % with mlp"
    assert [each["slowdown_ratio"] for each in calibration_facts(paired, "", 0)["pairs"]] == [0.48, 1.1]


def test_the_demo_says_what_a_wait_is_worth_where_it_is_worth_something() -> None:
    plain, ahead = (calibration_message(replace(calibration(), head_start_ms=found)) for found in (0.0, 2.04))
    (line,) = set(calibration_lines(ahead)) - set(calibration_lines(plain))
    assert line == "a job that waited for input has 2.04 ms of computing beyond its share, saved up in the wait"
    assert [calibration_facts(each, "", 0)["head_start_ms"] for each in (plain, ahead)] == [0.0, 2.04]


def test_the_report_keeps_how_far_the_speed_wandered() -> None:
    found = (calibration_message(replace(calibration(), speed_wander_ratio=ratio)) for ratio in (0.0, 0.08))
    assert [calibration_facts(each, "", 0)["speed_wander_ratio"] for each in found] == [0.0, 0.08]


def exclusive_job(submitted_at_ms: int, steps: int) -> ExclusiveJob:
    return ExclusiveJob(submitted_at_ms=submitted_at_ms, start_up_ms=100, step_ms=10, steps=steps)


def test_the_demo_serves_its_own_account_only_and_calls_its_services_by_their_sockets(tmp_path: Path) -> None:
    cluster = _build_cluster(tmp_path, (0, 1))
    cluster.access = prepare_local_access(tmp_path, [agent.node_id for agent in cluster.agents])
    cluster.programs["scheduler"] = Program("scheduler", "serve-scheduler", [], tmp_path, address="127.0.0.1:4711")
    path = cluster.access.socket("scheduler")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        server.settimeout(20)
        asking = threading.Thread(target=_cancel_what_runs, args=(cluster,))
        asking.start()
        server.accept()[0].close()
        server.close()
        asking.join(timeout=90)


def test_exclusive_execution_is_first_in_first_out() -> None:
    # Durations 1100, 600, 300: the third starts at 600 on the second device and ends at 900.
    outcome = run_exclusively([exclusive_job(0, 100), exclusive_job(0, 50), exclusive_job(0, 20)], devices=2)
    assert outcome.makespan_ms == 1100
    assert outcome.mean_jct_ms == pytest.approx((1100 + 600 + 900) / 3)


def test_a_late_job_waits_for_no_other() -> None:
    outcome = run_exclusively([exclusive_job(0, 10), exclusive_job(5_000, 10)], devices=1)
    assert (outcome.makespan_ms, outcome.mean_jct_ms) == (5_200, 200)


@pytest.mark.parametrize(
    ("log", "fault"),
    [
        (b"step 20/60 loss 1\nstep 40/60 loss 1\nstep 60/60 loss 1\n", ""),
        (b"step 20/60 loss 1\nstep 20/60 loss 1\nstep 60/60 loss 1\n", "a step was printed twice"),
        (b"step 20/60 loss 1\n", "the last step is 20 of 60"),
        (b"Traceback\n", "no step in the log"),
    ],
)
def test_the_steps_of_a_log_must_rise_to_the_last(log: bytes, fault: str) -> None:
    assert step_fault(log, 60) == fault


def test_a_lost_job_and_a_short_one_are_found() -> None:
    short = ended_job(scheduling_pb2.JOB_PHASE_FINISHED)
    checks = check_jobs({short.job_id: short}, submitted=2, violations=[])
    assert [check.holds for check in checks] == [False, False, True]


def test_reasons_name_jobs_as_the_demo_does() -> None:
    waiting, other = pending_job(), running_job()
    waiting.reason.message = f"Sharing is refused by {other.job_id}, and job-7 is gone."
    notes = placement_notes({job.job_id: job for job in (waiting, other)})
    assert notes[waiting.job_id].text.endswith("Sharing is refused by cnn-waiting, and job-7 is gone.")
    waiting.reason.code = "AWAITING_PREDICTION"
    assert list(placement_notes({job.job_id: job for job in (waiting, other)})) == [other.job_id]
    assert summary_line({}) == ""


def test_a_restarted_job_is_found_after_the_crash() -> None:
    before, after = running_job(), running_job()
    after.attempt = 2
    checks = check_crash({before.job_id: before}, {after.job_id: after})
    assert [check.holds for check in checks] == [True, False]


def test_steps_that_go_back_are_noted() -> None:
    tracker = JobTracker()
    for steps in (100, 120, 90):
        job = running_job()
        job.steps_done = steps
        tracker._learn(job)
    assert tracker.violations == ["cnn-waiting: steps went from 120 back to 90"]


def seen(job_id: str, steps: int, other: str, *, step_ms: float = 50.0, attempt: int = 1) -> scheduling_pb2.Job:
    job = running_job()
    job.job_id, job.attempt, job.steps_done, job.step_ms = job_id, attempt, steps, step_ms
    job.co_located_jobs[0].job_id = other
    return job


def test_a_pair_is_measured_only_while_it_lasts() -> None:
    tracker = JobTracker()
    for steps in (0, 5):
        tracker._learn(seen("job-000002", steps, "job-000001"))
    reports = ((100, 40.0, 2), (105, 70.0, 2), (115, 50.0, 2), (130, 90.0, 7), (140, 80.0, 2), (170, 60.0, 2))
    for steps, step_ms, other in reports:
        tracker._learn(seen("job-000001", steps, f"job-{other:06}", step_ms=step_ms))
    window = tracker.windows["job-000001", "job-000002"]
    assert (window.steps, window.step_ms_sum) == (40, 10 * 50.0 + 30 * 60.0)
    assert len(tracker.windows) == 1


def test_a_pair_is_not_measured_while_one_of_it_starts_up() -> None:
    """As agents count it: imports next to a job slow it down otherwise than training does, which is predicted."""
    tracker = JobTracker()
    for steps in (100, 110):
        tracker._learn(seen("job-000001", steps, "job-000002"))
    tracker._learn(seen("job-000002", 0, "job-000001"))
    tracker._learn(seen("job-000001", 120, "job-000002"))
    assert tracker.windows == {}
    tracker._learn(seen("job-000002", 5, "job-000001"))
    tracker._learn(seen("job-000001", 130, "job-000002"))  # may have begun before the other's first step
    assert tracker.windows == {}
    tracker._learn(seen("job-000001", 140, "job-000002"))
    assert tracker.windows["job-000001", "job-000002"].steps == 10
    tracker._learn(seen("job-000002", 5, "job-000001", attempt=2))  # restarted: it starts up again
    tracker._learn(seen("job-000001", 150, "job-000002"))
    tracker._learn(seen("job-000002", 15, "job-000001", attempt=2))
    tracker._learn(seen("job-000001", 160, "job-000002"))
    assert tracker.windows["job-000001", "job-000002"].steps == 10


def test_the_first_window_of_an_attempt_is_not_counted_and_neither_is_the_one_in_which_a_co_located_job_ended() -> None:
    tracker = JobTracker()
    alone = running_job()
    alone.job_id = "job-000001"
    del alone.co_located_jobs[:]
    for steps, attempt in ((0, 1), (5, 1), (25, 1), (25, 2), (30, 2), (60, 2)):
        alone.steps_done, alone.attempt, alone.step_ms = steps, attempt, 50.0
        tracker._learn(copy.deepcopy(alone))
    assert tracker.windows["job-000001", ALONE].steps == 20 + 30
    tracker._learn(seen("job-000001", 70, "job-000002", attempt=2))
    for steps in (80, 95):
        alone.steps_done = steps
        tracker._learn(copy.deepcopy(alone))
    assert tracker.windows["job-000001", ALONE].steps == 20 + 30 + 15


def test_a_short_window_is_no_measurement() -> None:
    names = {"a": "x", "b": "y", "c": "z"}
    windows = {
        ("a", "b"): Window(steps=19, step_ms_sum=3_000.0),
        ("b", "a"): Window(steps=199, step_ms_sum=1_990.0),
        ("c", "a"): Window(steps=200, step_ms_sum=2_400.0),
    }
    predicted = {("x", "y"): (0.1, 0.0, 0.2), ("y", "x"): (0.1, 0.0, 0.2), ("z", "x"): (0.1, 0.0, 0.15)}
    found = compare_pairs(names, windows, predicted, {"x": 10.0, "y": 10.0, "z": 10.0})
    assert [(c.job, c.measured, c.inside, c.steps) for c in found] == [
        ("x + y", None, None, 19),
        ("y + x", None, None, 199),
        ("z + x", pytest.approx(0.2), False, 200),
    ]


def test_a_job_that_hardly_had_a_device_to_itself_is_measured_alone_once_more_and_both_windows_count() -> None:
    hardly, rerun = Window(steps=79, step_ms_sum=1_950.0, utilization_sum=19.0), Window(80, 2_800.0, 20.0)
    assert not is_measured_alone(hardly)
    assert not is_measured_alone(Window(steps=19, step_ms_sum=60_000.0)), "19 steps, however long"
    both = hardly.joined(rerun)
    assert is_measured_alone(both)
    assert (both.steps, both.step_ms, both.utilization_ratio) == (159, 4_750 / 159, 39 / 159)
    assert Window().joined(rerun) == rerun


def test_the_demo_measures_pairs_no_shorter_than_the_predictor_learns_from() -> None:
    assert PAIR_WINDOW_MS_LEAST == WINDOW_MS_MIN


def test_losing_against_exclusive_execution_is_said() -> None:
    slow, fast = Outcome(makespan_ms=2_000, mean_jct_ms=900), Outcome(makespan_ms=1_000, mean_jct_ms=1_000)
    lines = verdict_lines(DemoReport(policy="horus", devices=2, shared=slow, exclusive=fast))
    assert "100% LONGER" in lines[0]
    assert "10% shorter" in lines[1]
    assert lines[2] == "sharing lost against exclusive execution in this run"


def test_errors_are_relative_except_for_ratios() -> None:
    step = Comparison(job="a", quantity="step_ms", predicted=12, lower=11, upper=13, measured=10)
    slowdown = Comparison(job="a", quantity="slowdown_ratio", predicted=0.1, lower=0, upper=0.2, measured=0.15)
    assert step.error == pytest.approx(0.2)
    assert slowdown.error == pytest.approx(-0.05)
    assert error_summary([step, slowdown]) == [
        "step: mean absolute error 20 %, interval held 0/1",
        "slowdown: mean absolute error 5 points, interval held 1/1",
    ]


def test_a_reader_sees_why_a_memory_interval_did_not_hold() -> None:
    memory = Comparison(
        job="mlp",
        quantity="memory_bytes",
        predicted=108 * 2**20,
        lower=102 * 2**20,
        upper=114 * 2**20,
        measured=115 * 2**20,
    )
    (row,) = comparison_rows([memory])
    assert row.cells == ("mlp", "memory MiB", "108", "102 .. 114", "115", "-6 %", "NO")


def test_a_report_without_checks_is_no_success() -> None:
    assert not DemoReport(policy="horus", devices=2).succeeded


def test_the_crash_comes_in_the_middle_and_while_sharing() -> None:
    early, middle, late, alone = running_job(), running_job(), running_job(), running_job()
    early.steps_done, middle.steps_done, late.steps_done, alone.steps_done = 50, 200, 400, 200
    del alone.co_located_jobs[:]
    del late.co_located_jobs[:]
    jobs = [early, middle, alone, late]
    assert [crash_is_due({"a": job}) for job in jobs] == [False, True, False, True]
    assert not crash_is_due({"a": pending_job()})


def test_the_committed_job_files_are_complete() -> None:
    jobs = scenario.load_scenario(scenario.examples_folder() / "jobs")
    assert len(jobs) >= 6
    assert len({job.name for job in jobs}) == len(jobs)
    for job in jobs:
        command = list(job.spec.command)
        assert command[command.index("--steps") + 1] == str(job.spec.steps_total)
        assert command[command.index("--batch-size") + 1] == str(job.spec.settings.global_batch_size)


def test_a_run_alone_is_short_and_shares_with_no_job() -> None:
    job = scenario.load_scenario(scenario.examples_folder() / "jobs")[0]
    alone = scenario.solo_spec(job.spec, step_ms=40.0)
    assert alone.steps_total == 175
    assert alone.command[list(alone.command).index("--steps") + 1] == "175"
    assert job.spec.steps_total == 450


def test_a_run_alone_is_long_enough_to_be_measured_however_few_steps_the_job_has() -> None:
    job = scenario.load_scenario(scenario.examples_folder() / "jobs", steps_divisor=100)[0]
    assert scenario.solo_spec(job.spec, step_ms=4.0).steps_total == 1_750


def test_an_orphan_in_a_session_of_its_own_is_still_found() -> None:
    script = (
        "import os, subprocess, sys; from cotenant import process_tree; process_tree.adopt_orphans();"
        'child = \'import subprocess; subprocess.Popen(["sleep", "60"], start_new_session=True)\';'
        "subprocess.run([sys.executable, '-c', child], check=True);"
        # Just after its exec a process has no command line yet.
        "look = lambda: process_tree.descendants(os.getpid());"
        "found = next(seen for seen in iter(look, None) if seen and all(p.command for p in seen));"
        "print([p.command for p in found]);"
        "process_tree.kill_all(found); print(process_tree.wait_until_alone(5000))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "['sleep 60']\n[]\n"


def test_a_process_without_children_has_no_descendants() -> None:
    assert process_tree.descendants(2**22 + os.getpid()) == []


def test_the_examples_are_found_next_to_the_package() -> None:
    assert (scenario.examples_folder() / "training" / "train.py").is_file()
    assert Path(scenario.examples_folder()).name == "examples"
