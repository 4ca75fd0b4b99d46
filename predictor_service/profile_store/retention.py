"""Deletes what is too old, also where nothing new arrives."""

from __future__ import annotations

import logging
import sqlite3
from typing import Final

from predictor_service.errors import ServiceError
from predictor_service.outcome_journal import OutcomeJournal
from predictor_service.profile_store.store import DAY_MS, DAYS_KEPT, HOUR_MS, ProfileStore

EVERY_MS: Final = HOUR_MS
_logger = logging.getLogger(__name__)


class Retention:
    """Deletes once an hour.

    Args:
        store: Keeps profiles for `days`.
        journal: Predictions and outcomes go as early; where no profile is kept, after the usual time.
        days: As given to the store.
    """

    def __init__(self, store: ProfileStore, journal: OutcomeJournal, days: int) -> None:
        self._store = store
        self._journal = journal
        self._kept_ms = (days or DAYS_KEPT) * DAY_MS
        self._due_ms = 0

    def look(self, now_ms: int) -> None:
        """Deletes, if an hour has passed; a disk that refuses is logged and tried again."""
        if now_ms < self._due_ms:
            return
        self._due_ms = now_ms + EVERY_MS
        try:
            self._store.prune(now_ms)
            self._journal.forget(before_ms=now_ms - self._kept_ms)
        except (ServiceError, sqlite3.Error) as error:
            _logger.error("old_profiles_not_deleted", extra={"reason": str(error)})
