"""Writes a captured job as two files, a graph and a job file that `submit` and `predict` read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import yaml

from cotenant.capture.captured_job import CapturedJob
from cotenant.client_errors import InputError
from cotenant.job_name import name_of

FIRST_LINE: Final = "# captured by cotenant"
_FIRST_LINE_LIMIT = 1000
_PLANNED = re.compile(
    rf"{FIRST_LINE}: batch ([0-9]+)(?: of ([0-9]+) processes)?, .* ([0-9]+) steps planned$", re.MULTILINE
)


class PlannedSteps(NamedTuple):
    """How many steps a captured job file says were planned, of which batch, and of how many processes."""

    steps: int
    batch_size: int
    processes: int = 1


NO_PLANNED_STEPS: Final = PlannedSteps(0, 0)


def target_files(out: Path | None, command: Sequence[str]) -> tuple[Path, Path]:
    """Returns where graph and job file go.

    Args:
        out: A graph file (.onnx), a folder, or None = the current folder.
        command: What was captured; names the files where `out` does not.

    Raises:
        InputError: A file is there that no capture has written, or the folder is not.
    """
    if out is not None and out.suffix == ".onnx":
        graph = out
    elif out is None or out.is_dir() or not out.suffix:
        graph = (out or Path()) / f"{name_of(command)}.onnx"
    else:
        raise InputError(f"{out} is neither a folder nor an .onnx file", remedy="e.g. --out job.onnx, or --out FOLDER")
    job_file = graph.with_suffix(".yaml")
    if job_file.exists() and not job_file.read_text(encoding="utf-8", errors="replace").startswith(FIRST_LINE):
        raise InputError(f"{job_file} is there and was not captured", remedy="name another place with --out")
    if graph.exists() and not job_file.exists():
        raise InputError(f"{graph} is there and was not captured", remedy="name another place with --out")
    return graph, job_file


def write_job(job: CapturedJob, command: Sequence[str], directory: Path, files: tuple[Path, Path]) -> None:
    """Writes graph and job file; the number of steps is left to `submit --steps` where the script does not say it."""
    graph, job_file = files
    graph.parent.mkdir(parents=True, exist_ok=True)
    graph.write_bytes(job.graph)
    content = {
        "name": name_of(command),
        "command": list(command),
        "working_directory": str(directory),
        "graph": graph.name,
        "settings": job.settings(),
        **job.progress_keys(),
    }
    lines = [f"{FIRST_LINE}: {job.summary()}", *(f"# {note}" for note in job.notes)]
    text = "\n".join(lines) + "\n" + yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    job_file.write_text(text, encoding="utf-8")


def read_planned_steps(job_file: Path) -> PlannedSteps:
    """Returns what a captured job file says were planned."""
    with job_file.open(encoding="utf-8", errors="replace") as file:
        found = _PLANNED.match(file.readline(_FIRST_LINE_LIMIT))
    return PlannedSteps(int(found[3]), int(found[1]), int(found[2] or 1)) if found else NO_PLANNED_STEPS
