"""How the steps of a job are configured, checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from cotenant.job_key import job_key, job_keys
from predictor_service.errors import InvalidBatchError, InvalidSettingError

BATCH_MAX: Final = 1_000_000
MODES: Final = ("train", "infer")
PRECISIONS: Final = ("fp32", "tf32", "bf16", "fp16")
OPTIMIZERS: Final = ("sgd", "momentum", "adam", "adamw")
OPTIMIZER_SLOTS: Final[Mapping[str, int]] = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}
"""Numbers kept per parameter beside weight and gradient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """Settings of a job as every estimate needs them.

    Attributes:
        batch_size: Samples per optimizer step, 1 to 1,000,000.
        mode: train | infer.
        precision: fp32 | tf32 | bf16 | fp16; half precisions mean mixed training with 32-bit weights.
        optimizer: sgd | momentum | adam | adamw.
        input_wait_ratio: Share of a step spent waiting for input, 0 to below 1.
        dimension_bindings: Sizes of symbolic dimensions other than the batch.
        host_memory_bytes: Host memory offered; None = unknown.
        disk_read_bytes_per_s: Disk rate offered; None = unknown.
        network_bytes_per_s: Network rate offered; None = unknown.
    """

    batch_size: int
    mode: str = "train"
    precision: str = "fp32"
    optimizer: str = "sgd"
    input_wait_ratio: float = 0.0
    dimension_bindings: Mapping[str, int] = field(default_factory=dict)
    host_memory_bytes: int | None = None
    disk_read_bytes_per_s: float | None = None
    network_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        check_batch(self.batch_size, "batch_size")
        _check_choice("mode", self.mode, MODES)
        _check_choice("precision", self.precision, PRECISIONS)
        _check_choice("optimizer", self.optimizer, OPTIMIZERS)
        if not 0 <= self.input_wait_ratio < 1:
            raise InvalidSettingError(
                f"input_wait_ratio is {self.input_wait_ratio:g}",
                remedy="use the share of a step spent waiting, from 0 to below 1",
                details={"field": "input_wait_ratio"},
            )
        for name in ("host_memory_bytes", "disk_read_bytes_per_s", "network_bytes_per_s"):
            _check_rate(name, getattr(self, name))

    def key(self, graph_sha256: str) -> str:
        """The key of the job that runs this graph with these settings."""
        return job_key(graph_sha256, self._for_key())

    def keys(self, graph_sha256: str) -> Callable[[int], str]:
        """The keys of the jobs that differ from this one in their batch only, by batch."""
        return job_keys(graph_sha256, self._for_key())

    def _for_key(self) -> dict[str, object]:
        return {
            "batch_size": self.batch_size,
            "mode": self.mode,
            "precision": self.precision,
            "optimizer": self.optimizer,
            "input_wait_ratio": self.input_wait_ratio,
            "host_memory_bytes": self.host_memory_bytes,
            "dimension_bindings": dict(self.dimension_bindings),
            "disk_read_bytes_per_s": self.disk_read_bytes_per_s,
            "network_bytes_per_s": self.network_bytes_per_s,
        }


def check_batch(batch: int, name: str) -> None:
    """Refuses a batch outside the accepted range.

    Args:
        batch: Samples per step.
        name: The field that holds it, for the message.

    Raises:
        InvalidBatchError: Outside 1 to 1,000,000.
    """
    if not 1 <= batch <= BATCH_MAX:
        raise InvalidBatchError(
            f"{name} is {batch}", remedy=f"use an integer from 1 to {BATCH_MAX}", details={"field": name}
        )


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidSettingError(
            f"{name} is {value!r}", remedy=f"use one of {', '.join(choices)}", details={"field": name}
        )


def _check_rate(name: str, value: float | None) -> None:
    if value is not None and not (math.isfinite(value) and value > 0):
        raise InvalidSettingError(
            f"{name} is {value:g}",
            remedy="leave it out when unknown, else use a value above 0",
            details={"field": name},
        )
