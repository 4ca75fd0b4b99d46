"""RecordMeasurementWindows: translate, keep what may be kept, return why the rest is not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from cotenant.system_clock import now_ms
from cotenant.v1 import prediction_pb2, resources_pb2
from predictor_service.errors import CallerError, invalid_field
from predictor_service.features.devices import find_device_type
from predictor_service.grpc_api.translate_requests import job_settings
from predictor_service.profile_store.measurement_window import MeasuredJob, MeasurementWindow, StoredMeasurementWindow
from predictor_service.profile_store.store import ProfileStore

WINDOWS_MAX: Final = 1_000
_ID_CHARACTERS_MAX: Final = 64


def record_windows(
    request: prediction_pb2.RecordMeasurementWindowsRequest,
    store: ProfileStore,
    learn: Callable[[Iterable[StoredMeasurementWindow]], None],
) -> prediction_pb2.RecordMeasurementWindowsResponse:
    """Answers one request.

    Args:
        request: What was measured.
        store: Keeps it.
        learn: Called with what is new in the store.

    Raises:
        InvalidRequestError: More than 1,000 windows.
        StoreFullError: The disk takes no more; nothing of the request is kept, so it may be sent again.
    """
    if len(request.measurement_windows) > WINDOWS_MAX:
        raise invalid_field(
            "measurement_windows", f"{len(request.measurement_windows)} of them", f"send at most {WINDOWS_MAX}"
        )
    windows, refused = [], list[tuple[str, str]]()
    for message in request.measurement_windows:
        try:
            windows.append(_window(message))
        except CallerError as error:
            refused.append((message.window_id, f"its settings are refused ({type(error).__name__})"))
    at_ms = now_ms()
    added = store.add(windows, at_ms)
    learn([StoredMeasurementWindow(window=window, at_ms=at_ms) for window in added.new])
    for _, reason in refused:
        store.count_refused(reason)
    return prediction_pb2.RecordMeasurementWindowsResponse(
        recorded=added.recorded,
        already_recorded=added.repeated,
        refused=[
            prediction_pb2.RefusedMeasurementWindow(window_id=window_id[:_ID_CHARACTERS_MAX], reason=reason)
            for window_id, reason in (*refused, *added.refused)
        ],
    )


def _window(message: resources_pb2.MeasurementWindow) -> MeasurementWindow:
    job = _job(message.job)
    device = find_device_type(message.device)
    return MeasurementWindow(
        window_id=message.window_id,
        campaign=message.campaign,
        device=device.name if device else "",
        job=job,
        others=tuple(_job(other) for other in message.co_located_jobs),
        micro_batch_size=message.micro_batch_size or job.settings.global_batch_size,
        steps=message.steps,
        window_ms=message.window_ms,
        utilization_ratio=message.utilization_ratio if message.HasField("utilization_ratio") else None,
        sm_activity_ratio=message.sm_activity_ratio if message.HasField("sm_activity_ratio") else None,
        memory_peak_bytes=message.memory_peak_bytes if message.HasField("memory_peak_bytes") else None,
        power_watts=message.power_watts if message.HasField("power_watts") else None,
        quality_flags=tuple(sorted(message.quality_flags)),
        under_mps=message.under_mps,
    )


def _job(message: resources_pb2.MeasuredJob) -> MeasuredJob:
    return MeasuredJob(graph_sha256=message.graph_sha256, settings=job_settings(message.settings))
