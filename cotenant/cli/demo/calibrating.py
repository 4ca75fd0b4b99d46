"""The demo's wait for the agent's calibration of its devices, and what it shows of it."""

from __future__ import annotations

from typing import Any, Final

from cotenant import quantities, system_clock
from cotenant.client import SchedulerClient
from cotenant.device_calibration import NOT_YET
from cotenant.v1 import resources_pb2

CALIBRATION_WAIT_MS: Final = 90_000
_LOOK_EVERY_MS: Final = 250


def wait_for_calibration(client: SchedulerClient) -> tuple[resources_pb2.DeviceCalibration | None, str]:
    """Waits until the inventory has a calibration, 90 s at most; returns it, else None and why there is none."""
    deadline_ms = system_clock.steady_ms() + CALIBRATION_WAIT_MS
    while True:
        gpus = [gpu for node in client.list_nodes() for gpu in node.gpus]
        found = next((gpu.calibration for gpu in gpus if gpu.HasField("calibration")), None)
        causes = {gpu.not_calibrated for gpu in gpus} - {"", NOT_YET}
        if found is not None:
            return found, ""
        if causes or system_clock.steady_ms() > deadline_ms:
            return None, min(causes, default=f"it was not finished within {CALIBRATION_WAIT_MS // 1000} s")
        system_clock.wait_ms(_LOOK_EVERY_MS)


def calibration_lines(calibration: resources_pb2.DeviceCalibration) -> list[str]:
    """Returns what was measured, in a few lines."""
    anchors = ", ".join(
        f"{anchor.network} {quantities.format_ms(anchor.step_ms)} a step" for anchor in calibration.anchors
    )
    rates = next(iter(calibration.rates), resources_pb2.CalibratedRates())
    busy = quantities.format_percent(_busy_ratio(calibration))
    lines = [
        anchors,
        f"they never wait for input and kept the device busy {busy} of the time",
        f"{rates.matmul_flops_per_s / 1e9:.0f} GFLOP/s in matrix products, "
        f"{rates.convolution_flops_per_s / 1e9:.0f} in convolutions, "
        f"{calibration.copy_bytes_per_s / 1e9:.1f} GB/s in copies; "
        f"context {quantities.format_gib(calibration.context_bytes)}",
    ]
    if calibration.head_start_ms:
        ahead = quantities.format_ms(calibration.head_start_ms)
        lines.append(f"a job that waited for input has {ahead} of computing beyond its share, saved up in the wait")
    if calibration.pairs:
        lines.append(f"two together: {', '.join(_pair_text(pair) for pair in calibration.pairs)}")
    if calibration.foreign_load:
        lines.append("others used the device meanwhile: predictions have wider ranges")
    return lines


def calibration_facts(calibration: resources_pb2.DeviceCalibration | None, cause: str, took_ms: int) -> dict[str, Any]:
    """Returns the same for the report, with stable keys."""
    facts: dict[str, Any] = {"calibrated": calibration is not None, "cause": cause, "waited_ms": took_ms}
    if calibration is not None:
        facts["foreign_load"] = calibration.foreign_load
        facts["busy_ratio"] = _busy_ratio(calibration)
        facts["head_start_ms"] = calibration.head_start_ms
        facts["speed_wander_ratio"] = calibration.speed_wander_ratio
        facts["pairs"] = [
            {
                "victim": pair.victim,
                "other": pair.other,
                "input_wait_ratio": pair.input_wait_ratio,
                "other_input_wait_ratio": pair.other_input_wait_ratio,
                "slowdown_ratio": pair.slowdown_ratio,
            }
            for pair in calibration.pairs
        ]
        facts["anchors_step_ms"] = {anchor.network: anchor.step_ms for anchor in calibration.anchors}
        facts["anchors_spread_ratio"] = {each.network: each.step_spread_ratio for each in calibration.anchors}
    return facts


def _pair_text(pair: resources_pb2.CalibrationPair) -> str:
    waiting = " where both wait" if pair.input_wait_ratio else ""
    return f"{pair.victim} lost {quantities.format_percent(pair.slowdown_ratio)} with {pair.other}{waiting}"


def _busy_ratio(calibration: resources_pb2.DeviceCalibration) -> float:
    return max((anchor.utilization_ratio for anchor in calibration.anchors), default=0.0)
