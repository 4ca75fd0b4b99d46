"""Settings of the scheduler: flags > COTENANT_SCHEDULER_* > TOML file > defaults; read once, in `__main__`."""

from __future__ import annotations

import dataclasses
import math
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cotenant.default_policy import DEFAULT_POLICY
from cotenant.local_state import local_state_dir
from scheduler_service.errors import SettingsError

ENVIRONMENT_PREFIX = "COTENANT_SCHEDULER_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How one scheduler runs; every field is a flag of `serve` as well."""

    address: str = field(default="127.0.0.1:7071", metadata={"meaning": "host:port of gRPC; port 0 = any free one"})
    metrics_address: str = field(
        default="127.0.0.1:7171", metadata={"meaning": "host:port of /metrics and /healthz; empty = none"}
    )
    state_dir: str = field(
        default=str(local_state_dir(os.environ) / "scheduler"), metadata={"meaning": "directory of the event log"}
    )
    predictor_address: str = field(
        default="127.0.0.1:7070", metadata={"meaning": "host:port of the predictor; empty = predict nothing"}
    )
    policy: str = field(
        default=DEFAULT_POLICY, metadata={"meaning": "policy of a new state; an old state keeps its own"}
    )
    seed: int = field(default=0, metadata={"meaning": "seed handed to policies"})
    ready_file: str = field(default="", metadata={"meaning": "written as JSON once the scheduler serves"})
    insecure: bool = field(default=False, metadata={"meaning": "serve other addresses than loopback without TLS"})
    tls_certificate_file: str = field(default="", metadata={"meaning": "PEM certificate chain of this server"})
    tls_key_file: str = field(default="", metadata={"meaning": "PEM private key of this server"})
    client_ca_file: str = field(
        default="", metadata={"meaning": "PEM authority; clients and agents must then show a certificate of it"}
    )
    predictor_ca_file: str = field(default="", metadata={"meaning": "PEM authority of the predictor; empty = no TLS"})
    predictor_certificate_file: str = field(
        default="", metadata={"meaning": "PEM certificate that is shown to a predictor that asks for one"}
    )
    predictor_key_file: str = field(default="", metadata={"meaning": "PEM key of that certificate"})
    reflection: bool = field(default=True, metadata={"meaning": "answer server reflection"})
    heartbeat_ms: int = field(default=2_000, metadata={"meaning": "how often agents report"})
    lease_ms: int = field(default=30_000, metadata={"meaning": "how long jobs run on without a word from here"})
    grace_ms: int = field(default=30_000, metadata={"meaning": "how long a job may take to end after its lease"})
    lease_margin_ratio: float = field(
        default=0.05,
        metadata={"meaning": "added to lease and grace before a node counts as lost, for clocks that differ"},
    )
    progress_interval_ms: int = field(
        default=2_000, metadata={"meaning": "at most one progress event per job in this time"}
    )
    pair_refresh_ms: int = field(
        default=10_000, metadata={"meaning": "after a measured pair, other pairs are asked about again; 0 = never"}
    )
    snapshot_every_events: int = field(default=10_000, metadata={"meaning": "events between two snapshots"})
    retained_events: int = field(default=200_000, metadata={"meaning": "events kept for export behind a snapshot"})
    predictor_deadline_ms: int = field(default=10_000, metadata={"meaning": "deadline of one call to the predictor"})
    drain_ms: int = field(default=5_000, metadata={"meaning": "how long calls may go on after SIGTERM"})
    log_level: str = field(default="INFO", metadata={"meaning": "DEBUG, INFO, WARNING or ERROR"})


def load_settings(*, flags: Mapping[str, object], environment: Mapping[str, str], file: Path | None) -> Settings:
    """Merge all sources.

    Args:
        flags: Values by field name; None = not given.
        environment: Usually `os.environ`.
        file: TOML with the field names as keys; None = none.

    Raises:
        SettingsError: A value has the wrong form, a name is unknown, or the file cannot be read.
    """
    known = {setting.name: setting for setting in dataclasses.fields(Settings)}
    values: dict[str, object] = {}
    for source, found in (
        (str(file), _read_file(file)),
        ("the environment", _read_environment(environment, known)),
        ("the flags", {name: value for name, value in flags.items() if value is not None}),
    ):
        for name, value in found.items():
            if name not in known:
                raise SettingsError(f"{source}: unknown setting {name!r}; known are {', '.join(sorted(known))}")
            values[name] = _converted(name, value, type(known[name].default), source)
    settings = Settings(**values)  # type: ignore[arg-type]
    _check(settings)
    return settings


def _read_file(file: Path | None) -> Mapping[str, object]:
    if file is None:
        return {}
    try:
        return tomllib.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise SettingsError(f"the settings file {file} cannot be read: {error}") from error


def _read_environment(environment: Mapping[str, str], known: Mapping[str, object]) -> Mapping[str, object]:
    """Take the names that are ours; others with the prefix may belong to a newer version or to flags of commands."""
    return {name: environment[key] for name in known if (key := ENVIRONMENT_PREFIX + name.upper()) in environment}


def _converted(name: str, value: object, wanted: type, source: str) -> object:
    if wanted is bool and isinstance(value, str) and value.lower() in ("true", "1", "yes", "false", "0", "no"):
        return value.lower() in ("true", "1", "yes")
    try:
        if isinstance(value, bool) is not (wanted is bool) or (wanted is int and isinstance(value, float)):
            raise ValueError("not of this kind")
        return wanted(value)
    except (TypeError, ValueError) as error:
        raise SettingsError(f"{source}: {name} must be of type {wanted.__name__}, not {value!r}") from error


def _check(settings: Settings) -> None:
    for name in ("heartbeat_ms", "lease_ms", "predictor_deadline_ms", "snapshot_every_events"):
        if getattr(settings, name) < 1:
            raise SettingsError(f"{name} must be at least 1")
    for name in (
        "grace_ms",
        "lease_margin_ratio",
        "progress_interval_ms",
        "pair_refresh_ms",
        "retained_events",
        "drain_ms",
    ):
        # A number that is not a number fails both comparisons.
        if not 0 <= getattr(settings, name) < math.inf:
            raise SettingsError(f"{name} must not be negative, and must be finite")
    if settings.lease_ms < 2 * settings.heartbeat_ms:
        raise SettingsError("lease_ms must be at least twice heartbeat_ms, or one lost heartbeat ends every job")
    _check_tls(settings)
    if settings.log_level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise SettingsError("log_level must be DEBUG, INFO, WARNING or ERROR")


def _check_tls(settings: Settings) -> None:
    if bool(settings.tls_certificate_file) is not bool(settings.tls_key_file):
        raise SettingsError("tls_certificate_file and tls_key_file belong together; give both or none")
    if bool(settings.predictor_certificate_file) is not bool(settings.predictor_key_file):
        raise SettingsError("predictor_certificate_file and predictor_key_file belong together; give both or none")
    if settings.predictor_certificate_file and not settings.predictor_ca_file:
        raise SettingsError("predictor_certificate_file needs predictor_ca_file: it is shown over TLS only")
    if settings.client_ca_file and not settings.tls_certificate_file:
        raise SettingsError("client_ca_file needs tls_certificate_file and tls_key_file")
