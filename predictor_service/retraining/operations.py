"""Retrainings that a service starts: each in a process of its own, one at a time, remembered across restarts.

The process ends with the service: it watches a pipe that closes when the service is gone, however it went. What it did
until then is either a stored version that is not served, or a promotion that is whole.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from cotenant.system_clock import now_ms
from predictor_service.errors import (
    PredictorError,
    RetrainingBusyError,
    ServiceError,
    UnknownRetrainingError,
    invalid_field,
)
from predictor_service.registry.model_registry import ModelRegistry
from predictor_service.registry.version_store import VersionStore

PROGRESS_MAX: Final = 100
REMEMBERED_MAX: Final = 100
WHY_CHARACTERS_MAX: Final = 500
TIMEOUT_S: Final = 3_600.0
_LINE_CHARACTERS_MAX: Final = 500
_GRACE_S: Final = 5.0
_logger = logging.getLogger(__name__)


class OperationState(StrEnum):
    """How a retraining stands; the names are those of the contract."""

    RUNNING = "RUNNING"
    PROMOTED = "PROMOTED"
    REFUSED = "REFUSED"
    UNCHANGED = "UNCHANGED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    INTERRUPTED = "INTERRUPTED"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrainingOperation:
    """One retraining as it is reported to callers; `finished_at_ms` is 0 while it runs, `devices` empty = all types."""

    retraining_id: str
    state: OperationState
    started_at_ms: int
    progress: tuple[str, ...] = ()
    version: str = ""
    reasons: tuple[str, ...] = ()
    finished_at_ms: int = 0
    devices: tuple[str, ...] = ()


class RetrainingOperations:
    """Starts, reports and ends retrainings; safe for many threads.

    Args:
        state_dir: Of the service.
        datasets: Folder of dataset folders.
        seed: Unless a caller gives another one.
        prepare: Called before a process starts, e.g. to write what is buffered.
        follow: Serves what was promoted; called before PROMOTED is said, so that who hears it is answered by it.
    """

    def __init__(
        self,
        state_dir: Path,
        datasets: Path,
        seed: int,
        prepare: Callable[[], None],
        follow: Callable[[], object],
    ) -> None:
        self._state_dir = state_dir
        self._datasets = datasets
        self._seed = seed
        self._prepare = prepare
        self._follow = follow
        self._folder = state_dir / "retrainings"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._known = {operation.retraining_id: operation for operation in self._read_all()}
        self._process: subprocess.Popen[str] | None = None
        self._watcher: threading.Thread | None = None
        self._cancelled = ""

    def start(
        self, *, from_outcomes: bool, seed: int | None, why: str, devices: Sequence[str] = ()
    ) -> RetrainingOperation:
        """Starts a retraining.

        Args:
            from_outcomes: Whether what running jobs taught counts.
            seed: None = that of the service.
            why: For the history.
            devices: Device types to learn, the others stay as they are served; none = all.

        Raises:
            RetrainingBusyError: Another one runs.
            InvalidRequestError: The reason is too long.
            ServiceError: The system starts no process.
        """
        if len(why) > WHY_CHARACTERS_MAX:
            raise invalid_field("why", f"{len(why)} characters", f"at most {WHY_CHARACTERS_MAX} are kept")
        self._prepare()
        with self._lock:
            if self._process is not None:
                raise RetrainingBusyError("a retraining is under way", remedy="wait for it, or cancel it")
            arguments = ["--seed", str(self._seed if seed is None else seed), "--why", why or "asked for by gRPC"]
            arguments += ["--from-outcomes"] if from_outcomes else []
            self._process = self._spawn([*arguments, *(word for name in devices for word in ("--device", name))])
            operation = RetrainingOperation(
                retraining_id=str(uuid.uuid4()),
                state=OperationState.RUNNING,
                started_at_ms=now_ms(),
                devices=tuple(devices),
            )
            self._put(operation)
            self._watcher = threading.Thread(
                target=self._watch, args=(operation.retraining_id, self._process), name="retraining", daemon=True
            )
            self._watcher.start()
        return operation

    def get(self, retraining_id: str) -> RetrainingOperation:
        """Returns the state of a retraining.

        Raises:
            UnknownRetrainingError: No such retraining, or it was so long ago that it is forgotten.
        """
        with self._lock:
            operation = self._known.get(retraining_id)
        if operation is None:
            raise UnknownRetrainingError(
                f"there is no retraining {retraining_id!r}", remedy="use the retraining_id of StartRetraining"
            )
        return operation

    def cancel(self, retraining_id: str) -> RetrainingOperation:
        """Ends a retraining and waits until it has ended.

        Raises:
            UnknownRetrainingError: As `get`.
        """
        if self.get(retraining_id).state is OperationState.RUNNING:
            self._end(retraining_id)
        return self.get(retraining_id)

    def close(self) -> None:
        """Ends what runs."""
        with self._lock:
            running = [key for key, item in self._known.items() if item.state is OperationState.RUNNING]
        for retraining_id in running:
            self._end(retraining_id)

    def newest_begun_ms(self, *, of_all_types: bool = False) -> int:
        """When the last retraining that is remembered began, also of another service on this folder; 0 = none did.

        Args:
            of_all_types: Only those count that learned every device type.
        """
        with self._lock:
            known = [*self._known.values(), *self._read_all()]
        counted = (each.started_at_ms for each in known if not (of_all_types and each.devices))
        return max(counted, default=0)

    def was_rolled_back(self) -> bool:
        """Whether an operator went back to the version that is served."""
        with closing(ModelRegistry(self._state_dir / "models", "service")) as registry:
            return registry.was_rolled_back()

    def served_version(self) -> str:
        """Name of the version that is served; empty when there is none."""
        return VersionStore(self._state_dir / "models").current() or ""

    def _end(self, retraining_id: str) -> None:
        with self._lock:
            process, watcher = self._process, self._watcher
            self._cancelled = retraining_id
        if process is None or watcher is None:
            return
        process.terminate()
        watcher.join(_GRACE_S)
        if watcher.is_alive():
            process.kill()
            watcher.join(_GRACE_S)

    def _spawn(self, more: Sequence[str]) -> subprocess.Popen[str]:
        arguments = ["--state-dir", str(self._state_dir), "--datasets", str(self._datasets), *more]
        arguments += ["--who", "service", "--output", "json", "--end-with-stdin"]
        try:
            return subprocess.Popen(
                [sys.executable, "-m", "predictor_service", "retrain", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        except OSError as error:
            raise ServiceError(
                f"a retraining cannot be started ({error.strerror})",
                remedy="check free memory and the number of processes",
            ) from error

    def _watch(self, retraining_id: str, process: subprocess.Popen[str]) -> None:
        """Follows a process to its end; its result is one line on stdout, written last and short."""
        timer = threading.Timer(TIMEOUT_S, process.kill)
        timer.daemon = True
        timer.start()
        lines: list[str] = []
        for line in process.stderr or ():
            lines = [*lines, line.strip()[:_LINE_CHARACTERS_MAX]][-PROGRESS_MAX:]
            with self._lock:
                self._put(dataclasses.replace(self._known[retraining_id], progress=tuple(lines)))
        output = process.stdout.read() if process.stdout else ""
        process.wait()
        timer.cancel()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        ended = self._ended(self.get(retraining_id), output, process.returncode)
        if ended.state is OperationState.PROMOTED:
            self._serve_promoted(ended.version)
        with self._lock:
            self._put(ended)
            self._process = None

    def _serve_promoted(self, version: str) -> None:
        """Has the new version served; where that fails the service goes on trying, so the end is told all the same."""
        try:
            self._follow()
        except (OSError, PredictorError) as error:
            _logger.error("version_not_followed", extra={"model_version": version, "reason": str(error)})

    def _ended(self, operation: RetrainingOperation, output: str, status: int) -> RetrainingOperation:
        finished_at_ms = now_ms()
        try:
            result: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
            return dataclasses.replace(
                operation,
                state=OperationState(str(result["outcome"]).upper()),
                version=result["version"],
                reasons=tuple(result["why"]),
                finished_at_ms=finished_at_ms,
            )
        except (IndexError, KeyError, ValueError):
            cancelled = self._cancelled == operation.retraining_id
            last = operation.progress[-1] if operation.progress else "it wrote nothing"
            return dataclasses.replace(
                operation,
                state=OperationState.CANCELLED if cancelled else OperationState.FAILED,
                reasons=("cancelled",) if cancelled else (f"ended with status {status}: {last}",),
                finished_at_ms=finished_at_ms,
            )

    def _put(self, operation: RetrainingOperation) -> None:
        """Keeps an operation in memory and, when its state changes, on disk; the oldest are dropped."""
        earlier = self._known.get(operation.retraining_id)
        self._known[operation.retraining_id] = operation
        if earlier is None or earlier.state is not operation.state:
            try:
                self._write(operation)
            except OSError as error:  # callers are answered from memory; a restart loses it
                extra = {"retraining_id": operation.retraining_id, "reason": str(error)}
                _logger.error("retraining_not_stored", extra=extra)
        for oldest in sorted(self._known.values(), key=lambda item: item.started_at_ms)[:-REMEMBERED_MAX]:
            del self._known[oldest.retraining_id]
            (self._folder / f"{oldest.retraining_id}.json").unlink(missing_ok=True)

    def _write(self, operation: RetrainingOperation) -> None:
        partial = self._folder / f".{operation.retraining_id}.partial"
        content = dataclasses.asdict(operation)
        if not operation.devices:  # so that a program of before reads it
            del content["devices"]
        partial.write_text(json.dumps(content) + "\n", encoding="utf-8")
        partial.replace(self._folder / f"{operation.retraining_id}.json")

    def _read_all(self) -> list[RetrainingOperation]:
        """Operations of an earlier service; one that ran then was interrupted."""
        operations = []
        for path in sorted(self._folder.glob("*.json")):
            try:
                read = json.loads(path.read_text(encoding="utf-8"))
                operation = RetrainingOperation(
                    **{**read, "state": OperationState(read["state"])}
                    | {name: tuple(read.get(name, ())) for name in ("progress", "reasons", "devices")}
                )
            except (OSError, ValueError, KeyError, TypeError):
                path.unlink(missing_ok=True)
                continue
            if operation.state is OperationState.RUNNING:
                operation = dataclasses.replace(
                    operation,
                    state=OperationState.INTERRUPTED,
                    reasons=("the service ended first",),
                    finished_at_ms=now_ms(),
                )
            operations.append(operation)
        return operations
