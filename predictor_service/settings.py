"""Settings of the predictor: flags > COTENANT_PREDICTOR_* > TOML file > defaults; read once, in `commands`."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from cotenant.local_state import local_state_dir
from cotenant.option_types import FiniteRange, OptionalFile
from cotenant.program_settings import ProgramSettings, setting
from cotenant.structured_log import LEVELS
from cotenant.tls_settings import check_server_tls, tls_setting

_PATH: Final = click.Path(path_type=Path)


def default_state_dir() -> Path:
    """Where state lies by default: where `cotenant up` has it."""
    return local_state_dir(os.environ) / "predictor"


def default_datasets_dir() -> Path:
    """The datasets next to the packages in a checkout, else those installed with them."""
    in_checkout = Path(__file__).resolve().parent.parent / "datasets"
    return in_checkout if in_checkout.is_dir() else Path(sys.prefix) / "share" / "cotenant" / "datasets"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that can be set; every field is a flag of `serve` as well."""

    address: str = setting("127.0.0.1:7070", "HOST:PORT of gRPC; port 0 = any free one.", metavar="HOST:PORT")
    metrics_address: str = setting(
        "127.0.0.1:7170",
        "HOST:PORT of /metrics, /healthz and /readyz; empty = none.",
        metavar="HOST:PORT",
        may_be_empty=True,
    )
    state_dir: Path = setting(default_state_dir, "Models, uploaded graphs, journal.", kind=_PATH)
    datasets: Path = setting(default_datasets_dir, "Folder of dataset folders to train on.", kind=_PATH)
    profiles_days: int = setting(90, "Days that profiles of running jobs are kept; 0 = none.", kind=click.IntRange(0))
    profiles_rows_max: int = setting(100_000, "Profiles kept; the oldest are deleted.", kind=click.IntRange(1))
    retrain_hours: int = setting(
        168,
        "Hours after which what running jobs taught is learned, behind the gate; 0 = never.",
        kind=click.IntRange(0),
    )
    retrain_on_drift: bool = setting(True, "Learn from it while a drift alarm is on, once a day at most.")
    seed: int = setting(0, "Of training: same data and seed give the same version.")
    threads: int = setting(32, "Calls served at the same time.", kind=click.IntRange(5, 512))
    extraction_workers: int = setting(1, "Graphs described at the same time.", kind=click.IntRange(1, 64))
    extraction_memory_bytes: int = setting(1 << 30, "Memory of one extraction worker.", kind=click.IntRange(1))
    extraction_timeout_s: float = setting(10.0, "Time for one graph, seconds.", kind=FiniteRange(0, 600))
    drain_s: float = setting(10.0, "Time for calls under way after SIGTERM, seconds.", kind=FiniteRange(0, 600))
    tls_certificate_file: Path | None = tls_setting("tls_certificate_file")
    tls_key_file: Path | None = tls_setting("tls_key_file")
    client_ca_file: Path | None = tls_setting("client_ca_file")
    callers_file: Path | None = tls_setting("callers_file")
    revoked_file: Path | None = tls_setting("revoked_file")
    socket: Path | None = tls_setting("socket")
    serve_roleless: bool = tls_setting("serve_roleless")
    insecure: bool = tls_setting("insecure")
    log_level: str = setting("info", "Least level in the log.", kind=click.Choice(LEVELS, case_sensitive=False))
    ready_file: Path | None = setting(None, "Written as JSON once the service answers.", kind=OptionalFile())


SETTINGS = ProgramSettings(Settings, prefix="COTENANT_PREDICTOR_", check=check_server_tls)
