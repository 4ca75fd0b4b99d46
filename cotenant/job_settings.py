"""How the steps of a job are configured: one frozen record from the edge of the API to the predictor and the agent.

Also the key of a job: equal for equal graph and settings, wherever it is computed. Profiler, predictor and scheduler
join their knowledge by it, so there is one function and no second spelling.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Final

BATCH_SIZE_MAX: Final = 1_000_000
DDP_BUCKET_BYTES_MAX: Final = 1 << 40
INPUT_WAIT_MS_MAX: Final = 3_600_000.0
SHARDED_RANKS_MAX: Final = 1_000_000
INPUT_WAIT_SHARE_MAX: Final = 0.99
"""No share of a step that is told by a wait in milliseconds is larger: what is left of a step is divided by."""
MODES: Final = ("train", "infer")
PRECISIONS: Final = ("fp32", "tf32", "bf16", "fp16")
OPTIMIZERS: Final = ("sgd", "momentum", "adam", "adamw")

_ENUM_PREFIXES: Final = {"mode": "RUN_MODE_", "precision": "PRECISION_", "optimizer": "OPTIMIZER_"}
_WHOLE_NUMBERS: Final = frozenset({"global_batch_size", "host_memory_bytes", "ddp_bucket_bytes", "sharded_ranks"})
_SWITCHES: Final = frozenset({"channels_last", "activation_checkpointing"})
_NUMBERS: Final = (
    "input_wait_ratio", "input_wait_ms", "host_memory_bytes", "disk_read_bytes_per_s", "network_bytes_per_s",
)  # fmt: skip
_LATER: Final = ("channels_last", "activation_checkpointing", "ddp_bucket_bytes", "sharded_ranks", "gathered_ratio")
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


class JobSettingsError(ValueError):
    """A setting is outside its range.

    Attributes:
        field: Its name in JobSettings.
        message: What is wrong with it.
        remedy: What to send instead.
    """

    def __init__(self, field_name: str, message: str, *, remedy: str) -> None:
        super().__init__(f"{message}; {remedy}")
        self.field, self.message, self.remedy = field_name, message, remedy


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """Settings of a job as every estimate needs them.

    Attributes:
        global_batch_size: Samples per optimizer step over all GPUs, 1 to 1,000,000.
        mode: train | infer.
        precision: fp32 | tf32 | bf16 | fp16; half precisions mean mixed training with 32-bit weights.
        optimizer: sgd | momentum | adam | adamw.
        input_wait_ratio: Share of a step spent waiting for input where that was measured, 0 to below 1.
        input_wait_ms: Time of a step of the whole batch spent waiting for input, whatever the device; 0 = not stated.
        dimension_bindings: Sizes of symbolic dimensions other than the batch.
        host_memory_bytes: Host memory offered; None = unknown.
        disk_read_bytes_per_s: Disk rate offered; None = unknown.
        network_bytes_per_s: Network rate offered; None = unknown.
        channels_last: Whether images lie in memory with their channels last.
        activation_checkpointing: Whether activations are computed again in the backward pass instead of kept.
        ddp_bucket_bytes: Size of the buckets in which DistributedDataParallel exchanges gradients; None = it does not.
        sharded_ranks: Devices among which weights, gradients and optimizer state are divided; 0 = whole on each.
        gathered_ratio: Share of that which a device holds whole at once to compute, 0 to 1; 0 = not stated.

    A record that was read from a disk may hold what no edge accepts any more; `checked` reports it.
    """

    global_batch_size: int
    mode: str = "train"
    precision: str = "fp32"
    optimizer: str = "sgd"
    input_wait_ratio: float = 0.0
    dimension_bindings: Mapping[str, int] = field(default_factory=dict, hash=False)
    host_memory_bytes: int | None = None
    disk_read_bytes_per_s: float | None = None
    network_bytes_per_s: float | None = None
    channels_last: bool = False
    activation_checkpointing: bool = False
    ddp_bucket_bytes: int | None = None
    input_wait_ms: float = 0.0
    sharded_ranks: int = 0
    gathered_ratio: float = 0.0

    def checked(self) -> JobSettings:
        """Return these settings.

        Raises:
            JobSettingsError: A value is outside its range.
        """
        if not 1 <= self.global_batch_size <= BATCH_SIZE_MAX:
            raise JobSettingsError(
                "global_batch_size",
                f"global_batch_size is {self.global_batch_size}",
                remedy=f"use an integer from 1 to {BATCH_SIZE_MAX}",
            )
        _check_choice("mode", self.mode, MODES)
        _check_choice("precision", self.precision, PRECISIONS)
        _check_choice("optimizer", self.optimizer, OPTIMIZERS)
        if not 0 <= self.input_wait_ratio < 1:
            raise JobSettingsError(
                "input_wait_ratio",
                f"input_wait_ratio is {self.input_wait_ratio:g}",
                remedy="use the share of a step spent waiting, from 0 to below 1",
            )
        if fault := find_wait_fault(self.input_wait_ms, self.input_wait_ratio):
            raise JobSettingsError("input_wait_ms", fault[0], remedy=fault[1])
        for name in ("host_memory_bytes", "disk_read_bytes_per_s", "network_bytes_per_s"):
            _check_rate(name, getattr(self, name))
        if self.ddp_bucket_bytes is not None and not 1 <= self.ddp_bucket_bytes <= DDP_BUCKET_BYTES_MAX:
            raise JobSettingsError(
                "ddp_bucket_bytes",
                f"ddp_bucket_bytes is {self.ddp_bucket_bytes}",
                remedy=f"use the size of a bucket, 1 to {DDP_BUCKET_BYTES_MAX} bytes (PyTorch's own is 26214400)",
            )
        if self.sharded_ranks == 1 or not 0 <= self.sharded_ranks <= SHARDED_RANKS_MAX:
            raise JobSettingsError(
                "sharded_ranks",
                f"sharded_ranks is {self.sharded_ranks}",
                remedy=f"use 2 to {SHARDED_RANKS_MAX}, or leave it out where each device holds everything",
            )
        if not 0 <= self.gathered_ratio <= 1:
            raise JobSettingsError(
                "gathered_ratio",
                f"gathered_ratio is {self.gathered_ratio:g}",
                remedy="use the share of the weights that is whole at once, 0 to 1; leave it out when unknown",
            )
        return self

    def input_wait_share(self, step_ms: float) -> float:
        """Return the share of a step spent waiting for input.

        Args:
            step_ms: How long a step takes where that is asked, above 0; a stated share needs none.
        """
        if not self.input_wait_ms:
            return self.input_wait_ratio
        return min(self.input_wait_ms / step_ms, INPUT_WAIT_SHARE_MAX)

    def with_wait_share(self, share: float) -> JobSettings:
        """Return the settings of a job that waits for its input for a share of a step, 0 to below 1."""
        if not self.input_wait_ms and share == self.input_wait_ratio:
            return self
        return replace(self, input_wait_ratio=share, input_wait_ms=0.0)

    def at_batch(self, batch_size: int) -> JobSettings:
        """Return the settings of steps of so many samples, of which each is waited for as long as now."""
        wait_ms = self.input_wait_ms * batch_size / max(self.global_batch_size, 1)
        return replace(self, global_batch_size=batch_size, input_wait_ms=wait_ms)

    def key(self, graph_sha256: str) -> str:
        """Return the key of the job that runs this graph with these settings, 64 hexadecimal digits.

        Args:
            graph_sha256: Hash of the stripped graph; empty when the job has none.
        """
        return self.keys(graph_sha256)(self.global_batch_size)

    def keys(self, graph_sha256: str) -> Callable[[int], str]:
        """Return a function from a batch size to the key of the job that differs from this one in it only."""
        # The key keeps the first name of the batch size: measurements are stored under it. Before it stand
        # no words of a caller but the hash, whose quotes are escaped.
        text = _ENCODER.encode([graph_sha256, {"batch_size": -1, **self._said()}])
        before, _, after = text.partition('"batch_size":-1')
        return lambda batch_size: hashlib.sha256(f'{before}"batch_size":{batch_size}{after}'.encode()).hexdigest()

    def _said(self) -> dict[str, object]:
        """Return the settings but for the batch; what is absent, zero or empty counts as its default.

        A client that does not know a setting yet and one that does therefore agree.
        """
        plain: dict[str, object] = {"mode": self.mode, "precision": self.precision, "optimizer": self.optimizer}
        for name in _NUMBERS:
            if value := getattr(self, name):
                plain[name] = _canonical_number(value)
        for name in _LATER:
            if value := getattr(self, name):
                plain[name] = value
        if self.dimension_bindings:
            plain["dimension_bindings"] = {name: int(size) for name, size in self.dimension_bindings.items()}
        return plain


_NAMES: Final = frozenset(item.name for item in fields(JobSettings))


def stored_settings(settings: JobSettings) -> dict[str, object]:
    """Return the settings as JSON; what has its default is left out."""
    plain = {name: getattr(settings, name) for name in sorted(_NAMES)}
    plain["dimension_bindings"] = dict(settings.dimension_bindings)
    default = JobSettings(global_batch_size=settings.global_batch_size)
    return {
        name: value for name, value in plain.items() if name == "global_batch_size" or value != getattr(default, name)
    }


def read_stored_settings(stored: Mapping[str, object]) -> JobSettings:
    """Return the settings that were kept as JSON, by this version or as the proto3 JSON of the versions before 0.2.

    There the batch is called batch_size, whole numbers are text and names are those of the enums ("64",
    "OPTIMIZER_ADAM"). Names of later versions are passed over.

    Raises:
        JobSettingsError: A setting is not of its type.
    """
    values = {("global_batch_size" if name == "batch_size" else name): value for name, value in stored.items()}
    plain = {name: _plain(name, value) for name, value in values.items() if name in _NAMES and value is not None}
    return JobSettings(**{"global_batch_size": 1, **plain})  # type: ignore[arg-type]  # `_plain` has read them


def _plain(name: str, value: object) -> object:
    prefix = _ENUM_PREFIXES.get(name)
    if prefix and isinstance(value, str) and value.startswith(prefix):
        short = value.removeprefix(prefix).lower()
        return getattr(JobSettings(global_batch_size=1), name) if short == "unspecified" else short
    if name in _WHOLE_NUMBERS:
        return _whole(name, value)
    if name == "dimension_bindings" and isinstance(value, Mapping):
        return {str(symbol): _whole(f"{name}.{symbol}", size) for symbol, size in value.items()}
    if name in _SWITCHES and isinstance(value, bool):
        return value
    is_of_its_type = isinstance(value, str) if prefix else isinstance(value, int | float)
    if isinstance(value, bool) or name in _SWITCHES or not is_of_its_type:
        raise JobSettingsError(name, f"{name} is {value!r}", remedy="submit the job again")
    return value


def _whole(name: str, value: object) -> int:
    """Read 64, 64.0 and the "64" of proto3 JSON."""
    if isinstance(value, str) and value.isdecimal():
        return int(value)
    if isinstance(value, int | float) and math.isfinite(value) and value == int(value):
        return int(value)
    raise JobSettingsError(name, f"{name} is {value!r}", remedy="a whole number is needed")


def _canonical_number(value: float) -> float:
    """Spell 64 and 64.0 alike, and a 0.6 that went through single precision."""
    return round(value, 4) if value % 1 else int(value)


def find_wait_fault(input_wait_ms: float, input_wait_ratio: float) -> tuple[str, str] | None:
    """Return what is wrong with a wait in milliseconds, and what to state instead; None = nothing is."""
    if not 0 <= input_wait_ms <= INPUT_WAIT_MS_MAX:
        return f"input_wait_ms is {input_wait_ms:g}", f"use milliseconds from 0 to {INPUT_WAIT_MS_MAX:,.0f}"
    if input_wait_ms and input_wait_ratio:
        return (
            "input_wait_ms and input_wait_ratio are both stated",
            "state the milliseconds only: they hold on any device",
        )
    return None


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise JobSettingsError(name, f"{name} is {value!r}", remedy=f"use one of {', '.join(choices)}")


def _check_rate(name: str, value: float | None) -> None:
    if value is not None and not (math.isfinite(value) and value > 0):
        raise JobSettingsError(
            name, f"{name} is {value:g}", remedy="leave it out when unknown, else use a value above 0"
        )
