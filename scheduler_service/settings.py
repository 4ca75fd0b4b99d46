"""Settings of the scheduler: flags > COTENANT_SCHEDULER_* > TOML file > defaults; read once, in `commands`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import click

from cotenant.default_policy import DEFAULT_POLICY
from cotenant.errors import InputError
from cotenant.local_state import local_state_dir
from cotenant.option_types import FiniteRange, OptionalFile
from cotenant.program_settings import ProgramSettings, setting
from cotenant.structured_log import LEVELS
from cotenant.tls_settings import check_server_tls, tls_setting

_POSITIVE, _NOT_NEGATIVE = click.IntRange(1), click.IntRange(0)


def _state_dir() -> str:
    """Where state lies by default: where `cotenant up` has it."""
    return str(local_state_dir(os.environ) / "scheduler")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How one scheduler runs; every field is a flag of `serve` as well."""

    address: str = setting("127.0.0.1:7071", "HOST:PORT of gRPC; port 0 = any free one.", metavar="HOST:PORT")
    metrics_address: str = setting(
        "127.0.0.1:7171",
        "HOST:PORT of /metrics, /healthz and /readyz; empty = none.",
        metavar="HOST:PORT",
        may_be_empty=True,
    )
    state_dir: str = setting(_state_dir, "Directory of the event log.", kind=click.STRING)
    predictor: str = setting(
        "127.0.0.1:7070",
        "Where the predictor listens; empty = predict nothing.",
        metavar="HOST:PORT",
        may_be_empty=True,
    )
    policy: str = setting(DEFAULT_POLICY, "Policy of a new state; an old state keeps its own.")
    replace_missing_policy: bool = setting(
        False, "Let --policy take the place of an old state's policy that is not installed any more."
    )
    policy_deadline_ms: int = setting(
        10_000,
        "A policy that takes longer to answer, or longer than half a lease, is stopped, and asked again only once one "
        "is chosen.",
        kind=_POSITIVE,
    )
    tenants: Path | None = setting(
        None, "TOML file with quotas and weights of tenants; none = all jobs are one tenant's.", kind=OptionalFile()
    )
    stall_ms: int = setting(
        600_000, "A job without a step for so long, and for ten steps' time, stalls; 0 = never.", kind=_NOT_NEGATIVE
    )
    seed: int = setting(0, "Seed handed to policies.")
    ready_file: str = setting("", "Written as JSON once the scheduler serves.")
    insecure: bool = tls_setting("insecure")
    tls_certificate_file: Path | None = tls_setting("tls_certificate_file")
    tls_key_file: Path | None = tls_setting("tls_key_file")
    tls_ca_file: Path | None = tls_setting("tls_ca_file")
    client_ca_file: Path | None = tls_setting("client_ca_file")
    token_file: Path | None = tls_setting("token_file")
    callers_file: Path | None = tls_setting("callers_file")
    revoked_file: Path | None = tls_setting("revoked_file")
    socket: Path | None = tls_setting("socket")
    serve_roleless: bool = tls_setting("serve_roleless")
    reflection: bool = setting(True, "Answer server reflection.")
    heartbeat_ms: int = setting(2_000, "How often agents report.", kind=_POSITIVE)
    lease_ms: int = setting(30_000, "How long jobs run on without a word from here.", kind=_POSITIVE)
    grace_ms: int = setting(30_000, "How long a job may take to end after its lease.", kind=_NOT_NEGATIVE)
    lease_margin_ratio: float = setting(
        0.05,
        "Added to lease and grace before a node counts as lost, for clocks that differ.",
        kind=FiniteRange(0),
    )
    progress_interval_ms: int = setting(2_000, "At most one progress event per job in this time.", kind=_NOT_NEGATIVE)
    pair_refresh_ms: int = setting(
        10_000, "After a measured pair, other pairs are asked about again; 0 = never.", kind=_NOT_NEGATIVE
    )
    trials: bool = setting(True, "Let jobs share on trial of which nothing reliable is predicted.")
    sees_files: bool = setting(
        False, "All nodes see the files of this machine: look for a job's program and directory when it is submitted."
    )
    snapshot_every_events: int = setting(10_000, "Events between two snapshots.", kind=_POSITIVE)
    retained_events: int = setting(200_000, "Events kept for export behind a snapshot.", kind=_NOT_NEGATIVE)
    predictor_deadline_ms: int = setting(10_000, "Deadline of one call to the predictor.", kind=_POSITIVE)
    drain_ms: int = setting(5_000, "How long calls may go on after SIGTERM.", kind=_NOT_NEGATIVE)
    log_level: str = setting("info", "Least level in the log.", kind=click.Choice(LEVELS, case_sensitive=False))


def _check(settings: Settings) -> None:
    if settings.lease_ms < 2 * settings.heartbeat_ms:
        raise InputError(
            "one lost heartbeat would end every job", remedy="make --lease-ms at least twice --heartbeat-ms"
        )
    check_server_tls(settings)


SETTINGS = ProgramSettings(Settings, prefix="COTENANT_SCHEDULER_", check=_check)
