"""Which calls are repeated by gRPC itself: only those that may safely be."""

from __future__ import annotations

_REPEATABLE = {
    "cotenant.v1.SchedulingService": (
        "SubmitJob", "GetJob", "ListJobs", "CancelJob", "PauseJob", "ResumeJob", "ExplainJob", "ListNodes",
        "HoldJob", "ReleaseJob", "AlterJob", "RetryJob", "SubmitArray", "CancelArray",
        "ForgetNode", "CordonNode", "UncordonNode", "ConfirmRestore",
        "ListPolicies", "Decide",
    ),
    "cotenant.v1.PredictionService": (
        "PredictJob", "PredictPairs", "PredictMemoryRisk", "RecordOutcomes", "ListDevices", "FitLossCurve",
        "FitSpeedModel", "ListMeasuredPairs", "RecordMeasurementWindows",
    ),
}  # fmt: skip


def service_config() -> dict[str, object]:
    """Returns the gRPC service config: retries on UNAVAILABLE for repeatable methods only."""
    names = [{"service": service, "method": method} for service, methods in _REPEATABLE.items() for method in methods]
    retry = {
        "maxAttempts": 4,
        "initialBackoff": "0.1s",
        "maxBackoff": "1s",
        "backoffMultiplier": 2,
        "retryableStatusCodes": ["UNAVAILABLE"],
    }
    return {"methodConfig": [{"name": names, "retryPolicy": retry}]}
