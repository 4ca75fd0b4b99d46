"""Where everything lies on disk. The agent keeps nothing in memory that it could not read here again.

STATE/                      0711
  agent.lock                one agent at a time
  cluster.json              which cluster this node belongs to, and the newest that it saw of it
  jobs/<job>.<attempt>.<cluster>/  0700, the agent's: lock spec.json state.json lease.json stop.json pause.json
                            paused.json prepared.json go.json ended_parts.json ranks_done.json out.log
                            out.rank-<rank>.log exit.json stored
  run/<job>.<attempt>.<cluster>/   0700, the job's user: progress.sock, progress.json, default working directory
  checkpoints/<cluster>/<job>/<fence>/  0700, the job's user; may be on shared storage (checkpoint_dir)

Without a scheduler that says which cluster it serves, <cluster> is left out everywhere.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from cotenant_agent.errors import CommandRefusedError, OperatorError, StateDirectoryBusyError
from cotenant_agent.records import AttemptKey
from cotenant_agent.storage.durable_files import flush_directory

LOCK_NAME = "agent.lock"
_JOB_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_INCARNATION_ID = re.compile(r"[0-9a-f]{32}")


def is_incarnation_id(text: str) -> bool:
    """Whether a text is the id of an incarnation, and so the name of a directory."""
    return _INCARNATION_ID.fullmatch(text) is not None


def is_job_id(text: str) -> bool:
    """Whether a text may be the id of a job, and so the name of a directory."""
    return _JOB_ID.fullmatch(text) is not None


def checkpoint_directory(root: Path, job_id: str, fence: int, incarnation_id: str) -> Path:
    """Where this attempt alone writes its checkpoints."""
    return (root / incarnation_id if incarnation_id else root) / job_id / str(fence)


class StateDirectory:
    """The agent's directory, held exclusively from construction to `close`."""

    def __init__(self, root: Path, checkpoint_root: Path | None = None) -> None:
        self.root = root.absolute()
        self.jobs = self.root / "jobs"
        self.run = self.root / "run"
        self.cluster = self.root / "cluster.json"
        self.checkpoints = (checkpoint_root or self.root / "checkpoints").absolute()
        try:
            for directory, mode in (
                (self.root, 0o711),
                (self.jobs, 0o700),
                (self.run, 0o711),
                (self.checkpoints, 0o711),
            ):
                directory.mkdir(parents=True, exist_ok=True)
                directory.chmod(mode)
        except OSError as error:
            raise OperatorError(f"cannot use the state directory {self.root}: {error}; choose --state-dir") from error
        self._lock = os.open(self.root / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
        if not try_lock(self._lock):
            os.close(self._lock)
            raise StateDirectoryBusyError(f"another agent uses {self.root}; give each agent its own --state-dir")

    def close(self) -> None:
        """Let another agent have the directory."""
        os.close(self._lock)

    def attempts(self) -> Iterator[AttemptDirectory]:
        """Every attempt on disk, by name."""
        for path in sorted(self.jobs.iterdir()):
            if path.is_dir() and not path.name.startswith("."):
                yield AttemptDirectory(path)

    def create(self, key: AttemptKey) -> AttemptDirectory:
        """Make the directory of a new attempt; at most one caller ever succeeds.

        Raises:
            FileExistsError: this attempt was started before.
            CommandRefusedError: the job's name cannot be a file name.
        """
        if not is_job_id(key.job_id):
            raise CommandRefusedError("INVALID_JOB_ID", f"job id {key.job_id!r}: letters, digits, '.', '_', '-' only")
        if key.incarnation_id and not is_incarnation_id(key.incarnation_id):
            raise CommandRefusedError("INVALID_JOB_ID", "the incarnation of an attempt is 32 hexadecimal digits")
        path = self.jobs / key.directory_name
        path.mkdir(mode=0o700)
        flush_directory(self.jobs)
        return AttemptDirectory(path)

    def highest_fence(self, job_id: str, incarnation_id: str = "") -> int:
        """Highest fence under which this job of this cluster was ever started here; 0 = never."""
        job = checkpoint_directory(self.checkpoints, job_id, 0, incarnation_id).parent
        with contextlib.suppress(OSError):
            return max((int(name) for name in os.listdir(job) if name.isdigit()), default=0)  # noqa: PTH208
        return 0

    def forget(self, attempt: AttemptDirectory) -> None:
        """Delete an attempt's directories; its checkpoints stay."""
        shutil.rmtree(self.run / attempt.path.name, ignore_errors=True)
        shutil.rmtree(attempt.path, ignore_errors=True)


class _PathBelow:
    """A path in an attempt's directory, made at its first use: of most attempts few are ever asked for."""

    def __init__(self, file_name: str) -> None:
        self._file_name = file_name
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, directory: AttemptDirectory, owner: type) -> Path:
        path = directory.path / self._file_name
        # Found there from now on.
        vars(directory)[self._name] = path
        return path


class AttemptDirectory:
    """Paths of one attempt."""

    spec = _PathBelow("spec.json")
    state = _PathBelow("state.json")
    lease = _PathBelow("lease.json")
    stop = _PathBelow("stop.json")
    pause = _PathBelow("pause.json")
    paused = _PathBelow("paused.json")
    exit = _PathBelow("exit.json")
    stored = _PathBelow("stored")
    prepared = _PathBelow("prepared.json")
    go = _PathBelow("go.json")
    ended_parts = _PathBelow("ended_parts.json")
    ranks_done = _PathBelow("ranks_done.json")
    observed = _PathBelow("observed.json")
    log = _PathBelow("out.log")
    older_log = _PathBelow("out.log.1")
    shim_log = _PathBelow("shim.log")

    def __init__(self, path: Path) -> None:
        self.path = path

    def log_files(self, name: str = "") -> tuple[Path, Path]:
        """The two files of the output of one process, older first; of the job's first one without a name."""
        newest = self.path / name if name else self.log
        return newest.with_name(f"{newest.name}.1"), newest

    def is_unkept(self) -> bool:
        """Whether no shim lives."""
        with self.taken() as is_free:
            return is_free

    @contextlib.contextmanager
    def taken(self) -> Iterator[bool]:
        """Try to hold the attempt's lock; yields whether no shim lives (and none can start the job now)."""
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            yield try_lock(descriptor)
        finally:
            os.close(descriptor)


def try_lock(descriptor: int) -> bool:
    """Take an exclusive lock without waiting."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
