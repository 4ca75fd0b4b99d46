"""observe: under a foreign scheduler, measure what runs on the devices of this machine. Nothing is changed."""

from __future__ import annotations

import json
import os
import socket
import threading
import uuid
from collections.abc import Iterable
from types import MappingProxyType
from typing import Final

import click

from cotenant.cli.session import Session, show, tell, with_session
from cotenant.client_errors import InputError, ServiceError
from cotenant.option_types import FiniteRange, Integers
from cotenant.quantities import format_percent, format_slowdown
from cotenant.stop_signals import until_signal
from cotenant.v1 import prediction_pb2
from cotenant_agent import system_clock
from cotenant_agent.devices.import_baseline import NO_BASELINE
from cotenant_agent.devices.nvml_inventory import NvmlInventory
from cotenant_agent.devices.standin_inventory import StandinInventory
from cotenant_agent.errors import DeviceError, DriverMissingError
from cotenant_agent.observing.foreign_jobs import ForeignJobs
from cotenant_agent.observing.observer import ObservedWindow, Observer, UsedDevices
from cotenant_agent.observing.silent_jobs import SilentJobs
from cotenant_agent.processes import LinuxProcesses
from cotenant_agent.protocol import window_to_message

_NS_PER_S = 1_000_000_000
_ENGINES: Final = MappingProxyType(
    {"slurm": ("slurm",), "kubernetes": ("kubernetes",), "ray": ("ray",), "host": ("docker", "podman", "group")}
)
_SAMPLE_OF_CORES_S: Final = 0.05
_SAMPLE_OF_GPUS_S: Final = 1.0
"""NVIDIA's driver tells what single processes used about once a second."""


@click.command(
    epilog="""\b
Example:  cotenant observe --seconds 120 -o json
          cotenant observe ray --seconds 600
"""
)
@click.argument("engine", type=click.Choice([*_ENGINES]), default=None, required=False)
@click.option(
    "--standin-cores", type=Integers(), default=(), help="Cores that play devices; the NVIDIA GPUs by default."
)
@click.option(
    "--seconds", type=FiniteRange(1), help="End after so long; by default at SIGINT or SIGTERM.", metavar="SECONDS"
)
@click.option(
    "--interval", "interval_s", type=FiniteRange(0.2, 60), default=2.0, show_default=True, help="Between two looks."
)
@click.option("--record", is_flag=True, help="Report what was measured to the predictor (role observer).")
@with_session
def observe(
    session: Session,
    /,
    engine: str | None,
    standin_cores: tuple[int, ...],
    seconds: float | None,
    interval_s: float,
    *,
    record: bool,
) -> None:
    """Measure the jobs on this machine's devices, foreign ones too; with ENGINE those of one engine.

    A job is a job of Slurm, a pod, a container, else a process group. Of Ray it is a worker process, named after its
    job, a submitted program, or all ranks of Ray Train. Steps are read off what
    it prints into a file, by the usual forms (docs/progress.md); of a job that prints none, the period of its
    utilization is told instead. A job that sets COTENANT_JOB='cotenant graph=SHA256 batch=64' in its environment can be
    learned from.
    """
    sample_s = _SAMPLE_OF_CORES_S if standin_cores else _SAMPLE_OF_GPUS_S
    silent_jobs = SilentJobs(_inventory(standin_cores), sample_s)
    observer = Observer(
        _inventory(standin_cores),
        ForeignJobs().find,
        campaign=f"collected_{uuid.uuid4().hex[:8]}",
        make_id=lambda: uuid.uuid4().hex,
        silent_jobs=silent_jobs,
    )
    kinds = _ENGINES[engine] if engine else ()
    stop = until_signal()
    end_ns = system_clock.steady_ns() + int((seconds or 10**9) * _NS_PER_S)
    while not stop.is_set() and system_clock.steady_ns() < end_ns:
        _tell(session, _of(kinds, observer.beat(system_clock.steady_ns())), record=record)
        _wait(stop, interval_s, silent_jobs)
    silent = observer.silent_job_ids
    _tell(session, _of(kinds, observer.close(system_clock.steady_ns())), record=record)
    _tell_unmeasured(silent, observer, kinds)
    if engine and not observer.seen_owners & set(kinds):
        others = f", only of {', '.join(sorted(observer.seen_owners))}" if observer.seen_owners else ""
        tell(f"no job of {engine} was on the devices of this machine{others}; without {engine} all are observed")


def _tell_unmeasured(silent: Iterable[str], observer: Observer, kinds: tuple[str, ...]) -> None:
    """Say of which jobs nothing was measured, and why."""
    for job_id, devices in sorted(observer.wide_jobs.items()):
        if _is_of(kinds, job_id):
            tell(f"{job_id}: it holds {devices} devices; only jobs on one are measured, co-located with such")
    for job_id in silent:
        if _is_of(kinds, job_id) and job_id not in observer.wide_jobs:
            cause = (
                "what it prints is not shown to this account (run as root, or as its owner)"
                if job_id in observer.hidden_job_ids
                else "it prints no steps into a file"
            )
            tell(f"{job_id}: {cause}, and its utilization has no period; nothing is measured")


def _wait(stop: threading.Event, interval_s: float, silent_jobs: SilentJobs) -> None:
    """Wait for the next look, and sample meanwhile what prints nothing."""
    end_ns = system_clock.steady_ns() + int(interval_s * _NS_PER_S)
    while not stop.is_set() and (left_ns := end_ns - system_clock.steady_ns()) > 0:
        silent_jobs.sample(system_clock.steady_ns())
        pause_s = silent_jobs.interval_s if silent_jobs.are_there else interval_s
        stop.wait(min(pause_s, left_ns / _NS_PER_S))


def _is_of(kinds: tuple[str, ...], job_id: str) -> bool:
    return not kinds or job_id.partition("/")[0] in kinds


def _of(kinds: tuple[str, ...], windows: Iterable[ObservedWindow]) -> list[ObservedWindow]:
    return [one for one in windows if _is_of(kinds, one.job_id)]


def _inventory(standin_cores: tuple[int, ...]) -> UsedDevices:
    if not standin_cores:
        try:
            return NvmlInventory()
        except DriverMissingError as error:
            raise DeviceError(f"{error}; install the driver, or observe cores: --standin-cores 0,1") from error
    unknown = [core for core in standin_cores if core >= (os.cpu_count() or 1)]
    if unknown:
        raise InputError(f"--standin-cores: there is no core {unknown[0]}", remedy="name cores of this machine")
    return StandinInventory(
        node_id="observed", cores=standin_cores, memory_bytes=2**31, baseline=NO_BASELINE, processes=LinuxProcesses()
    )


def _tell(session: Session, windows: Iterable[ObservedWindow], *, record: bool) -> None:
    found = list(windows)
    for one in found:
        if session.output.is_for_people:
            show(_line(one))
        else:
            click.echo(json.dumps(_document(one, ended_at_ms=system_clock.wall_ms())))
    reportable = [window_to_message(one.window) for one in found if one.is_reportable]
    if record and reportable:
        try:
            request = prediction_pb2.RecordMeasurementWindowsRequest(
                request_id=str(uuid.uuid4()), measurement_windows=reportable
            )
            session.predictor().record_measurement_windows(request)
        except ServiceError as error:
            tell(f"error: {len(reportable)} windows were not recorded: {error.message}", style="red")


def _line(one: ObservedWindow) -> str:
    slowed, counted = one.slowdown_ratio, "period of its utilization" if one.is_by_period else "step"
    parts = [
        f"{one.job_id} on {one.window.device}",
        f"{one.step_ms:.1f} ms a {counted} over {one.window.window_ms / 1000:.0f} s",
        f"with {', '.join(one.others)}" if one.others else "alone",
        format_slowdown(slowed) if slowed is not None else "",
        f"{format_percent(one.window.utilization_ratio)} busy" if one.window.utilization_ratio is not None else "",
        *one.window.quality_flags,
    ]
    return ", ".join(part for part in parts if part)


def _document(one: ObservedWindow, *, ended_at_ms: int) -> dict[str, object]:
    return {
        "machine": socket.gethostname(),
        "ended_at_ms": ended_at_ms,
        "job_id": one.job_id,
        "device": one.window.device,
        "co_located_job_ids": list(one.others),
        "steps": one.window.steps,
        "window_ms": one.window.window_ms,
        "step_ms": one.step_ms,
        "is_by_period": one.is_by_period,
        "slowdown_ratio": one.slowdown_ratio,
        "utilization_ratio": one.window.utilization_ratio,
        "memory_peak_bytes": one.window.memory_peak_bytes,
        "quality_flags": list(one.window.quality_flags),
    }
