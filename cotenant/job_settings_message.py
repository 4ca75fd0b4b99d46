"""Job settings between the frozen record and the contract's message."""

from __future__ import annotations

from typing import Final

from cotenant.job_settings import JobSettings
from cotenant.v1 import resources_pb2

# A message leaves out what has its default: the value 0 is read as the first name.
_MODES: Final = {0: "train", 1: "train", 2: "infer"}
_PRECISIONS: Final = {0: "fp32", 1: "fp32", 2: "tf32", 3: "bf16", 4: "fp16"}
_OPTIMIZERS: Final = {0: "sgd", 1: "sgd", 2: "momentum", 3: "adam", 4: "adamw"}
_MODE_NUMBERS: Final = {name: number for number, name in _MODES.items()}
_PRECISION_NUMBERS: Final = {name: number for number, name in _PRECISIONS.items()}
_OPTIMIZER_NUMBERS: Final = {name: number for number, name in _OPTIMIZERS.items()}


def read_settings(message: resources_pb2.JobSettings) -> JobSettings:
    """Return the settings that a message states.

    Raises:
        JobSettingsError: A setting is outside its range.
    """
    return unchecked_settings(message).checked()


def unchecked_settings(message: resources_pb2.JobSettings) -> JobSettings:
    """Return the settings that a message states, whatever their values; `checked` refuses what cannot be."""
    return JobSettings(
        global_batch_size=message.global_batch_size,
        mode=_MODES.get(message.mode, str(message.mode)),
        precision=_PRECISIONS.get(message.precision, str(message.precision)),
        optimizer=_OPTIMIZERS.get(message.optimizer, str(message.optimizer)),
        input_wait_ratio=message.input_wait_ratio,
        dimension_bindings=dict(message.dimension_bindings),
        host_memory_bytes=message.host_memory_bytes if message.HasField("host_memory_bytes") else None,
        disk_read_bytes_per_s=message.disk_read_bytes_per_s if message.HasField("disk_read_bytes_per_s") else None,
        network_bytes_per_s=message.network_bytes_per_s if message.HasField("network_bytes_per_s") else None,
        channels_last=message.channels_last,
        activation_checkpointing=message.activation_checkpointing,
        ddp_bucket_bytes=message.ddp_bucket_bytes if message.HasField("ddp_bucket_bytes") else None,
        input_wait_ms=message.input_wait_ms,
        sharded_ranks=message.sharded_ranks,
        gathered_ratio=message.gathered_ratio,
    )


def settings_message(settings: JobSettings) -> resources_pb2.JobSettings:
    """Return the message that states these settings."""
    return resources_pb2.JobSettings(
        global_batch_size=settings.global_batch_size,
        mode=_MODE_NUMBERS.get(settings.mode, 0),  # type: ignore[arg-type]  # numbers of the enums
        precision=_PRECISION_NUMBERS.get(settings.precision, 0),  # type: ignore[arg-type]
        optimizer=_OPTIMIZER_NUMBERS.get(settings.optimizer, 0),  # type: ignore[arg-type]
        input_wait_ratio=settings.input_wait_ratio,
        dimension_bindings=settings.dimension_bindings,
        host_memory_bytes=settings.host_memory_bytes,
        disk_read_bytes_per_s=settings.disk_read_bytes_per_s,
        network_bytes_per_s=settings.network_bytes_per_s,
        channels_last=settings.channels_last,
        activation_checkpointing=settings.activation_checkpointing,
        ddp_bucket_bytes=settings.ddp_bucket_bytes,
        input_wait_ms=settings.input_wait_ms,
        sharded_ranks=settings.sharded_ranks,
        gathered_ratio=settings.gathered_ratio,
    )
