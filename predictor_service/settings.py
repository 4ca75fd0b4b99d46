"""Settings of the program, read once: flags > COTENANT_PREDICTOR_* > TOML file > defaults."""

from __future__ import annotations

import dataclasses
import os
import sys
import tomllib
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cotenant.local_state import local_state_dir
from predictor_service.errors import InvalidRequestError

ENVIRONMENT_PREFIX: Final = "COTENANT_PREDICTOR_"


def default_state_dir() -> Path:
    """Where state lies unless told otherwise: where `cotenant up` has it."""
    return local_state_dir(os.environ) / "predictor"


def default_datasets_dir() -> Path:
    """The datasets beside the packages in a checkout, else those installed with them."""
    beside = Path(__file__).resolve().parent.parent / "datasets"
    return beside if beside.is_dir() else Path(sys.prefix) / "share" / "cotenant" / "datasets"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that can be set.

    Attributes:
        address: HOST:PORT of the service; port 0 = any free one.
        metrics_address: HOST:PORT of /metrics and /healthz; empty = off.
        state_dir: Models, uploaded graphs and the journal.
        datasets: Folder of dataset folders to train on.
        profiles_days: Days that profiles of running jobs are kept; 0 = none is kept.
        profiles_rows_max: Profiles kept; the oldest leave.
        seed: Seed of training.
        threads: Calls served at the same time.
        extraction_workers: Graphs described at the same time.
        extraction_memory_bytes: Memory of one extraction worker.
        extraction_timeout_s: Time for one graph, seconds.
        drain_s: Time that calls under way get after SIGTERM, seconds.
        tls_certificate_file: PEM certificate; with the key, TLS only.
        tls_key_file: PEM key.
        client_ca_file: PEM authority; clients must then show a certificate of it.
        insecure: Allows other addresses than loopback without TLS.
        log_level: debug | info | warning | error.
        ready_file: Written with the address once the service answers.
    """

    address: str = "127.0.0.1:7070"
    metrics_address: str = "127.0.0.1:7170"
    state_dir: Path = field(default_factory=default_state_dir)
    datasets: Path = field(default_factory=default_datasets_dir)
    profiles_days: int = 90
    profiles_rows_max: int = 100_000
    seed: int = 0
    threads: int = 32
    extraction_workers: int = 1
    extraction_memory_bytes: int = 1 << 30
    extraction_timeout_s: float = 10.0
    drain_s: float = 10.0
    tls_certificate_file: Path | None = None
    tls_key_file: Path | None = None
    client_ca_file: Path | None = None
    insecure: bool = False
    log_level: str = "info"
    ready_file: Path | None = None


def load_settings(flags: Mapping[str, object], environment: Mapping[str, str], file: Path | None) -> Settings:
    """Merges the sources.

    Args:
        flags: By field name; None = not given.
        environment: Usually `os.environ`.
        file: TOML with field names as keys; None = none.

    Raises:
        InvalidRequestError: The file cannot be read, a key is unknown, or a value has the wrong type.
    """
    kinds = typing.get_type_hints(Settings)
    values: dict[str, Any] = {}
    for name, value in _read_file(file).items():
        if name not in kinds:
            raise InvalidRequestError(f"{file}: unknown setting {name!r}", remedy=f"known: {', '.join(kinds)}")
        values[name] = _convert(str(value), kinds[name], f"{file}: {name}")
    for name, kind in kinds.items():
        variable = ENVIRONMENT_PREFIX + name.upper()
        if variable in environment:
            values[name] = _convert(environment[variable], kind, variable)
        if flags.get(name) is not None:
            values[name] = flags[name]
    return dataclasses.replace(Settings(), **values)


def split_address(address: str) -> tuple[str, int]:
    """Splits HOST:PORT; the host may be in brackets.

    Raises:
        InvalidRequestError: Not of that form.
    """
    host, separator, port = address.rpartition(":")
    if not separator or not host or not port.isdigit() or int(port) > 65535:
        raise InvalidRequestError(f"{address!r} is not HOST:PORT", remedy="e.g. 127.0.0.1:7070")
    return host.strip("[]"), int(port)


def _read_file(file: Path | None) -> Mapping[str, object]:
    if file is None:
        return {}
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{file} cannot be read ({error})", remedy="write it as TOML") from error


def _convert(text: str, kind: object, source: str) -> object:
    plain = next((part for part in typing.get_args(kind) if part is not type(None)), kind)
    try:
        if plain is bool:
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
        return plain(text)  # type: ignore[operator]
    except (ValueError, KeyError):
        name = getattr(plain, "__name__", plain)
        raise InvalidRequestError(f"{source} is {text!r}, not of type {name}", remedy="correct it") from None
