"""demo: real jobs share two stand-in devices, with a crash in the middle."""

from __future__ import annotations

import signal

import click
from rich.console import Console

from cotenant.cli.demo.demonstration import DemoOptions, run_demo
from cotenant.cli.demo.narrator import Narrator
from cotenant.cli.exit_codes import ExitCode
from cotenant.cli.formats import OutputFormat, emit_data
from cotenant.cli.session import output_width

FAST_DIVISOR = 3


@click.command(epilog="Example:  cotenant demo --fast   (under 3 minutes without --fast on two cores)")
@click.option("--fast", is_flag=True, help=f"A {FAST_DIVISOR}rd of the steps: start-up then weighs more.")
@click.option("--crash/--no-crash", default=True, help="Kill the scheduler with -9 once in the middle.")
@click.option("--keep", is_flag=True, help="Keep the state directory with all logs.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def demo(*, fast: bool, crash: bool, keep: bool, output: str) -> None:
    """Watch real PyTorch trainings share two stand-in devices (CPU cores) of this machine.

    Starts predictor, scheduler and agent as processes that serve this account only, predicts every job before it runs,
    shows which jobs share a GPU and why, kills the scheduler once, and compares with exclusive execution. Leaves
    nothing behind. Exit status 1 when a check fails; sharing that does not pay is reported, not hidden.
    """
    options = DemoOptions(steps_divisor=FAST_DIVISOR if fast else 1, crash=crash, keep=keep)
    as_json = output == OutputFormat.JSON.value
    console = Console(stderr=as_json, highlight=False, width=output_width())
    # A polite stop from outside must clean up as Ctrl-C does.
    # A closed terminal ends the demo as Ctrl-C does: with everything that it started.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    report = run_demo(options, Narrator(console, output_width()))
    if as_json:
        emit_data(report.as_dict(), OutputFormat.JSON)
    if not report.succeeded:
        raise click.exceptions.Exit(ExitCode.ERROR)
