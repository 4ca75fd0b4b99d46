"""calibrate: measure the device at hand, keep the record where predictions find it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from cotenant.calibration_files import calibration_path, keep_calibration
from cotenant.device_calibration import AnchorPair, DeviceCalibration, write_calibration
from cotenant.local_state import local_state_dir
from cotenant.quantities import format_gib, format_ms, format_percent
from cotenant.system_clock import now_ms
from cotenant_profiler.calibration import PARTS, Listener, calibrate, left_out
from cotenant_profiler.campaign_run import open_device
from cotenant_profiler.contribution import (
    PAIRS,
    PRIVACY,
    fill,
    open_contribution,
    predict_offline,
    report,
)


@click.command("calibrate")
@click.option(
    "--device",
    "device_name",
    default="cpu-standin",
    show_default=True,
    help="cpu-standin (the last core), cpu-standin:N, nvidia:0 or nvidia:GPU-<uuid>.",
)
@click.option(
    "--file",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write here.  [default: where predict looks]",
)
@click.option(
    "--contribute",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Then predict and measure 20 networks and 6 pairs, in ten minutes at most, into this anonymous file.",
)
@click.option("--despite-load", is_flag=True, help="Measure although others use the device; the record says so.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def calibrate_command(
    device_name: str, file: Path | None, contribute: Path | None, despite_load: bool, output: str
) -> None:
    """Measure the device at hand within a minute, so that predictions about it use what it really reaches.

    Context and workspace memory, sustained rates, launch and host times, and three networks, alone and in pairs; only
    while the device is free. `cotenant predict` uses the record on this machine, and agents measure their own at their
    first start.
    """
    # A plain SIGTERM would leave the measuring process behind; an exception passes through all that closes it.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with open_device(device_name) as device, _progress(PARTS) as listener:
        calibration = calibrate(device, now_ms=now_ms(), listener=listener, despite_load=despite_load)
    path = file or calibration_path(local_state_dir(os.environ), calibration.device, calibration.driver)
    keep_calibration(path, calibration)
    click.echo(write_calibration(calibration) if output == "json" else _table(calibration), nl=output != "json")
    click.echo(f"kept in {path}", err=True)
    if contribute is not None:
        _contribute(contribute, device_name, calibration)


def _contribute(path: Path, device_name: str, calibration: DeviceCalibration) -> None:
    """Go on with a contribution until it is complete or the time is over; what was done stays, whatever happens."""
    contribution = open_contribution(path, calibration)
    click.echo(PRIVACY, err=True)
    steps = sum(1 for _ in (*contribution.unpredicted(), *contribution.unmeasured())) + PAIRS
    with open_device(device_name) as device, _progress(steps) as listener:
        fill(contribution, device, predict=predict_offline(calibration), listener=listener)
    click.echo(report(contribution), err=True)


@contextmanager
def _progress(parts: int) -> Iterator[Listener]:
    """Show a bar on a terminal, else a line per part, on standard error."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda part: click.echo(part, err=True)
        return
    columns = (BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("looking at the device", total=parts + 1)
        yield lambda part: progress.update(task, advance=1, description=part)
        progress.update(task, completed=parts + 1, description="done")


def _pair_text(pair: AnchorPair) -> str:
    waits = [format_percent(wait_ratio) for _, wait_ratio in pair.sides]
    waiting = f", waiting {' and '.join(waits)} of a step" if pair.input_wait_ratio else ""
    return f"loses {format_percent(pair.slowdown_ratio)}{waiting}"


def _table(calibration: DeviceCalibration) -> str:
    rows = [("device", f"{calibration.device}, driver {calibration.driver}, {calibration.framework}")]
    rows += [
        ("context, workspace", f"{format_gib(calibration.context_bytes)}, {format_gib(calibration.workspace_bytes)}")
    ]
    rows += [
        (
            precision,
            f"{rates.matmul_flops_per_s / 1e12:.3g} TFLOP/s matrix products, "
            f"{rates.convolution_flops_per_s / 1e12:.3g} convolutions",
        )
        for precision, rates in calibration.rates.items()
    ]
    rows += [
        ("copies", f"{calibration.copy_bytes_per_s / 1e9:.3g} GB/s"),
        ("small operator", f"{calibration.launch_ms * 1e3:.1f} microseconds"),
        ("host", f"{calibration.host_steps_per_s:,.0f} empty steps/s"),
    ]
    rows += [
        (
            f"{anchor.network} x {anchor.batch_size}",
            f"step {format_ms(anchor.step_ms)} (varies by {format_percent(anchor.step_spread_ratio)}), "
            f"{format_gib(anchor.memory_peak_bytes)}, busy {format_percent(anchor.utilization_ratio)}",
        )
        for anchor in calibration.anchors
    ]
    if calibration.head_start_ms:
        ahead = f"{format_ms(calibration.head_start_ms)} of computing beyond its share, as a CPU quota lets it save up"
        rows.append(("after a wait", f"a job has {ahead}"))
    if calibration.speed_wander_ratio:
        rows.append(("speed", f"windows alone differ by {format_percent(calibration.speed_wander_ratio)}"))
    rows += [(f"{pair.victim} with {pair.other}", _pair_text(pair)) for pair in calibration.pairs]
    if missing := left_out(calibration):
        rows.append(("left out", f"{', '.join(missing)}: no time or memory was left, or others used the device"))
    if calibration.foreign_load:
        rows.append(("note", "others used the device meanwhile: predictions get wider ranges; measure again when free"))
    return "\n".join(f"{name:<26}{text}" for name, text in rows)
