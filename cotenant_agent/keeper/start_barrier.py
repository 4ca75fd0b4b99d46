"""Between a shim and a job that was started early: the job says that it is prepared, the shim gives the word to begin.

The job, or each rank of it, inherits one end of a socket, whose number COTENANT_GO tells. It sends a word when it has
done what needs neither a device nor a checkpoint, and receives one JSON object: `environment`, the variables that have
other values than at its start, and `argv`, its arguments, where they have. Like the shim this needs the standard
library only.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any

GO_VARIABLE = "COTENANT_GO"
WORDS_BYTES_MAX = 32_768
"""Of the word to begin: one message, which a socket takes whole or not at all."""
_PREPARED = b"prepared"


class StartBarrier:
    """The shim's side of one process; made before that is forked."""

    def __init__(self) -> None:
        self._shims, self._jobs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._shims.setblocking(False)
        self.is_prepared = self.is_open = False

    @property
    def environment(self) -> dict[str, str]:
        """What the job finds in its environment."""
        return {GO_VARIABLE: str(self._jobs.fileno())}

    def leave_to_job(self) -> None:
        """In the job's process: keep its end over the start of its program."""
        os.set_inheritable(self._jobs.fileno(), True)

    def close_jobs_end(self) -> None:
        """In the shim, once the job was forked."""
        self._jobs.close()

    def look_for_prepared(self) -> bool:
        """Whether the job has said, since the last look, that it is prepared."""
        if self.is_prepared:
            return False
        try:
            self.is_prepared = self._shims.recv(len(_PREPARED)) == _PREPARED
        except OSError:
            return False
        return self.is_prepared

    def open(self, words: dict[str, Any]) -> None:
        """Let the job begin, prepared or not; what its socket does not take now is tried again."""
        content = json.dumps({name: words[name] for name in ("environment", "argv") if name in words}).encode()
        try:
            self.is_open = self._shims.send(content) == len(content)
        except BlockingIOError:
            return
        except OSError:
            # The job has ended, or does not listen: its end, or its lease, is looked after as any other's.
            self.is_open = True


class StartBarriers:
    """Those of all ranks, which are prepared when the last one is; a job without ranks has one.

    Args:
        ranks: How many processes wait for the word; 0 = none, the job was not started early.
    """

    def __init__(self, ranks: int) -> None:
        self._of_ranks = [StartBarrier() for _ in range(ranks)]
        self._is_told = False

    def of(self, rank: int) -> StartBarrier | None:
        """That of one rank, as it counts on this node."""
        return self._of_ranks[rank] if self._of_ranks else None

    def close_jobs_ends(self) -> None:
        """In the shim, once all were forked."""
        for barrier in self._of_ranks:
            barrier.close_jobs_end()

    @property
    def are_closed(self) -> bool:
        """Whether a rank still has to be given the word."""
        return not all(barrier.is_open for barrier in self._of_ranks)

    @property
    def are_awaited(self) -> bool:
        """Whether all ranks wait for the word and nothing else."""
        return self.are_closed and all(barrier.is_prepared for barrier in self._of_ranks)

    def look_for_prepared(self) -> bool:
        """Whether all ranks have said that they are prepared, and this was not told yet."""
        for barrier in self._of_ranks:
            barrier.look_for_prepared()
        return not self._is_told and bool(self._of_ranks) and all(one.is_prepared for one in self._of_ranks)

    def note_told(self) -> None:
        """The caller that gives the word knows that all are prepared."""
        self._is_told = True

    def open(self, words: dict[str, Any]) -> None:
        """Let all ranks begin."""
        for barrier in self._of_ranks:
            if not barrier.is_open:
                barrier.open(words)
