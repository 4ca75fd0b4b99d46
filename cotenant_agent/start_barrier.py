"""Between a shim and a job that was started early: the job says that it is prepared, the shim gives the word to begin.

The job inherits one end of a socket, whose number COTENANT_GO tells. It sends a word when it has done what needs
neither a device nor a checkpoint, and receives one JSON object: `environment`, the variables that have other values
than at its start, and `argv`, its arguments, where they have. Like the shim this needs the standard library only.
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
    """The shim's side; made before the job is forked."""

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
