"""A calibration as an ordinary machine gives it."""

from __future__ import annotations

from cotenant.device_calibration import Anchor, DeviceCalibration, PrecisionRates
from predictor_service.features.anchor_networks import AnchorNetwork

NOW_MS = 1_760_000_000_000


def anchor_of(
    network: AnchorNetwork, *, step_ms: float, memory_peak_bytes: int = 100 << 20, busy_ratio: float = 1.0
) -> Anchor:
    """What was measured of a network of the zoo."""
    return Anchor(
        network=network.network,
        graph_sha256=network.graph_sha256,
        batch_size=network.batch_size,
        optimizer=network.optimizer,
        step_ms=step_ms,
        memory_peak_bytes=memory_peak_bytes,
        utilization_ratio=busy_ratio,
    )


def calibration(*, slower: float = 1.0, device: str = "cpu-standin") -> DeviceCalibration:
    """What was measured of a device whose steps take `slower` times as long as in the training set."""
    return DeviceCalibration(
        device=device,
        measured_at_ms=NOW_MS - 60_000,
        context_bytes=96_000_000,
        workspace_bytes=8_000_000,
        rates={"fp32": PrecisionRates(matmul_flops_per_s=50e9 / slower, convolution_flops_per_s=30e9 / slower)},
        copy_bytes_per_s=10e9 / slower,
        launch_ms=0.02,
        host_steps_per_s=2_000 / slower,
        anchors=tuple(
            Anchor(
                network=name,
                graph_sha256=name[0].encode().hex() * 32,
                batch_size=32,
                step_ms=step_ms * slower,
                step_spread_ratio=0.04,
                utilization_ratio=0.98,
                memory_peak_bytes=100_000_000,
                optimizer="momentum",
            )
            for name, step_ms in (("lenet", 2.2), ("mlp", 9.8), ("gru", 5.0))
        ),
        driver="none",
        framework="torch-2.13.0",
    )
