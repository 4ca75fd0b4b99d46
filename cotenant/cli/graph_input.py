"""What `predict` may be asked about: graph files, job files and scripts, with the settings that flags change."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import click

from cotenant.capture.captured_job import CapturedJob
from cotenant.cli.capture_command import capture_here
from cotenant.cli.setting_options import overlay_settings
from cotenant.client import job_settings
from cotenant.client_errors import InputError
from cotenant.job_file import check_settings, read_content
from cotenant.job_settings_message import settings_message, unchecked_settings
from cotenant.prediction_questions import load_graph
from cotenant.v1 import resources_pb2

__all__ = ["AskedJob", "GraphFile", "WithCommand", "asked_jobs", "load_graph"]
JOBS_MAX = 8
_COMMAND = "cotenant.command"
_SCRIPTS = (".py", ".sh", ".ipynb")


class Check(Protocol):
    """Raises what is wrong with a question about so many jobs, of which one may have to be captured."""

    def __call__(self, jobs: int, *, is_captured: bool) -> None:
        """Look."""


class WithCommand(click.Command):
    """A verb that a job's own command may follow behind `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Reads what stands before `--`, and keeps the rest as it is."""
        own, _, command = _split(args)
        ctx.meta[_COMMAND] = tuple(command)
        return super().parse_args(ctx, own)


def _split(words: list[str]) -> tuple[list[str], bool, list[str]]:
    if "--" not in words:
        return words, False, []
    place = words.index("--")
    return words[:place], True, words[place + 1 :]


class GraphFile(click.Path):
    """A file that is there; a script or a program in its place is told where it belongs."""

    def __init__(self) -> None:
        super().__init__(exists=True, dir_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 (click's)
        """Returns the path.

        Raises:
            InputError: That is a script, or a program.
        """
        name = str(value)
        if name.endswith(_SCRIPTS) or (not Path(name).exists() and shutil.which(name)):
            raise InputError(
                f"{name} is no graph", remedy="put the command behind --, e.g. cotenant predict -- python train.py"
            )
        return super().convert(value, param, ctx)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedJob:
    """One job that is asked about.

    Attributes:
        name: As it was named.
        graph: Its file.
        known: Settings that a job file or a capture holds.
    """

    name: str
    graph: Path
    known: Mapping[str, Any]

    def settings(self, flags: Mapping[str, Any], batch_size: int | None) -> resources_pb2.JobSettings:
        """Returns its settings; flags win, and of another batch each sample is waited for as long.

        Raises:
            InputError: The graph cannot be read, or a setting has no such value.
            UsageError: No batch size is known.
        """
        given = {**flags, "batch_size": batch_size}
        merged = overlay_settings(self.known, {name: value for name, value in given.items() if value is not None})
        if not isinstance(merged.get("batch_size"), int):
            # A file that is no graph is told first: a batch size for it is useless.
            load_graph(self.graph)
            raise click.UsageError("Missing option '--batch-size'.")
        return job_settings(**merged)


def with_batch(settings: resources_pb2.JobSettings, batch_size: int) -> resources_pb2.JobSettings:
    """Returns the settings of steps of so many samples."""
    return settings_message(unchecked_settings(settings).at_batch(batch_size))


@contextmanager
def asked_jobs(files: Sequence[Path], *, is_allowed: bool, check: Check) -> Iterator[list[AskedJob]]:
    """Yields the jobs of some files, and of the command behind `--`; that one is captured.

    Args:
        files: Graphs (.onnx) or job files (.yaml).
        is_allowed: A capture may leave files behind.
        check: Raises what is wrong with the question in any case; called before time goes into a capture.

    Raises:
        InputError: Nothing was named, too much, or a file is neither.
    """
    command = click.get_current_context().meta.get(_COMMAND, ())
    if not files and not command:
        raise click.UsageError("Missing argument 'GRAPH'.")
    if len(files) + bool(command) > JOBS_MAX:
        raise InputError(f"{len(files) + bool(command)} jobs are named", remedy=f"name at most {JOBS_MAX}")
    check(len(files) + bool(command), is_captured=bool(command))
    with tempfile.TemporaryDirectory() as folder:
        found = [_of_file(path) for path in files]
        if command:
            job = capture_here(command, Path.cwd(), {}, is_allowed=is_allowed)
            found.append(_of_capture(job, command, Path(folder)))
        yield found


def _of_capture(job: CapturedJob, command: Sequence[str], folder: Path) -> AskedJob:
    from cotenant.job_name import name_of

    graph = folder / f"{name_of(command)}.onnx"
    graph.write_bytes(job.graph)
    return AskedJob(name=graph.stem, graph=graph, known=job.settings())


def _of_file(path: Path) -> AskedJob:
    if path.suffix not in (".yaml", ".yml"):
        return AskedJob(name=path.stem, graph=path, known={})
    content = read_content(path)
    graph, settings = content.get("graph"), content.get("settings") or {}
    if not graph or not isinstance(settings, dict):
        raise InputError(f"{path} names no graph", remedy="write one with `cotenant capture`, or give an .onnx file")
    check_settings(settings)
    return AskedJob(name=path.stem, graph=(path.resolve().parent / str(graph)), known=settings)
