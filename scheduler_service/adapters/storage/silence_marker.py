"""A small file next to the database: at this event the policy is late, and may never answer.

A program whose policy does not return can store no fact, and the next program would ask the policy again. So another
thread writes this file. It is deleted before anything follows from an answer that comes late. For a policy that was
stopped it stays until the fact itself is stored.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path

from cotenant.folder_sync import sync_folder
from scheduler_service.adapters.storage.private_files import create_private
from scheduler_service.core.codec import decode_event, encode_event
from scheduler_service.core.errors import CodecError
from scheduler_service.core.policy_events import PolicySilenced

_log = logging.getLogger(__name__)

_NAME = "silent_policy.json"
_BYTES_MAX = 16_384


class SilenceMarker:
    """The marker of one state; used by the thread of the engine and by the one that watches it.

    Args:
        state_dir: Where it lies.
        state_id: Of the state; that of another one says nothing.
    """

    def __init__(self, state_dir: Path, state_id: str) -> None:
        self._path = state_dir / _NAME
        self._state_id = state_id
        self._sequence = 0
        self._is_marked = False
        self._turn = threading.Lock()

    def begin(self, sequence: int, unstored: Sequence[PolicySilenced] = ()) -> None:
        """Name the event that is handled next, and take back what was said of those before.

        Args:
            sequence: Of that event.
            unstored: Facts that are still to be stored: with any the marker stays.
        """
        with self._turn:
            self._sequence = sequence
            if self._is_marked and not unstored:
                self._remove()

    def mark(self, words: str) -> None:
        """Say durably that the policy is late upon the event that is handled."""
        with self._turn:
            # Of an event that was not handled to its end nothing was carried out, also of earlier answers upon it.
            self._write(PolicySilenced(at_ms=0, sequence=self._sequence, answers=0, words=words))

    def keep(self, silence: PolicySilenced) -> None:
        """Say durably what is to be stored; nothing was carried out since."""
        with self._turn:
            self._write(silence)

    def read(self) -> PolicySilenced | None:
        """Return what a program before has said of this state; None = nothing that can be read."""
        self._is_marked = True
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError, CodecError):
            with self._path.open("rb") as stream:
                content = json.loads(stream.read(_BYTES_MAX))
            silence = decode_event(content["silence"])
            if content["state_id"] == self._state_id and isinstance(silence, PolicySilenced):
                return silence
        return None

    def _write(self, silence: PolicySilenced) -> None:
        """Write the file whole; what the disk does not take is logged."""
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

    def _remove(self) -> None:
        self._is_marked = False
        try:
            self._path.unlink(missing_ok=True)
            sync_folder(self._path.parent)
        except OSError as error:
            _log.warning("silence_not_marked", extra={"reason": str(error)})
