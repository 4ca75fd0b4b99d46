"""A small file next to the database: at this event the policy is late, and may never answer.

A program whose policy does not return can store no fact, and the next program would ask the policy again. So another
thread writes this file. It is deleted before anything follows from an answer that comes late.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from pathlib import Path

from scheduler_service.adapters.storage.private_files import create_private, sync_folder
from scheduler_service.core.codec import decode_event, encode_event
from scheduler_service.core.errors import CodecError
from scheduler_service.core.policy_events import PolicySilenced

_log = logging.getLogger(__name__)

_NAME = "silent_policy.json"
_BYTES_MAX = 16_384


class SilenceMarker:
    """The marker of one state.

    Args:
        state_dir: Where it lies.
        state_id: Of the state; that of another one says nothing.
    """

    def __init__(self, state_dir: Path, state_id: str) -> None:
        self._path = state_dir / _NAME
        self._state_id = state_id
        self._sequence = 0
        self._is_marked = False

    def begin(self, sequence: int) -> None:
        """Name the event that is handled next."""
        self._sequence = sequence

    def mark(self, words: str) -> None:
        """Say durably that the policy is late upon that event; what the disk does not take is logged."""
        # Of an event that was not handled to its end nothing was carried out, however often the policy had answered.
        silence = PolicySilenced(at_ms=0, sequence=self._sequence, answers=0, words=words)
        self._is_marked = True
        content = json.dumps({"state_id": self._state_id, "silence": encode_event(silence)}).encode()
        arriving = self._path.with_suffix(".new")
        try:
            descriptor = create_private(arriving, flags=os.O_CREAT | os.O_TRUNC)
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(descriptor)
            arriving.replace(self._path)
            sync_folder(self._path.parent)
        except OSError as error:
            _log.warning("silence_not_marked", extra={"reason": str(error)})

    def read(self) -> PolicySilenced | None:
        """Return what it says of this state; None = nothing that can be read."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError, CodecError):
            with self._path.open("rb") as stream:
                content = json.loads(stream.read(_BYTES_MAX))
            silence = decode_event(content["silence"])
            if content["state_id"] == self._state_id and isinstance(silence, PolicySilenced):
                return silence
        return None

    def unmark(self) -> None:
        """Take that back: it has answered."""
        if not self._is_marked:
            return
        self._is_marked = False
        try:
            self._path.unlink(missing_ok=True)
            sync_folder(self._path.parent)
        except OSError as error:
            _log.warning("silence_not_marked", extra={"reason": str(error)})
