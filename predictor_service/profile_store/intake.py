"""How measurements come into the profile store: from agents as windows, from any client as outcomes of predictions."""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from predictor_service.errors import CallerError, InvalidRequestError, StoreFullError
from predictor_service.features.devices import find_device_type
from predictor_service.features.job_settings import check_settings
from predictor_service.outcome_journal import FILE_NAME as JOURNAL_FILE
from predictor_service.outcome_journal import OutcomeJournal, PredictionEntry, read_entry_settings
from predictor_service.profile_store.measurement_window import STEP_MS_MIN, MeasuredJob, MeasurementWindow, Source
from predictor_service.profile_store.store import DAYS_KEPT, FILE_NAME, ROWS_MAX, ProfileStore

OUTCOME_CAMPAIGN: Final = "outcomes"
_logger = logging.getLogger(__name__)


def open_profiles(state_dir: Path, *, rows_max: int = ROWS_MAX, days: int = DAYS_KEPT) -> ProfileStore:
    """Opens the store of a state folder; a new one begins with the outcomes that are known already.

    Args:
        state_dir: Of the service.
        rows_max: Windows kept, at least 1.
        days: Days that they are kept; 0 = none is.

    Raises:
        InvalidRequestError: A bound is out of its range.
        StoreFormatError: It was written by a newer program, or is no store.
        StoreFullError: It cannot be opened or made.
    """
    if rows_max < 1 or days < 0:
        raise InvalidRequestError(
            f"profiles_rows_max is {rows_max}, profiles_days is {days}", remedy="at least 1 row and 0 days are possible"
        )
    is_new = not (state_dir / FILE_NAME).is_file()
    store = ProfileStore(state_dir / FILE_NAME, rows_max=rows_max, days=days)
    journal = state_dir / JOURNAL_FILE
    if is_new and journal.is_file():
        with closing(OutcomeJournal(journal)) as opened:
            joined = opened.joined()
            keep_outcomes(store, joined, max((entry.at_ms for entry, _ in joined), default=0))
    return store


def keep_outcomes(store: ProfileStore, joined: Iterable[tuple[PredictionEntry, Mapping[str, Any]]], at_ms: int) -> None:
    """Keeps the outcomes from which something can be learned. A full disk is logged: the journal has the outcomes too.

    Args:
        store: Where they go.
        joined: Outcomes with their predictions.
        at_ms: Now.
    """
    windows = []
    try:
        for entry, outcome in joined:
            found = window_of_outcome(entry, outcome)
            if isinstance(found, MeasurementWindow):
                windows.append(found)
            else:
                store.count_refused(f"outcome: {found}")
        if windows:
            store.add(windows, at_ms)
    except StoreFullError as error:
        _logger.error("profiles_not_stored", extra={"count": len(windows), "reason": str(error)})


def window_of_outcome(entry: PredictionEntry, outcome: Mapping[str, Any]) -> MeasurementWindow | str:
    """Returns what an outcome measured of a job alone, or why it measured nothing that can be kept."""
    content = entry.content
    settings = read_entry_settings(content)
    if entry.kind != "job":
        return "of a pair"
    if settings is None:
        return "its prediction was kept without settings"
    if outcome.get("quality_flags"):
        return "flagged"
    step_ms, window_ms = outcome.get("step_ms_mean"), outcome.get("window_ms", 0)
    if not step_ms or not math.isfinite(step_ms) or step_ms < STEP_MS_MIN:
        return "without a step time"
    try:
        plain = check_settings(settings)
    except (CallerError, TypeError) as error:
        return f"its settings are refused ({type(error).__name__})"
    job = MeasuredJob(graph_sha256=str(content.get("graph_sha256", "")), settings=plain)
    if job.key != content.get("job_key"):
        return "its prediction was kept without all settings"
    device = find_device_type(entry.device)
    steps = max(1, round(window_ms / step_ms))
    digest = hashlib.sha256(json.dumps([entry.prediction_id, sorted(outcome.items())], default=str).encode())
    return MeasurementWindow(
        window_id=digest.hexdigest()[:32],
        campaign=OUTCOME_CAMPAIGN,
        device=device.name if device else "",
        job=job,
        micro_batch_size=plain.global_batch_size,
        steps=steps,
        window_ms=round(steps * step_ms),
        utilization_ratio=outcome.get("utilization_ratio"),
        sm_activity_ratio=outcome.get("sm_activity_ratio"),
        memory_peak_bytes=outcome.get("memory_peak_bytes"),
        source=Source.OUTCOME,
    )
