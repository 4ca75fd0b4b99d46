"""Carries out a campaign: what is missing in the journal, until everything is there or the time is over."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch

from cotenant_profiler import system_clock
from cotenant_profiler.bench import Bench, Load, Measurement
from cotenant_profiler.campaign import Campaign, Method
from cotenant_profiler.drift import drift_ratio
from cotenant_profiler.errors import InvalidCampaignError, OutOfMemoryError, ProfilerError, WorkerError
from cotenant_profiler.job_spec import JobSpec
from cotenant_profiler.journal import Journal, Record, open_journal
from cotenant_profiler.measured_device import MeasuredDevice
from cotenant_profiler.mps import MpsDaemon
from cotenant_profiler.mps_probe import WorkersOnGpu, prove_mps
from cotenant_profiler.nvidia_device import NvidiaDevice
from cotenant_profiler.plan import Kind, Run, build_plan
from cotenant_profiler.processor_weight import raised_weight
from cotenant_profiler.standin_device import StandinDevice

Listener = Callable[[Record], None]


def run_campaign(
    campaign: Campaign,
    folder: Path,
    *,
    deadline_ms: int | None = None,
    raise_weight: bool = True,
    listener: Listener = lambda record: None,
) -> Journal:
    """Carry out what the journal of `folder` lacks.

    Args:
        campaign: What to measure.
        folder: Results folder, made when absent, continued otherwise.
        deadline_ms: Time from now after which no run is begun; None = no limit.
        raise_weight: Try to hold the device core by a control group with the highest CPU weight.
        listener: Called with every record.

    Returns:
        The journal.

    Raises:
        JournalError: The folder holds something else.
        ProfilerError: There is no second core for the profiler itself.
    """
    end_ns = None if deadline_ms is None else system_clock.now_ns() + deadline_ms * 1_000_000
    with (
        shared_device(campaign) as device,
        raised_weight(raise_weight) as group,
        Bench(device, group) as bench,
    ):
        journal = open_journal(folder, _header(campaign, device, group.description))
        anchor = campaign.core_jobs[0].without_wait
        CampaignDriver(bench, journal, anchor, end_ns, listener).carry_out(build_plan(campaign))
    return journal


def open_device(name: str) -> MeasuredDevice:
    """Return the device that a campaign names.

    Args:
        name: cpu-standin for the last core, cpu-standin:N for another one, nvidia:N or nvidia:UUID for a GPU.

    Raises:
        InvalidCampaignError: No such kind of device is known.
        ProfilerError: It cannot be used here.
    """
    kind, _, which = name.partition(":")
    if kind == "cpu-standin" and (not which or which.isdecimal()):
        return StandinDevice(int(which) if which else None)
    if kind == "nvidia" and which:
        return NvidiaDevice(which)
    raise InvalidCampaignError(f"device {name!r} is unknown; write cpu-standin, nvidia:0 or nvidia:GPU-<uuid>")


@contextlib.contextmanager
def shared_device(campaign: Campaign) -> Iterator[MeasuredDevice]:
    """Open the device of a campaign, shared as the campaign states.

    Raises:
        InvalidCampaignError: The device is unknown or cannot be shared so.
        ProfilerError: It cannot be used here, or the multi-process service does not do what it promises.
    """
    with contextlib.ExitStack() as stack:
        device = stack.enter_context(open_device(campaign.device))
        if campaign.share_mode == "mps":
            if not isinstance(device, NvidiaDevice):
                raise InvalidCampaignError(f"share_mode mps needs an NVIDIA GPU, and {campaign.device} is none")
            daemon = stack.enter_context(MpsDaemon())
            proof = prove_mps(WorkersOnGpu(device.place), daemon)
            if not proof.works:
                raise ProfilerError(f"the multi-process service does not share this GPU: {proof.facts()}")
            device.share_by(daemon)
        yield device


def _header(campaign: Campaign, device: MeasuredDevice, held_by: str) -> dict[str, str]:
    shared = {} if campaign.share_mode == "time_slicing" else {"share_mode": campaign.share_mode}
    return {
        **shared,
        "campaign": campaign.name,
        "device": device.name if isinstance(device, NvidiaDevice) else campaign.device,
        "driver": device.driver,
        "framework": f"torch-{torch.__version__.split('+')[0]}",
        "python": platform.python_version(),
        "held_by": held_by,
    }


class MeasuringBench(Protocol):
    """What the driver needs of a bench."""

    def measure(self, loads: Sequence[Load], references: Sequence[Load], method: Method) -> Measurement:
        """Measure jobs together, or one alone, between references."""
        ...

    def measure_memory(self, job: JobSpec, method: Method) -> Measurement:
        """Measure the peak memory of a job."""
        ...

    def measure_trace(self, load: Load, method: Method) -> Measurement:
        """Sample the memory of a job over time; one mapping per sample."""
        ...

    def close(self) -> None:
        """Give up all processes; the next measurement starts new ones."""
        ...


class CampaignDriver:
    """Carries out a plan with a bench and writes everything into a journal."""

    def __init__(
        self, bench: MeasuringBench, journal: Journal, anchor: JobSpec, end_ns: int | None, listener: Listener
    ) -> None:
        self._bench = bench
        self._journal = journal
        self._anchor = anchor
        self._end_ns = end_ns
        self._listener = listener

    def carry_out(self, plan: Sequence[Run]) -> None:
        """Attempt every unfinished run once per round: a rejected run comes back when the disturbance may be over."""
        for _ in range(max(run.method.attempts_max for run in plan)):
            for run in plan:
                if self._journal.is_finished(run):
                    continue
                if not self._has_time(run):
                    return
                self._attempt(run)
                while _is_needed_by_others(run) and not self._journal.is_finished(run) and self._has_time(run):
                    self._attempt(run)

    def _has_time(self, run: Run) -> bool:
        return self._end_ns is None or system_clock.now_ns() + run.cost_ms * 1_000_000 <= self._end_ns

    def _attempt(self, run: Run) -> None:
        waits_ms = tuple(wait_ms(self._journal, job) for job in run.jobs)
        record = Record(
            run_id=run.run_id,
            attempt=self._journal.attempts(run),
            kind=run.kind,
            jobs=run.jobs,
            repeat=run.repeat,
            status="ok",
            waits_ms=waits_ms,
        )
        try:
            measured = self._measure(run, waits_ms)
        except OutOfMemoryError as error:
            self._bench.close()
            record = replace(record, status="out_of_memory", error=str(error)[:500])
        except WorkerError as error:
            self._bench.close()
            record = replace(record, status="failed", error=str(error))
        else:
            record = judged(record, measured, run.method, self._journal.records)
        self._journal.append(record)
        self._listener(record)

    def _measure(self, run: Run, waits_ms: Sequence[float]) -> Measurement:
        if run.kind is Kind.MEMORY:
            return self._bench.measure_memory(run.jobs[0], run.method)
        if run.kind is Kind.TRACE:
            return self._bench.measure_trace(Load(job=run.jobs[0], wait_ms=waits_ms[0]), run.method)
        loads = [Load(job=job, wait_ms=wait) for job, wait in zip(run.jobs, waits_ms, strict=True)]
        references = loads if run.kind is Kind.GROUP else [Load(job=self._anchor)]
        return self._bench.measure(loads, references, run.method)


def _is_needed_by_others(run: Run) -> bool:
    """First measurements alone determine how long jobs with a wait have to wait, so they are repeated at once."""
    return run.kind is Kind.SOLO and run.repeat == 0 and run.jobs[0].input_wait_ratio == 0


def judged(record: Record, measured: Measurement, method: Method, earlier: Sequence[Record]) -> Record:
    """Return `record` with its measurement, rejected when the device was not ours or not the same throughout."""
    reasons = []
    if measured.foreign_ratio > method.foreign_ratio_max:
        reasons.append("foreign_load")
    if any(abs(after / before - 1) > method.speed_change_ratio_max for before, after in measured.references_ms):
        reasons.append("speed_changed")
    record = replace(
        record,
        figures=measured.figures,
        references_ms=measured.references_ms,
        foreign_ratio=round(measured.foreign_ratio, 4),
        elsewhere_ratio=round(measured.elsewhere_ratio, 4),
    )
    if abs(drift_ratio(record, earlier)) > method.anchor_drift_ratio_max:
        reasons.append("anchor_drift")
    return replace(record, status="rejected" if reasons else "ok", flags=(*measured.flags, *reasons))


def wait_ms(journal: Journal, job: JobSpec) -> float:
    """Return the waiting per step of `job` in this campaign, milliseconds.

    It is fixed by the first measurement of the job without waiting, accepted ones before rejected ones, so that the
    same job waits equally long in all runs of a campaign.
    """
    if job.input_wait_ratio == 0:
        return 0.0
    used = [
        record.waits_ms[record.jobs.index(job)]
        for record in journal.records
        if job in record.jobs and record.status != "failed"
    ]
    if used:
        return used[0]
    measured = [
        record
        for record in journal.records
        if record.kind is Kind.SOLO and record.jobs == (job.without_wait,) and record.figures
    ]
    if not measured:
        raise WorkerError(f"{job.name} cannot be measured: {job.without_wait.name} failed")
    base = min(measured, key=lambda record: record.status != "ok")
    return round(job.wait_ms(base.figures[0]["step_ms_mean"]), 3)
