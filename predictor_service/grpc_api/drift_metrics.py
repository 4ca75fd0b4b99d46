"""Drift as Prometheus sees it."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge

from predictor_service.retraining.drift import DriftReport

_LABELS = ("device", "target", "version")


class DriftMetrics:
    """Gauges of the newest drift report.

    Args:
        registry: Of the service's metrics.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        prefix = "cotenant_predictor_drift"
        self._alarm = Gauge(f"{prefix}_alarm", "1 while the alarm is on.", _LABELS, registry=registry)
        self._covered = Gauge(
            f"{prefix}_covered_ratio", "Share of outcomes inside their interval.", _LABELS, registry=registry
        )
        self._promised = Gauge(
            f"{prefix}_promised_ratio", "Share of outcomes promised to be inside.", _LABELS, registry=registry
        )
        self._error = Gauge(f"{prefix}_error_ratio", "Mean relative error.", _LABELS, registry=registry)
        self._outcomes = Gauge(f"{prefix}_outcomes", "Outcomes in the window.", _LABELS, registry=registry)

    def show(self, report: DriftReport) -> None:
        """Replaces what was shown before."""
        gauges = (self._alarm, self._covered, self._promised, self._error, self._outcomes)
        for gauge in gauges:
            gauge.clear()
        for item in report.targets:
            labels = (item.device, item.target, item.model_version)
            self._alarm.labels(*labels).set(item.is_alarming)
            self._covered.labels(*labels).set(item.covered_ratio)
            self._promised.labels(*labels).set(item.promised_ratio)
            self._error.labels(*labels).set(item.error_ratio)
            self._outcomes.labels(*labels).set(item.outcomes)
