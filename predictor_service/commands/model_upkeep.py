"""What a service does about its models while it serves: reports stale ones, retrains, watches drift."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Sequence
from typing import Final

from prometheus_client import Gauge

from cotenant import system_clock
from predictor_service.errors import PredictorError
from predictor_service.grpc_api.drift_metrics import DriftMetrics
from predictor_service.outcome_journal import OutcomeJournal
from predictor_service.profile_store.store import ProfileStore
from predictor_service.registry.staleness import learned_by_older_rules, learned_from_other_data
from predictor_service.registry.version_holder import VersionHolder
from predictor_service.retraining.datasets import hash_datasets
from predictor_service.retraining.drift import OUTCOMES_READ, measure_drift
from predictor_service.retraining.operations import RetrainingOperations
from predictor_service.retraining.schedule import HOUR_MS, ON_DRIFT, RetrainingSchedule
from predictor_service.settings import Settings

_logger = logging.getLogger(__name__)
DRIFT_EVERY_MS: Final = 60_000
_ALARM_REMEDY: Final = (
    "`cotenant retrain --from-outcomes`, which learns what all jobs share since; where its gate refuses what you trust "
    "more than the data sets, `cotenant models promote`"
)


def repeat_until(stop: threading.Event, parts: Sequence[Callable[[], None]], every_s: float) -> None:
    """Runs parts one after the other, again and again.

    A disk, a lock or a damaged file costs the part that it befalls, not the service: what stopped it is logged when it
    is another reason than before, and the part is tried again.

    Args:
        stop: Set when it is enough.
        parts: What is done in each round.
        every_s: Pause between rounds, seconds.
    """
    reasons = [""] * len(parts)
    while True:
        for place, part in enumerate(parts):
            try:
                part()
                reasons[place] = ""
            except (OSError, sqlite3.Error, PredictorError) as error:
                if str(error) != reasons[place]:
                    reasons[place] = str(error)
                    _logger.error("upkeep_failed", extra={"reason": str(error)})
        if stop.wait(every_s):
            return


class ModelUpkeep:
    """Watches the models of one service.

    Args:
        settings: Of the service.
        versions: Knows what is served.
        journal: Knows what happened.
        shown: Where the served version is shown.
        drift: Where drift is shown.
        operations: Runs retrainings.
        profiles: Knows what was measured since the last one.
    """

    def __init__(
        self,
        settings: Settings,
        versions: VersionHolder,
        journal: OutcomeJournal,
        *,
        shown: Gauge,
        drift: DriftMetrics,
        operations: RetrainingOperations,
        profiles: ProfileStore,
    ) -> None:
        self._settings = settings
        self._versions = versions
        self._journal = journal
        self._shown = shown
        self._drift = drift
        self._operations = operations
        self._profiles = profiles
        self._schedule = RetrainingSchedule(
            every_ms=settings.retrain_hours * HOUR_MS, on_drift=settings.retrain_on_drift
        )
        self._shown_version: str | None = None
        self._drift_due_ms = 0
        self._alarming: frozenset[tuple[str, str]] = frozenset()

    def check_served(self) -> None:
        """Logs why the served version is stale: older rules are retrained, for other data the log names the command."""
        served = self._versions.current()
        if served is None:
            return
        reason = learned_by_older_rules(served.manifest)
        if reason:
            _logger.warning("stale_version_retrained", extra={"model_version": served.version, "reason": reason})
            try:
                self._operations.start(from_outcomes=False, seed=None, why=reason)
            except PredictorError as error:
                _logger.error("retraining_not_started", extra={"reason": str(error)})
            return
        try:
            reason = learned_from_other_data(served.manifest, hash_datasets(self._settings.datasets))
        except PredictorError as error:
            reason = str(error)
        if reason:
            remedy = "run `cotenant retrain`, or call StartRetraining"
            _logger.warning(
                "stale_version_served", extra={"model_version": served.version, "reason": reason, "remedy": remedy}
            )

    def follow_versions(self) -> None:
        """Swaps in whatever version is promoted, by this program or another."""
        name = self._versions.reload()
        if name != self._shown_version:
            self._shown.clear()
            self._shown.labels(name).set(1)
            _logger.info("version_served", extra={"model_version": name})
            self._shown_version = name

    def watch_drift(self) -> None:
        """Measures drift once a minute, shows it, logs alarms that go on or off, and retrains where it is time."""
        steady_ms = system_clock.steady_ms()
        if steady_ms < self._drift_due_ms:
            return
        self._drift_due_ms = steady_ms + DRIFT_EVERY_MS
        report = measure_drift(self._journal.joined(OUTCOMES_READ))
        self._drift.show(report)
        alarming = {(item.device, item.target): item for item in report.targets if item.is_alarming}
        for key in sorted(alarming.keys() - self._alarming):
            item = alarming[key]
            figures = {"covered_ratio": round(item.covered_ratio, 4), "promised_ratio": item.promised_ratio}
            names = {"device": key[0], "target": key[1], "model_version": item.model_version}
            _logger.warning("drift_alarm_on", extra={**names, **figures, "remedy": _ALARM_REMEDY})
        for device, target in sorted(self._alarming - alarming.keys()):
            _logger.info("drift_alarm_off", extra={"device": device, "target": target})
        self._alarming = frozenset(alarming)
        self._retrain_when_due()

    def _retrain_when_due(self) -> None:
        """Learns from running jobs by schedule, or on an alarm only its device types; the gate decides what is served.

        Where an operator went back to an earlier version nothing is learned until one is promoted again.
        """
        measured = self._profiles.status()
        reason = self._schedule.reason_now(
            now_ms=system_clock.now_ms(),
            begun_ms=self._operations.newest_begun_ms(),
            begun_all_ms=self._operations.newest_begun_ms(of_all_types=True),
            oldest_ms=measured.oldest_ms,
            newest_ms=measured.newest_ms,
            is_alarming=bool(self._alarming),
        )
        if reason and not self._operations.was_rolled_back():
            devices = sorted({device for device, _ in self._alarming}) if reason == ON_DRIFT else []
            begun = self._operations.start(from_outcomes=True, seed=None, why=reason, devices=devices)
            _logger.info("retraining_begun", extra={"retraining_id": begun.retraining_id, "reason": reason})
