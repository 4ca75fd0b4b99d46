"""The version that answers now; swapped between requests, never within one."""

from __future__ import annotations

import logging
import threading

from predictor_service.errors import ModelError
from predictor_service.registry.served_version import ServedVersion
from predictor_service.registry.version_store import VersionStore

_logger = logging.getLogger(__name__)


class VersionHolder:
    """Keeps the current version in memory.

    Args:
        store: Where versions lie.
    """

    def __init__(self, store: VersionStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._served: ServedVersion | None = None
        self._refused = ("", "")

    def current(self) -> ServedVersion | None:
        """The version to answer with; None when none was ever loaded."""
        return self._served

    def reload(self) -> str | None:
        """Loads the version that the store points at, if it is another one, and swaps it in.

        Returns:
            Its name; None when the store has none. A version that cannot be trusted leaves the old one in place.
        """
        with self._lock:
            name = self._store.current()
            if name is not None and (self._served is None or self._served.version != name):
                self._serve(name)
            return self._served.version if self._served else None

    def _serve(self, name: str) -> None:
        """Loads a version; why it cannot be trusted is logged once, although it is tried every few seconds."""
        try:
            self._served = self._store.load(name)
            self._refused = ("", "")
        except ModelError as error:
            if (name, str(error)) != self._refused:
                _logger.error("version_refused", extra={"model_version": name, "reason": str(error)})
            self._refused = (name, str(error))
