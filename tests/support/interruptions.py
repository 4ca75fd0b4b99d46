"""Ends a program as Ctrl-C does, and what it has started also where it is killed at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_ROOT: Final = Path(__file__).resolve().parents[2]
_STATE: Final = "COTENANT_GUARDED_STATE"
_END: Final = f"""
import os
from pathlib import Path
from tests.support.agent import end_jobs
end_jobs(Path(os.environ[{_STATE!r}]))
"""


def unwind_when_ended() -> None:
    """Lets the signals of `kill` and of a closed terminal leave by the `with` blocks that stop schedulers and jobs.

    By default they end Python at once: what it has started, in sessions of its own, goes on. Ctrl-C's is among them
    since a shell lets programs in the background ignore it. Of several signals the first counts, so that an impatient
    second one does not end the stopping.
    """
    for number in _SIGNALS:
        signal.signal(number, _leave)


@contextmanager
def ended_when_killed(state_dir: Path) -> Iterator[None]:
    """Ends what runs on a state directory once this process is gone, also by SIGKILL, as of a time limit."""
    # It waits for the end of a pipe that this process alone holds, in a group of its own: limits kill whole groups. The
    # folder is no word of its command, by which those are found that are to be ended.
    guard = subprocess.Popen(
        ["sh", "-c", 'read -r _; exec "$@"', "guard", sys.executable, "-c", _END],
        env={**os.environ, _STATE: str(state_dir)},
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        guard.kill()
        guard.communicate()


def _leave(number: int, frame: FrameType | None) -> None:
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + number)
