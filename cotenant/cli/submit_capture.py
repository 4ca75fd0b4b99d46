"""Whether `submit` reads the graph off the script itself, and what becomes of the job where it cannot."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from cotenant.capture.captured_files import read_planned_steps
from cotenant.capture.captured_job import CapturedJob, capture_script, missing_for_capture
from cotenant.capture.reasons import NotCapturedError, OverlayRefusedError
from cotenant.cli.active_environment import with_python_of_here
from cotenant.cli.capture_command import capture_here, tell_captured
from cotenant.cli.script_imports import FILES_MAX, cuts_batches, imports_torch, read_text
from cotenant.cli.session import Session, tell
from cotenant.client import is_serving, open_channel
from cotenant.client_errors import InputError, ProgramError

RANKS_CAPTURED_MAX = 8
"""Each rank is a Python with torch on this machine."""
PREDICTOR_TIMEOUT_S = 2.0
_PYTHON_FLAGS = frozenset({"-u", "-O", "-OO", "-B", "-q"})
_PYTHON_VALUES = ("-W", "-X")
# They start the command behind their own flags, with the variables that they were given.
_WRAPPERS = frozenset(
    {"uv", "poetry", "pdm", "pixi", "hatch", "pipenv", "rye", "conda", "mamba", "micromamba"}
    | {"nohup", "stdbuf", "nice", "ionice", "time", "env", "numactl", "taskset", "unbuffer"}
)
_LAUNCHERS = frozenset({"torchrun", "accelerate"})
_LAUNCHING_MODULES = frozenset({"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"})
_SOURCES = "src"
"""Where many projects keep their packages, which are installed from there."""
_SEVERAL_MACHINES = ("--nnodes", "--nnode", "--num_machines", "--num-machines", "--node-rank", "--node_rank")
_PYTHON = re.compile(r"python[0-9.]*")
_WITHOUT_GRAPH = "submit it without a graph"
_CUT_BY_FLAG = re.compile(r"\{(?:sub_batch|accumulation_steps)\}")
_CUT_BY_VARIABLE = re.compile(r"COTENANT_(?:SUB_BATCH|ACCUMULATION_STEPS)")
_NAMED_SCRIPT = re.compile(r"(?<![\w./-])[\w./-]{1,200}?\.py\b")
_NAMED_MODULE = re.compile(r"(?<!\S)-m[ =]([\w.]+)")
_FILLED_IN = re.compile(r"\{(?:sub_batch|accumulation_steps|checkpoint_dir|resume)\}")


def capture_for_submit(
    session: Session, content: Mapping[str, Any], folder: Path, *, wanted: bool | None, check: Callable[[], object]
) -> CapturedJob | None:
    """Captures the script of a job that names no graph; None = there is one, or none could be captured.

    Args:
        session: Names the predictor, without which a graph would be of no use.
        content: The keys of its job file.
        folder: What relative paths in it start from.
        wanted: True = also where the script may leave files behind; None = only a Python script that imports torch and
            starts on this machine, and only where it leaves nothing behind.
        check: Raises what the scheduler refuses the job for in any case; asked before time goes into a capture.

    Raises:
        InputError: It was wanted and the job has a graph.
    """
    command = content.get("command")
    if not isinstance(command, list) or wanted is False:
        return None
    ranks, words = content.get("ranks"), [str(word) for word in command]
    command = with_ranks(words, ranks if isinstance(ranks, int) else 0)
    if content.get("graph"):
        if wanted:
            raise InputError("the job names a graph already", remedy="leave out --graph or --capture")
        return None
    directory = (folder / str(content.get("working_directory") or ".")).resolve()
    given = content.get("environment")
    environment = {str(name): str(value) for name, value in given.items()} if isinstance(given, dict) else {}
    if wanted and content.get("servers"):
        remedy = "give the --graph of one rank, with the batch of all, or leave out --capture"
        raise InputError("ranks with parameter servers cannot be captured: they would wait for them", remedy=remedy)
    if wanted:
        check()
        return _accepted_anyway(lambda: capture_here(command, directory, environment, is_allowed=True))
    if content.get("servers"):
        return None  # its ranks alone would wait for their servers
    # A rank alone waits for the others, and sees a part of the batch.
    is_too_wide = bool(ranks) and (command == words or not isinstance(ranks, int) or ranks > RANKS_CAPTURED_MAX)
    if is_too_wide or not is_torch_script(words, directory) or missing_for_capture() or not _has_predictor(session):
        return None
    check()
    tell(
        "capturing: two steps of the script on the CPU, nothing is left behind (--no-capture leaves it out)",
        style="dim",
    )
    started = with_python_of_here(command, environment)
    job = _accepted_anyway(lambda: capture_script(started, directory=directory, environment=environment))
    if job is not None:
        tell_captured(job)
    return job


def tell_not_captured(content: Mapping[str, Any], folder: Path) -> None:
    """Says of a sweep that its graph is not read off the script, where it could be.

    Args:
        content: The keys of the first task's job file.
        folder: What relative paths in it start from.
    """
    command, directory = content.get("command"), folder / str(content.get("working_directory") or ".")
    if not content.get("graph") and isinstance(command, list) and is_torch_script(command, directory):
        tell(
            "not captured: rows of a sweep may be different networks, so nothing is predicted of them; --capture reads "
            "the graph off the first, for all",
            style="yellow",
        )


def with_ranks(command: Sequence[str], ranks: int) -> list[str]:
    """Returns what starts as many ranks of a Python script as the job will have; other commands stay as they are."""
    place = _script_place(command)
    if ranks < 1 or not place:
        return list(command)
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    return [*command[:place], *launcher, *command[place:]]


def is_torch_script(command: Sequence[str], directory: Path) -> bool:
    """Tells whether a command is a Python script or module here that imports torch, and can be run as it stands."""
    if any(_FILLED_IN.search(word) for word in command):
        return False
    return any(imports_torch(script, folder) for script, folder in _scripts(command, directory))


def takes_whole_batch(command: Sequence[str], directory: Path) -> bool:
    """Tells whether nothing in a command, in the files that it names or in the Python scripts of both cuts a batch.

    Behind whatever starts a script: a shell's file, several machines, another launcher.
    """
    files = [directory / word.rpartition("=")[2] for word in command[:FILES_MAX] if not word.endswith(".py")]
    texts = [" ".join(command), *map(read_text, files)]
    if _CUT_BY_FLAG.search(texts[0]) or any(_CUT_BY_VARIABLE.search(text) for text in texts):
        return False
    modules = (name.replace(".", "/") for text in texts for name in _NAMED_MODULE.findall(text))
    named = [name for text in texts for name in _NAMED_SCRIPT.findall(text)]
    named += [f"{path}{end}" for path in modules for end in (".py", "/__main__.py")]
    places = ((folder / name, folder) for folder in (directory, directory / _SOURCES) for name in named[:FILES_MAX])
    return not any(cuts_batches(*place) for place in (*_scripts(command, directory), *places))


def _scripts(command: Sequence[str], directory: Path) -> Iterator[tuple[Path, Path]]:
    """Where the Python script of a command may be, each with the folder in which it is started."""
    command = _as_launcher(_behind_wrappers(command))
    place = _script_place(command)
    files = _script_files(command[place:]) if place else _launched_files(command)
    is_module = bool(place) and command[place] == "-m"
    folders = (directory, directory / _SOURCES) if is_module else (directory,)
    return ((folder / name, folder) for folder in folders for name in files)


def _script_place(command: Sequence[str]) -> int:
    """Place of the script, or of `-m`, in the words of a Python; 0 = it runs something else."""
    if not command or not _PYTHON.fullmatch(PurePath(command[0]).name):
        return 0
    place = next((number for number, word in enumerate(command) if number and not _is_flag(command, number)), 0)
    return 0 if place and command[place].startswith("-") and command[place] != "-m" else place


def _is_flag(command: Sequence[str], place: int) -> bool:
    """Whether a word behind a Python is a flag that starts no other program, or the value of one: `-W ignore`."""
    word = command[place]
    return word in _PYTHON_FLAGS or word.startswith(_PYTHON_VALUES) or command[place - 1] in _PYTHON_VALUES


def _behind_wrappers(command: Sequence[str]) -> Sequence[str]:
    """What a command starts that only prepares its environment, from the first Python or script on; else itself."""
    if not command or PurePath(command[0]).name not in _WRAPPERS:
        return command
    starts = (
        number
        for number, word in enumerate(command)
        if number
        and (word.endswith(".py") or _PYTHON.fullmatch(PurePath(word).name) or PurePath(word).name in _LAUNCHERS)
    )
    return command[next(starts, 0) :]


def _as_launcher(command: Sequence[str]) -> Sequence[str]:
    """The same as one word for a launcher that is started as a module: `python -m torch.distributed.run`."""
    place = _script_place(command)
    module = command[place + 1] if place and len(command) > place + 1 and command[place] == "-m" else ""
    return ["torchrun", *command[place + 2 :]] if module in _LAUNCHING_MODULES else command


def _script_files(words: Sequence[str]) -> Sequence[str]:
    if words[0] != "-m":
        return [words[0], f"{words[0]}/__main__.py"]
    path = words[1].replace(".", "/") if len(words) > 1 else ""
    return [f"{path}.py", f"{path}/__main__.py"] if path else []


def _launched_files(command: Sequence[str]) -> Sequence[str]:
    """A script that starts by itself, or that of a launcher on one machine: others would be waited for in vain."""
    if command and command[0].endswith(".py"):
        return [command[0]]
    is_launcher = bool(command) and PurePath(command[0]).name in _LAUNCHERS
    if not is_launcher or any(word.startswith(_SEVERAL_MACHINES) for word in command):
        return []
    return [word for word in command[1:] if word.endswith(".py")][:1]


def with_captured(content: Mapping[str, Any], job: CapturedJob) -> dict[str, Any]:
    """Returns the keys of a job file with what was captured where nothing was said.

    The steps are those of the captured batch on one GPU, or on as many ranks: with others the same data takes more or
    fewer of them.
    """
    said = content.get("settings") or {}
    settings = {**job.settings(), **said} if isinstance(said, dict) else said
    keys = job.progress_keys()
    if _difference(content, job.batch_size, job.processes):
        keys.pop("steps", None)
    return {**keys, **content, "settings": settings}


def without_foreign_steps(
    known: Mapping[str, Any], changes: Mapping[str, Any], job: Mapping[str, Any], job_file: Path
) -> dict[str, Any]:
    """Returns the keys of a job without steps that a capture found planned, where they are another job's.

    Args:
        known: The keys of its file.
        changes: Those that flags, and a command behind the file, state.
        job: Both together.
        job_file: May be a captured one.
    """
    steps, batch_size, processes = read_planned_steps(job_file)
    difference = _difference(job, batch_size, processes)
    if job.get("ranks", 1) != 1:
        difference = f"{job['ranks']} ranks"
    if job.get("command") != known.get("command"):
        difference = "another command"
    if not steps or "steps" in changes or known.get("steps") != steps or not difference:
        return dict(job)
    tell(
        f"note: the {steps} steps of {job_file} are those that were planned as it was captured, with batch "
        f"{batch_size}, and this job has {difference}: its steps are unknown until --steps states them",
        style="yellow",
    )
    return {name: value for name, value in job.items() if name != "steps"}


def _difference(content: Mapping[str, Any], batch_size: int, processes: int) -> str:
    """Says what lets the data of a job take more or fewer steps than was captured; empty = nothing."""
    settings = content.get("settings")
    batch = settings.get("batch_size", batch_size) if isinstance(settings, dict) else batch_size
    if batch != batch_size:
        return f"batch {batch}"
    if (gpus := str(content.get("gpus", 1))) not in ("1", str(processes)):
        return f"{gpus} GPUs"
    return "several numbers of GPUs" if content.get("allowed_gpus") else ""


def _has_predictor(session: Session) -> bool:
    settings = session.settings
    channel = open_channel(settings.channel_options(settings.predictor))
    return is_serving(channel, timeout_s=PREDICTOR_TIMEOUT_S)


def _accepted_anyway(capture: Callable[[], CapturedJob]) -> CapturedJob | None:
    """Without a graph the job is accepted all the same, and measured instead."""
    try:
        return capture()
    except OverlayRefusedError as error:
        tell(f"not captured: {error.message}; --capture runs two steps of it all the same", style="yellow")
    except (NotCapturedError, ProgramError) as error:
        tell(f"{error.message}; the job is accepted without a graph, and measured instead", style="yellow")
        # Where that is no remedy the job is about to fail as its capture did.
        if error.remedy and _WITHOUT_GRAPH not in error.remedy:
            tell(f"  remedy: {error.remedy}", style="yellow")
    return None
