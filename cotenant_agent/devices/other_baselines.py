"""The import of interpreters of other environments than the agent's, which jobs run; measured once each, beside them.

Until one is known, and where it has no framework, its jobs count from the agent's own. Only what was started as a job
is run here, as the same user.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

from cotenant_agent.devices.import_baseline import ImportBaseline, has_framework, measure_baseline
from cotenant_agent.errors import DeviceError

_log = logging.getLogger(__name__)

INTERPRETERS_MAX: Final = 16
"""That are looked at in the life of an agent."""
_FILES_MAX: Final = 64
_FILES: Final = "standin_baseline_*.json"
_PYTHON: Final = re.compile(r"python[0-9.]*")
_ENDING_S_MAX: Final = 10.0


class OtherBaselines:
    """Finds out what other interpreters hold that have imported the framework; one at a time.

    Args:
        state_directory: Where the figures are kept.
    """

    def __init__(self, state_directory: Path) -> None:
        self._directory = state_directory
        self._lock = threading.Lock()
        self._found: dict[str, ImportBaseline | None] = {}
        self._thread: threading.Thread | None = None
        self._process: subprocess.Popen[str] | None = None
        self._is_closed = False

    def of(self, executable: str) -> ImportBaseline | None:
        """Return the baseline of an interpreter; None = the agent's own counts, now or for good. Returns at once.

        Args:
            executable: What a job runs, by its path; empty = not to be run here.
        """
        with self._lock:
            is_due = executable not in self._found and len(self._found) < INTERPRETERS_MAX and not self._is_closed
            if is_due and self._thread is None and _is_other_python(executable):
                self._found[executable] = None
                self._thread = threading.Thread(target=self._measure, args=(executable,), daemon=True)
                self._thread.start()
            return self._found.get(executable)

    def is_idle(self) -> bool:
        """Return whether none is being measured."""
        return self._thread is None

    def close(self) -> None:
        """End the one that is being measured, with all that it has started; none begins any more."""
        with self._lock:
            self._is_closed = True
            thread, process = self._thread, self._process
        if process is not None:
            _end(process)
        if thread is not None:
            thread.join(_ENDING_S_MAX)

    def _measure(self, executable: str) -> None:
        found = None
        try:
            if has_framework(executable, self._note):
                found = measure_baseline(
                    self._directory, executable, kept_name=_kept_name(executable), on_start=self._note
                )
                self._forget_oldest()
        except (DeviceError, OSError, ValueError) as error:
            _log.info("other_import_unknown", extra={"executable": executable, "reason": str(error)})
        finally:
            with self._lock:
                self._found[executable], self._thread, self._process = found, None, None

    def _note(self, process: subprocess.Popen[str]) -> None:
        """Let a process that was begun be ended with the agent, and give way to jobs."""
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, process.pid, 19)
        with self._lock:
            self._process, is_closed = process, self._is_closed
        if is_closed:
            _end(process)

    def _forget_oldest(self) -> None:
        kept = sorted(self._directory.glob(_FILES), key=lambda path: path.stat().st_mtime_ns)
        for path in kept[:-_FILES_MAX]:
            path.unlink(missing_ok=True)


def _is_other_python(executable: str) -> bool:
    path, own = Path(executable), Path(sys.executable)
    # The links of one environment differ by their folder only from those of another one of the same Python.
    is_own = path.parent == own.parent and path.exists() and path.samefile(own)
    return path.is_absolute() and _PYTHON.fullmatch(path.name) is not None and not is_own


def _kept_name(executable: str) -> str:
    return f"standin_baseline_{hashlib.sha256(executable.encode()).hexdigest()[:16]}.json"


def _end(process: subprocess.Popen[str]) -> None:
    # Of one that was collected the number may be another's by now.
    if process.returncode is None:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)  # a session of its own
