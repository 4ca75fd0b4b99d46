"""What a service does about its models while it serves: names stale ones, learns anew, watches drift."""

from __future__ import annotations

import logging
from typing import Final

from predictor_service.errors import PredictorError
from predictor_service.grpc_api.drift_metrics import DriftMetrics
from predictor_service.outcome_journal import OutcomeJournal
from predictor_service.registry.staleness import learned_by_older_rules, learned_from_other_data
from predictor_service.registry.version_holder import VersionHolder
from predictor_service.retraining.datasets import hash_datasets
from predictor_service.retraining.drift import OUTCOMES_READ, measure_drift
from predictor_service.retraining.operations import RetrainingOperations
from predictor_service.settings import Settings
from predictor_service.system_clock import monotonic_ms

_logger = logging.getLogger(__name__)
DRIFT_EVERY_MS: Final = 60_000


class ModelUpkeep:
    """Keeps an eye on the models of one service.

    Args:
        settings: Of the service.
        versions: Knows what is served.
        journal: Knows what happened.
        metrics: Where drift is shown.
        operations: Runs retrainings.
    """

    def __init__(
        self,
        settings: Settings,
        versions: VersionHolder,
        journal: OutcomeJournal,
        *,
        metrics: DriftMetrics,
        operations: RetrainingOperations,
    ) -> None:
        self._settings = settings
        self._versions = versions
        self._journal = journal
        self._metrics = metrics
        self._operations = operations
        self._drift_due_ms = 0
        self._alarming: frozenset[tuple[str, str]] = frozenset()

    def check_served(self) -> None:
        """Names why the served version is stale: older rules are learned anew, other data is told how to."""
        served = self._versions.current()
        if served is None:
            return
        reason = learned_by_older_rules(served.manifest)
        if reason:
            _logger.warning(
                "model version is stale: learning anew", extra={"model_version": served.version, "reason": reason}
            )
            try:
                self._operations.start(from_outcomes=False, seed=None, why=reason)
            except PredictorError as error:
                _logger.error("retraining did not start", extra={"reason": str(error)})
            return
        try:
            reason = learned_from_other_data(served.manifest, hash_datasets(self._settings.datasets))
        except PredictorError as error:
            reason = str(error)
        if reason:
            remedy = "run `cotenant retrain`, or call StartRetraining"
            _logger.warning(
                "model version is stale", extra={"model_version": served.version, "reason": reason, "remedy": remedy}
            )

    def watch_drift(self) -> None:
        """Measures drift once a minute, shows it, and logs every alarm that goes on or off."""
        now_ms = monotonic_ms()
        if now_ms < self._drift_due_ms:
            return
        self._drift_due_ms = now_ms + DRIFT_EVERY_MS
        report = measure_drift(self._journal.joined(OUTCOMES_READ))
        self._metrics.show(report)
        alarming = {(item.device, item.target): item for item in report.targets if item.is_alarming}
        for key in sorted(alarming.keys() - self._alarming):
            item = alarming[key]
            figures = {"covered_ratio": round(item.covered_ratio, 4), "promised_ratio": item.promised_ratio}
            names = {"device": key[0], "target": key[1], "model_version": item.model_version}
            _logger.warning("predictions drift: alarm on", extra={**names, **figures, "remedy": "`cotenant retrain`"})
        for device, target in sorted(self._alarming - alarming.keys()):
            _logger.info("predictions drift: alarm off", extra={"device": device, "target": target})
        self._alarming = frozenset(alarming)
