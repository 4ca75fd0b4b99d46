"""capture: graph and settings of an untouched training script, without an export by hand."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import click

from cotenant.capture.captured_files import target_files, write_job
from cotenant.capture.captured_job import CapturedJob, capture_script
from cotenant.capture.reasons import NotCapturedError, OverlayRefusedError
from cotenant.cli.active_environment import with_python_of_here
from cotenant.cli.session import show, tell
from cotenant.client_errors import InputError
from cotenant.quantities import parse_bytes

_WITHOUT_OVERLAY = "the first two steps of the script would run as they are, and may leave files behind"


@click.command(
    context_settings={"allow_interspersed_args": False},
    epilog="\b\nExamples:\n  cotenant capture -- python train.py --lr 0.1\n"
    "  cotenant capture --out graphs/ -- torchrun --nproc-per-node 1 train.py\n"
    "  cotenant submit train.yaml --steps 500",
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.option("--out", type=click.Path(path_type=Path), help="The graph (.onnx) or a folder.  [default: here]")
@click.option("--yes", is_flag=True, help="Run it without an overlay as well, where it may leave files behind.")
@click.option("--memory-limit", metavar="SIZE", help="Most that a process may allocate.  [default: half of all]")
def capture(command: tuple[str, ...], out: Path | None, yes: bool, memory_limit: str | None) -> None:
    """Run a PyTorch script on the CPU until its second optimizer step, and write its graph and a job file.

    The script runs in its own Python, in an overlay without network where this machine allows one: it leaves nothing
    behind. Weights are not written. At most 120 CPU seconds pass until the step.
    """
    files = target_files(out, command)
    limit = parse_bytes(memory_limit) if memory_limit else 0
    job = capture_here(command, Path.cwd(), {}, is_allowed=yes, memory_bytes=limit)
    write_job(job, command, Path.cwd(), files)
    show(f"{files[0]}  {files[1]}")
    job_file = shlex.quote(str(files[1]))
    steps = "" if job.planned_steps else " --steps N"
    tell(f"ask: `cotenant predict {job_file} --device TYPE`; submit: `cotenant submit {job_file}{steps}`")


def capture_here(
    command: Sequence[str],
    directory: Path,
    environment: dict[str, str],
    *,
    is_allowed: bool,
    memory_bytes: int = 0,
) -> CapturedJob:
    """Captures a script and tells what was found; asks before it runs one that may leave files behind.

    Args:
        command: The script with what starts it.
        directory: Where it runs.
        environment: Variables on top of this process's own.
        is_allowed: It may leave files behind without a question.
        memory_bytes: Most that one of its processes may allocate; 0 = half of this machine's.

    Raises:
        InputError: There is no overlay, and no terminal to ask at.
        NotCapturedError: As `capture_script`; what the script printed is told before.
    """
    started = with_python_of_here(command, environment) if find_spec("torch") else list(command)
    with_python = f" with {started[0]} (no environment is active)" if started != list(command) else ""
    tell(f"capturing{with_python}: running the script on the CPU until its second optimizer step", style="dim")
    try:
        job = _capture(started, directory, environment, is_allowed, memory_bytes)
    except NotCapturedError as error:
        if error.log:
            tell(error.log.rstrip(), style="dim")
        raise
    tell_captured(job)
    return job


def tell_captured(job: CapturedJob) -> None:
    """Tells what was found, and what of it is not as it looks."""
    tell(f"captured: {job.summary()}")
    for note in job.notes:
        tell(f"  note: {note}", style="yellow")


def _capture(
    command: Sequence[str], directory: Path, environment: dict[str, str], is_allowed: bool, memory_bytes: int
) -> CapturedJob:
    try:
        return capture_script(command, directory=directory, environment=environment, memory_bytes=memory_bytes)
    except OverlayRefusedError as error:
        if not is_allowed:
            _ask(error)
    return capture_script(
        command, directory=directory, environment=environment, memory_bytes=memory_bytes, isolated=False
    )


def _ask(error: OverlayRefusedError) -> None:
    if not sys.stdin.isatty():
        raise InputError(f"{error.message}: {_WITHOUT_OVERLAY}", remedy="allow it with --yes") from error
    tell(f"{error.message}: {_WITHOUT_OVERLAY}")
    click.confirm("Run it?", abort=True, err=True)
