"""NVIDIA's multi-process service (MPS): a daemon of our own, in a folder of our own, for as long as it is needed.

A client that finds no daemon silently runs without one, so that nothing here shows that sharing works: mps_probe proves
it. Compute mode, clocks and limits of the card stay as they are.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from cotenant_profiler.errors import ProfilerError

CONTROL_PROGRAM = "nvidia-cuda-mps-control"
CONTROL_TIMEOUT_S = 20


class MpsDaemon:
    """The service while this object is open."""

    def __init__(self) -> None:
        program = shutil.which(CONTROL_PROGRAM)
        if program is None:
            raise ProfilerError(
                f"this machine has no {CONTROL_PROGRAM}, which comes with the user space of the driver; "
                "measure with time slicing (leave share_mode out) or install it"
            )
        self._program = program
        self._folder = Path(tempfile.gettempdir())

    @property
    def environment(self) -> dict[str, str]:
        """What makes a process a client of this daemon."""
        return {
            "CUDA_MPS_PIPE_DIRECTORY": str(self._folder / "pipe"),
            "CUDA_MPS_LOG_DIRECTORY": str(self._folder / "log"),
        }

    def server_pids(self) -> frozenset[int]:
        """Return the processes that the daemon runs on the GPU for its clients: ours, and no foreign load.

        Raises:
            ProfilerError: The daemon is gone or does not answer.
        """
        return frozenset(int(word) for word in self._control("get_server_list").split() if word.isdigit())

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="cotenant-mps-"))
        for folder in self.environment.values():
            Path(folder).mkdir()
        try:
            self._run([self._program, "-d"], "")
        except ProfilerError:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # A daemon that is gone already has nothing left to quit.
        with contextlib.suppress(ProfilerError):
            self._control("quit")
        shutil.rmtree(self._folder, ignore_errors=True)

    def _control(self, order: str) -> str:
        return self._run([self._program], f"{order}\n")

    def _run(self, command: list[str], text: str) -> str:
        try:
            ended = subprocess.run(
                command,
                input=text,
                env={**os.environ, **self.environment},
                stdout=subprocess.PIPE,
                # The daemon inherits standard error and would keep a pipe open for its whole life.
                stderr=subprocess.DEVNULL,
                text=True,
                check=True,
                timeout=CONTROL_TIMEOUT_S,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise ProfilerError(f"the multi-process service does not answer ({error})") from error
        return ended.stdout
