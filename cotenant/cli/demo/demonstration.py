"""The demo from start to end, leaving nothing behind."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cotenant import process_tree, system_clock
from cotenant.cli.demo import scenario, stages
from cotenant.cli.demo.calibrating import calibration_facts, calibration_lines, wait_for_calibration
from cotenant.cli.demo.exclusive import ExclusiveJob, outcome_of, run_exclusively
from cotenant.cli.demo.job_tracker import ALONE, ENDED, JobTracker, Window
from cotenant.cli.demo.live_view import placement_notes, render_jobs, summary_line
from cotenant.cli.demo.narrator import Narrator
from cotenant.cli.demo.prediction_tables import job_table, pair_table
from cotenant.cli.demo.report import (
    BUSY_LOAD,
    ERROR_COLUMNS,
    EXCLUSIVE_BASIS,
    DemoReport,
    busy_text,
    compare_job,
    compare_pairs,
    comparison_rows,
    error_summary,
    is_measured_alone,
    verdict_lines,
)
from cotenant.cli.demo.verification import Check, check_crash, check_jobs, check_logs
from cotenant.cli.tables import render_table
from cotenant.client import ChannelOptions, PredictorClient, SchedulerClient, open_channel
from cotenant.client_errors import CotenantError
from cotenant.local_cluster import PROGRAMS, AgentOptions, LocalCluster
from cotenant.programs import require_programs
from cotenant.v1 import resources_pb2, scheduling_pb2

END_TIMEOUT_MS = 20_000
POLICY = "horus"
"""Not the default on purpose: the demo shows which jobs share, and horus lets jobs share wherever they consent."""
PREDICTION_LEGEND = (
    "[lower, upper] are nominal 90 % intervals; BOUND is that of memory by which jobs are placed, nominally 99 %, MiB. "
    "Where DOMAIN says `not calibrated`, both are estimates without a nominal share. DOMAIN OUT = unlike everything "
    "that the models were trained on: a job with `share: any` shares on such a prediction, one with `share: safe` only "
    "on trial, once it was measured alone."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """What the user may choose.

    Attributes:
        steps_divisor: Runs 1 / steps_divisor of every job's steps.
        crash: Whether to kill the scheduler in the middle.
        keep: Whether to keep the state directory with all logs.
    """

    steps_divisor: int = 1
    crash: bool = True
    keep: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What every part of the demo needs."""

    cluster: LocalCluster
    scheduler: SchedulerClient
    predictor: PredictorClient
    tracker: JobTracker
    narrator: Narrator
    report: DemoReport


def run_demo(options: DemoOptions, narrator: Narrator) -> DemoReport:
    """Runs the demo; whatever happens, no process and no file is left.

    Raises:
        CotenantError: A part of it failed; everything has been stopped.
    """
    jobs = scenario.load_scenario(scenario.examples_folder() / "jobs", steps_divisor=options.steps_divisor)
    require_programs("the demo", PROGRAMS, torch=True)
    process_tree.adopt_orphans()
    state_dir = Path(tempfile.mkdtemp(prefix="cotenant-demo-"))
    cores = scenario.stand_in_cores(sorted(os.sched_getaffinity(0)))
    names = [job.name for job in jobs]
    report = DemoReport(policy=POLICY, devices=len(cores), load_before=os.getloadavg()[0], jobs=names)
    if report.load_before > BUSY_LOAD:
        narrator.say(busy_text(report.load_before))
    cluster = _build_cluster(state_dir, cores)
    try:
        with _running(cluster, narrator, report) as stage:
            _play(stage, jobs, options)
    finally:
        report.processes_left = _leave_nothing(narrator)
        if options.keep:
            narrator.say(f"state and logs: {state_dir}")
        else:
            shutil.rmtree(state_dir, ignore_errors=True)
    report.checks.append(_process_check(report.processes_left))
    _show_checks(narrator, report)
    return report


def _build_cluster(state_dir: Path, cores: Sequence[int]) -> LocalCluster:
    agent = AgentOptions(
        node_id="node-a",
        standin_cores=cores,
        standin_memory_bytes=scenario.DEVICE_MEMORY_BYTES,
        allowed_directories=(scenario.examples_folder().parent,),
        stop_jobs_on_exit=True,
        calibrates=True,
    )
    return LocalCluster(state_dir=state_dir, policy=POLICY, agents=(agent,))


@contextmanager
def _running(cluster: LocalCluster, narrator: Narrator, report: DemoReport) -> Iterator[Stage]:
    narrator.section("Starting predictor, scheduler and agent as processes of this account")
    stop = threading.Event()
    try:
        with narrator.working("starting ...") as show_step:
            cluster.start(on_step=lambda name: show_step(f"starting {name}" + _FIRST_START.get(name, "")))
        narrator.mark(f"predictor {cluster.predictor_address}, scheduler {cluster.scheduler_address}", style="dim")
        scheduler = _scheduler_client(cluster)
        predictor = PredictorClient(
            open_channel(ChannelOptions(address=cluster.target("predictor"))), address=cluster.predictor_address
        )
        tracker = JobTracker()
        stages.wait_for_devices(scheduler, report.devices)
        threading.Thread(target=tracker.follow, args=(scheduler, stop), name="watch", daemon=True).start()
        yield Stage(
            cluster=cluster,
            scheduler=scheduler,
            predictor=predictor,
            tracker=tracker,
            narrator=narrator,
            report=report,
        )
    finally:
        stop.set()
        _cancel_what_runs(cluster)
        cluster.stop()


_END_TITLE = "Every job at its end; PRED/MEAS = slowdown as the scheduler knew it, ? = unknown"
_FIRST_START = {"predictor": " (takes over the models that come with the program at its first start)"}


def _play(stage: Stage, jobs: Sequence[scenario.DemoJob], options: DemoOptions) -> None:
    narrator, report = stage.narrator, stage.report
    calibration = _calibrate(stage)
    narrator.section("Predicted from the graphs and settings alone, before anything runs")
    predictions = stages.predict_all(stage.predictor, jobs, calibration)
    narrator.say(job_table(predictions.jobs, narrator.width))
    narrator.say("\nExpected slowdown in percent of each job when co-located with each other one:")
    narrator.say(pair_table([job.name for job in jobs], predictions.pairs, narrator.width))
    narrator.say(PREDICTION_LEGEND)

    narrator.section(f"{len(jobs)} real trainings on {report.devices} stand-in devices, policy {report.policy}")
    job_ids, crash = _run_jobs(stage, jobs, with_crash=options.crash)
    ended = {job_id: stage.scheduler.get_job(job_id) for job_id in job_ids}
    narrator.say(render_jobs(ended, title=_END_TITLE, width=narrator.width))
    report.checks += check_jobs(ended, len(jobs), stage.tracker.violations)
    report.checks.append(check_logs(stage.scheduler, ended))
    if crash.before:
        report.crash = {"outage_ms": crash.outage_ms, "jobs_before": len(crash.before)}
        report.checks += check_crash(crash.before, ended)

    alone = _measure_alone(stage, jobs, ended, predictions)
    _compare(stage, predictions, ended, alone)


def _calibrate(stage: Stage) -> resources_pb2.DeviceCalibration | None:
    """Waits until the agent has measured its devices; without that predictions are about devices of the usual speed."""
    stage.narrator.section("Calibrating the devices: three known networks, alone on a device and two at a time")
    begin_ms = system_clock.steady_ms()
    with stage.narrator.working("the agent measures its devices, up to a minute ..."):
        calibration, cause = wait_for_calibration(stage.scheduler)
    took_ms = system_clock.steady_ms() - begin_ms
    stage.report.calibration = calibration_facts(calibration, cause, took_ms)
    for line in calibration_lines(calibration) if calibration else [f"not calibrated: {cause}"]:
        stage.narrator.say(line)
    return calibration


def _run_jobs(
    stage: Stage, jobs: Sequence[scenario.DemoJob], *, with_crash: bool
) -> tuple[list[str], stages.SchedulerCrash]:
    """Submits one job every few seconds and follows all of them to their end; returns their ids."""
    crash = stages.SchedulerCrash(cluster=stage.cluster, announce=stage.narrator.mark, before={})
    arrivals = stages.Arrivals(scheduler=stage.scheduler, waiting=[job.spec for job in jobs])

    def look() -> list[str]:
        arrivals.submit_due()
        found = {job_id: job for job_id, job in stage.tracker.snapshot().items() if job_id in arrivals.job_ids}
        if with_crash and not crash.before and len(found) == len(jobs) and stages.crash_is_due(found):
            crash.begin(found)
        state = "" if stage.tracker.connected else "  (scheduler unreachable, showing what was last known)"
        stage.narrator.redraw(
            lambda: render_jobs(found, title=f"Live{state}", width=stage.narrator.width),
            lambda: summary_line(found) + state,
            placement_notes(found),
        )
        return [] if arrivals.waiting else arrivals.job_ids

    with stage.narrator.live():
        stages.follow_until_ended(stage.tracker, look=look)
    crash.wait()
    return arrivals.job_ids, crash


def _measure_alone(
    stage: Stage,
    jobs: Sequence[scenario.DemoJob],
    ended: Mapping[str, scheduling_pb2.Job],
    predictions: stages.Predictions,
) -> dict[str, Window]:
    """Returns by name what each job did with a device to itself; one that hardly had it reruns for seconds.

    What is measured of a job alone divides what is measured of it with others: where it is short, a device whose speed
    wanders from second to second is taken for a slowdown.
    """
    windows = stage.tracker.windows
    alone = {job.spec.name: windows.get((job_id, ALONE), Window()) for job_id, job in ended.items()}
    missing = [job for job in jobs if not is_measured_alone(alone[job.name])]
    if missing:
        stage.narrator.section(f"{len(missing)} jobs hardly had a device to themselves: some seconds alone, to compare")
        specs = [scenario.solo_spec(job.spec, predictions.jobs[job.name].step_ms.value) for job in missing]
        ids = [stage.scheduler.submit_job(spec).job_id for spec in specs]
        _follow_alone(stage, ids)
        for job, job_id in zip(missing, ids, strict=True):
            alone[job.name] = alone[job.name].joined(windows.get((job_id, ALONE), Window()))
    stage.report.solo = {
        name: {"step_ms": window.step_ms, "utilization_ratio": window.utilization_ratio, "steps": window.steps}
        for name, window in alone.items()
    }
    return alone


def _follow_alone(stage: Stage, job_ids: Sequence[str]) -> None:
    def look() -> Sequence[str]:
        runs = {job_id: job for job_id, job in stage.tracker.snapshot().items() if job_id in job_ids}
        stage.narrator.redraw(
            lambda: render_jobs(runs, title="Alone", width=stage.narrator.width), lambda: summary_line(runs), {}
        )
        return job_ids

    with stage.narrator.live():
        stages.follow_until_ended(stage.tracker, look=look)


def _compare(
    stage: Stage,
    predictions: stages.Predictions,
    ended: Mapping[str, scheduling_pb2.Job],
    alone: Mapping[str, Window],
) -> None:
    report, narrator, tracker = stage.report, stage.narrator, stage.tracker
    names = {job_id: job.spec.name for job_id, job in ended.items()}
    comparisons = []
    for job in ended.values():
        name = job.spec.name
        comparisons += compare_job(name, predictions.jobs[name], job.memory_peak_bytes, alone[name])
    windows = {pair: window for pair, window in tracker.windows.items() if pair[0] in names and pair[1] in names}
    step_ms = {name: window.step_ms for name, window in alone.items()}
    comparisons += compare_pairs(names, windows, predictions.pairs, step_ms)
    report.comparisons = comparisons
    if all(job.phase == scheduling_pb2.JOB_PHASE_FINISHED and step_ms[job.spec.name] for job in ended.values()):
        report.start_up_ms = min(_start_up_ms(job, tracker) for job in tracker.snapshot().values())
        report.shared = outcome_of([(job.submitted_at_ms, job.finished_at_ms) for job in ended.values()])
        exclusive = [
            ExclusiveJob(
                submitted_at_ms=job.submitted_at_ms,
                start_up_ms=report.start_up_ms,
                step_ms=step_ms[job.spec.name],
                steps=job.spec.steps_total,
            )
            for job in ended.values()
        ]
        report.exclusive = run_exclusively(exclusive, report.devices)
    narrator.section("Predicted against measured")
    narrator.say(render_table(ERROR_COLUMNS, comparison_rows(comparisons), narrator.width))
    for line in error_summary(comparisons):
        narrator.say(line)
    narrator.section("Sharing against exclusive execution")
    for line in verdict_lines(report):
        narrator.say(line)
    narrator.say(f"exclusive = {EXCLUSIVE_BASIS}")


def _start_up_ms(job: scheduling_pb2.Job, tracker: JobTracker) -> float:
    span_ms = job.finished_at_ms - job.first_started_at_ms
    return max(0.0, span_ms - tracker.busy_ms.get(job.job_id, 0.0))


def _scheduler_client(cluster: LocalCluster, *, timeout_s: float = 15) -> SchedulerClient:
    channel = open_channel(ChannelOptions(address=cluster.target("scheduler")))
    return SchedulerClient(channel, address=cluster.scheduler_address, timeout_s=timeout_s)


def _cancel_what_runs(cluster: LocalCluster) -> None:
    """Asks the scheduler to end all jobs; it may be gone, then the processes are killed later."""
    if "scheduler" not in cluster.programs or not cluster.scheduler_address:
        return
    client = _scheduler_client(cluster, timeout_s=3)
    try:
        for job in client.list_jobs():
            if job.phase not in ENDED:
                client.cancel_job(job.job_id)
    except CotenantError:
        return


def _leave_nothing(narrator: Narrator) -> list[str]:
    left = process_tree.wait_until_alone(END_TIMEOUT_MS)
    process_tree.kill_all(left)
    if left:
        narrator.mark(f"killed {len(left)} processes that did not end by themselves", style="red")
    return [process.command for process in left]


def _process_check(left: Sequence[str]) -> Check:
    evidence = f"still there: {', '.join(left)[:200]}" if left else "no descendant of this process is left"
    return Check(claim="no process was left behind", holds=not left, evidence=evidence)


def _show_checks(narrator: Narrator, report: DemoReport) -> None:
    narrator.section("Verified")
    for check in report.checks:
        mark, style = ("ok  ", "green") if check.holds else ("FAIL", "bold red")
        narrator.mark(f"{mark} {check.claim}: {check.evidence}", style=style)
