"""Seals on the files by which agent and shim talk, where a job could write to them; standard library only.

A job without a view of its own that runs as the agent's user can write every file of the agent. The two then share a
key that only their memories hold: what is not sealed with it is no word of the other. The key dies with the agent. A
later agent of the same user cannot be told from a job; from then on the shim believes what it reads, and the agent an
end only once the shim is gone.
"""

from __future__ import annotations

import json
import os

# hashlib, which documents it, would add half to the memory of a shim.
from _blake2 import blake2b
from collections.abc import Mapping

from cotenant_agent.keeper.namespaces import control_process

KEY_BYTES = 32
SEALED = "sealed"
"""Argument of a shim that finds a key on its standard input, and who has the other copy."""
_FIELD = "seal"
_PR_SET_DUMPABLE = 4


def hide_memory() -> None:
    """Let no process of this one's user read its memory, where keys are; raises OSError."""
    control_process(_PR_SET_DUMPABLE, 0)


class Seal:
    """The key of one attempt."""

    def __init__(self, key: bytes) -> None:
        self.key = key

    @classmethod
    def draw(cls) -> Seal:
        """A key that cannot be guessed."""
        return cls(os.urandom(KEY_BYTES))

    def put_on(self, file_name: str, record: Mapping[str, object]) -> dict[str, object]:
        """The record with its seal, which holds in a file of that name only."""
        return {**record, _FIELD: self._digest(file_name, record)}

    def is_on(self, file_name: str, record: Mapping[str, object]) -> bool:
        """Whether a holder of the key has put it on this very record."""
        return record.get(_FIELD) == self._digest(file_name, record)

    def introduce(self, pid: int, start_ticks: int) -> bytes:
        """What a shim is told of its agent on its standard input."""
        return self.key + f"{pid} {start_ticks}".encode()

    def _digest(self, file_name: str, record: Mapping[str, object]) -> str:
        fields = {name: value for name, value in record.items() if name != _FIELD}
        content = json.dumps([file_name, fields], sort_keys=True).encode("utf-8", "surrogatepass")
        return blake2b(content, key=self.key, digest_size=KEY_BYTES).hexdigest()
