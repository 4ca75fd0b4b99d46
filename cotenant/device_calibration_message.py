"""A device's calibration between the frozen record and the contract's message."""

from __future__ import annotations

from cotenant.device_calibration import (
    FILE_BYTES_MAX,
    Anchor,
    AnchorPair,
    CalibrationError,
    DeviceCalibration,
    PrecisionRates,
)
from cotenant.device_sharing import DeviceSharing
from cotenant.job_settings import JobSettings
from cotenant.job_settings_message import settings_message, unchecked_settings
from cotenant.v1 import resources_pb2


def calibration_message(calibration: DeviceCalibration) -> resources_pb2.DeviceCalibration:
    """Return the message that states this record."""
    return resources_pb2.DeviceCalibration(
        device=calibration.device,
        measured_at_ms=calibration.measured_at_ms,
        context_bytes=calibration.context_bytes,
        workspace_bytes=calibration.workspace_bytes,
        rates=[
            resources_pb2.CalibratedRates(
                precision=_precision_number(precision),
                matmul_flops_per_s=rates.matmul_flops_per_s,
                convolution_flops_per_s=rates.convolution_flops_per_s,
            )
            for precision, rates in sorted(calibration.rates.items())
        ],
        copy_bytes_per_s=calibration.copy_bytes_per_s,
        launch_ms=calibration.launch_ms,
        host_steps_per_s=calibration.host_steps_per_s,
        anchors=[_anchor_message(anchor) for anchor in calibration.anchors],
        driver=calibration.driver,
        framework=calibration.framework,
        foreign_load=calibration.foreign_load,
        code_version=calibration.code_version,
        pairs=[_pair_message(pair) for pair in calibration.pairs],
        head_start_ms=calibration.head_start_ms,
        speed_wander_ratio=calibration.speed_wander_ratio,
        sharing=resources_pb2.DeviceSharing.ValueType(calibration.sharing),
    )


def read_calibration_message(message: resources_pb2.DeviceCalibration, now_ms: int) -> DeviceCalibration:
    """Return the record that a message states.

    Raises:
        CalibrationError: It states what cannot be.
    """
    if message.ByteSize() > FILE_BYTES_MAX:
        raise CalibrationError("calibration: larger than any", remedy="measure it with `cotenant calibrate`")
    return DeviceCalibration(
        device=message.device,
        measured_at_ms=message.measured_at_ms,
        context_bytes=message.context_bytes,
        workspace_bytes=message.workspace_bytes,
        rates={
            _precision_name(rates.precision): PrecisionRates(
                matmul_flops_per_s=rates.matmul_flops_per_s, convolution_flops_per_s=rates.convolution_flops_per_s
            )
            for rates in message.rates
        },
        copy_bytes_per_s=message.copy_bytes_per_s,
        launch_ms=message.launch_ms,
        host_steps_per_s=message.host_steps_per_s,
        anchors=tuple(_read_anchor(anchor) for anchor in message.anchors),
        driver=message.driver,
        framework=message.framework,
        foreign_load=message.foreign_load,
        code_version=message.code_version,
        pairs=tuple(_read_pair(pair) for pair in message.pairs),
        head_start_ms=message.head_start_ms,
        speed_wander_ratio=message.speed_wander_ratio,
        sharing=DeviceSharing(message.sharing),
    ).checked(now_ms)


def _anchor_message(anchor: Anchor) -> resources_pb2.CalibrationAnchor:
    settings = JobSettings(global_batch_size=anchor.batch_size, precision=anchor.precision, optimizer=anchor.optimizer)
    return resources_pb2.CalibrationAnchor(
        network=anchor.network,
        graph_sha256=anchor.graph_sha256,
        settings=settings_message(settings),
        step_ms=anchor.step_ms,
        step_spread_ratio=anchor.step_spread_ratio,
        memory_peak_bytes=anchor.memory_peak_bytes,
        utilization_ratio=anchor.utilization_ratio,
    )


def _pair_message(pair: AnchorPair) -> resources_pb2.CalibrationPair:
    return resources_pb2.CalibrationPair(
        victim=pair.victim,
        other=pair.other,
        slowdown_ratio=pair.slowdown_ratio,
        input_wait_ratio=pair.input_wait_ratio,
        other_input_wait_ratio=pair.other_input_wait_ratio,
    )


def _read_pair(message: resources_pb2.CalibrationPair) -> AnchorPair:
    return AnchorPair(
        victim=message.victim,
        other=message.other,
        slowdown_ratio=message.slowdown_ratio,
        input_wait_ratio=message.input_wait_ratio,
        other_input_wait_ratio=message.other_input_wait_ratio,
    )


def _read_anchor(message: resources_pb2.CalibrationAnchor) -> Anchor:
    settings = unchecked_settings(message.settings)
    return Anchor(
        network=message.network,
        graph_sha256=message.graph_sha256,
        batch_size=settings.global_batch_size,
        precision=settings.precision,
        optimizer=settings.optimizer,
        step_ms=message.step_ms,
        step_spread_ratio=message.step_spread_ratio,
        memory_peak_bytes=message.memory_peak_bytes,
        utilization_ratio=message.utilization_ratio,
    )


def _precision_number(precision: str) -> resources_pb2.Precision.ValueType:
    return settings_message(JobSettings(global_batch_size=1, precision=precision)).precision


def _precision_name(number: resources_pb2.Precision.ValueType) -> str:
    return unchecked_settings(resources_pb2.JobSettings(precision=number)).precision
