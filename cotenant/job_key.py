"""The key of a job: equal for equal graph and settings, wherever it is computed.

Profiler, predictor and scheduler join their knowledge by it, so there is one function and no second spelling.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
_DEFAULTS = {"mode": "train", "precision": "fp32", "optimizer": "sgd"}
_ENUM_PREFIXES = {"mode": "RUN_MODE_", "precision": "PRECISION_", "optimizer": "OPTIMIZER_"}
_OPEN_BATCH = '"batch_size":-1'


def job_key(graph_sha256: str, settings: Mapping[str, object]) -> str:
    """Return the sha256 over a graph's hash and the canonical JSON of a job's settings, 64 hexadecimal digits.

    Args:
        graph_sha256: Hash of the stripped graph; empty when the job has none.
        settings: The fields of JobSettings by name: batch_size, mode (train | infer), precision (fp32 ...), optimizer
            (sgd ...), input_wait_ratio, dimension_bindings and, where known, host_memory_bytes, disk_read_bytes_per_s,
            network_bytes_per_s. The proto3 JSON form is understood too ("64", "OPTIMIZER_ADAM"). A field that is
            absent, None, zero, empty or unspecified counts as its default, so an old client and a new one agree.
    """
    return hashlib.sha256(_canonical_text(graph_sha256, settings).encode()).hexdigest()


def job_keys(graph_sha256: str, settings: Mapping[str, object]) -> Callable[[int], str]:
    """Return a function from a batch, at least 1, to the key of the job that differs from this one in its batch only.

    Args:
        graph_sha256: As for `job_key`.
        settings: As for `job_key`; its batch_size is not looked at.
    """
    # The batch is the first of the settings by name, and quotes inside of the hash before it are escaped.
    text = _canonical_text(graph_sha256, {**settings, "batch_size": -1})
    before, _, after = text.partition(_OPEN_BATCH)
    return lambda batch: hashlib.sha256(f'{before}"batch_size":{batch}{after}'.encode()).hexdigest()


def _canonical_text(graph_sha256: str, settings: Mapping[str, object]) -> str:
    canonical: dict[str, object] = dict(_DEFAULTS)
    for name, value in settings.items():
        if not value:  # most fields of most jobs
            continue
        if type(value) is int:
            canonical[name] = value
            continue
        plain = _without_prefix(name, value)
        if plain not in (None, 0, 0.0, "", "0", "unspecified", {}):
            canonical[name] = _number_or_text(plain)
    return _ENCODER.encode([graph_sha256, canonical])


def _without_prefix(name: str, value: object) -> object:
    """Turn OPTIMIZER_ADAM into adam."""
    prefix = _ENUM_PREFIXES.get(name, "")
    if prefix and isinstance(value, str) and value.startswith(prefix):
        return value.removeprefix(prefix).lower()
    return value


def _number_or_text(value: object) -> object:
    """Numbers by value: 64, 64.0, "64" and a 0.6 that went through single precision are spelled alike."""
    if isinstance(value, Mapping):
        return {str(name): _number_or_text(item) for name, item in value.items()}
    if isinstance(value, str) and value.isdecimal():
        return int(value)
    if isinstance(value, float):
        return int(value) if value.is_integer() else round(value, 4)
    return value
