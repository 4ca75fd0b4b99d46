"""Every setting of the agent in one frozen record: flags > COTENANT_AGENT_* > TOML file > defaults."""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from cotenant_agent.errors import SettingsError
from cotenant_agent.scheduler_link import is_loopback

Value = TypeVar("Value")

_PREFIX = "COTENANT_AGENT_"
_NODE_ID = re.compile(r"[A-Za-z0-9._-]{1,63}")
_PORT_MAX = 65_535
_LEAST = {
    "standin_memory_bytes": 1,
    "log_limit_bytes": 4096,
    "checkpoint_interval_ms": 0,
    "sample_ms": 50,
    "metrics_port": 0,
}


def _described(default: Value, description: str) -> Value:
    return field(default=default, metadata={"description": description})


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """The settings; each field is also a flag (--state-dir), a variable (COTENANT_AGENT_STATE_DIR) and a TOML key."""

    scheduler: str = _described("127.0.0.1:7071", "host:port of the scheduler")
    node_id: str = _described("", "name of this node; default: its host name")
    rack_id: str = _described("", "rack of this node")
    state_dir: str = _described("", "where everything is kept")
    checkpoint_dir: str = _described("", "checkpoints, shared storage perhaps; default: in the state dir")
    nvml: bool = _described(False, "offer the NVIDIA GPUs of this machine")
    standin_cores: tuple[int, ...] = _described((), "cores that play one device each: 0,1")
    standin_memory_bytes: int = _described(2 << 30, "memory of one stand-in device")
    allow_file: str = _described("", "TOML list of what this node runs")
    allow_executable: tuple[str, ...] = _described((), "further executables (paths)")
    allow_directory: tuple[str, ...] = _described((), "further roots of working directories")
    allow_environment: tuple[str, ...] = _described((), "further environment patterns")
    allow_any_command: bool = _described(
        False, "run any executable with any environment (directories stay listed); only for a scheduler on this machine"
    )
    job_user: str = _described("", "unprivileged user for jobs; the agent must be root")
    cgroups: bool = _described(True, "use control groups where possible")
    log_limit_bytes: int = _described(8 << 20, "size of each of the two log files of a job")
    checkpoint_interval_ms: int = _described(60_000, "jobs with the helper checkpoint this often; 0 = never")
    sample_ms: int = _described(1_000, "time between two readings of the devices")
    collect_profiles: bool = _described(True, "let others learn from how jobs run here; no names are told")
    tls_ca: str = _described("", "certificate that signs, or is, the scheduler's")
    tls_certificate: str = _described("", "this node's certificate")
    tls_key: str = _described("", "this node's key")
    tls_server_name: str = _described("", "name in the scheduler's certificate, if not its host")
    insecure: bool = _described(False, "allow a scheduler elsewhere without TLS")
    metrics_port: int = _described(0, "loopback port of /metrics; 0 = none")
    ready_file: str = _described("", "written when the scheduler has welcomed this agent")
    stop_jobs_on_exit: bool = _described(False, "end the jobs with the agent")
    seed: int = _described(0, "seed of the reconnection jitter; 0 = from the node's name")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a flag per setting, and --config for the file."""
    parser.add_argument("--config", default="", help="TOML file with settings, under [agent] or at the top")
    for item in dataclasses.fields(AgentSettings):
        flag = "--" + item.name.replace("_", "-")
        description = f"{item.metadata['description']} (default: {item.default!r})"
        if item.type == "bool":
            parser.add_argument(flag, default=None, action=argparse.BooleanOptionalAction, help=description)
        elif str(item.type).startswith("tuple"):
            parser.add_argument(flag, default=None, action="append", help=description)
        else:
            parser.add_argument(flag, default=None, help=description)


def load_settings(flags: Mapping[str, object], environment: Mapping[str, str] | None = None) -> AgentSettings:
    """Put the sources together.

    Args:
        flags: parsed flags; None = not given.
        environment: the process environment by default.

    Raises:
        SettingsError: an unknown key, a value of the wrong type or out of range.
    """
    variables = os.environ if environment is None else environment
    config = str(flags.get("config") or variables.get(f"{_PREFIX}CONFIG", ""))
    from_file = _read_file(Path(config)) if config else {}
    values: dict[str, object] = {}
    for item in dataclasses.fields(AgentSettings):
        candidates = (flags.get(item.name), variables.get(_PREFIX + item.name.upper()), from_file.get(item.name))
        chosen = next((value for value in candidates if value is not None), None)
        if chosen is not None:
            values[item.name] = _convert(item.name, str(item.type), chosen)
    settings = AgentSettings(**values)  # type: ignore[arg-type]
    settings = dataclasses.replace(settings, node_id=settings.node_id or os.uname().nodename)
    _check(settings)
    return settings


def _read_file(path: Path) -> dict[str, object]:
    try:
        content = tomllib.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise SettingsError(f"cannot read {path}: {error}") from error
    section = content.get("agent", content)
    unknown = set(section) - {item.name for item in dataclasses.fields(AgentSettings)}
    if unknown:
        raise SettingsError(f"{path}: unknown settings {', '.join(sorted(unknown))}")
    return dict(section)


def _convert(name: str, kind: str, value: object) -> object:
    try:
        if kind == "bool":
            return value if isinstance(value, bool) else _BOOLEANS[str(value).lower()]
        if kind == "int":
            return int(str(value))
        if kind.startswith("tuple"):
            parts = _parts(value)
            return tuple(int(part) for part in parts) if "int" in kind else parts
    except (KeyError, ValueError) as error:
        raise SettingsError(f"{name}: {value!r} is not of the form {kind}") from error
    return str(value)


def _parts(value: object) -> tuple[str, ...]:
    """Texts of a list, or of comma-separated texts."""
    items: Sequence[object] = value if isinstance(value, list | tuple) else [value]
    return tuple(part.strip() for item in items for part in str(item).split(",") if part.strip())


def _check(settings: AgentSettings) -> None:
    if not settings.state_dir:
        raise SettingsError("--state-dir is needed: the agent keeps everything there")
    if not settings.nvml and not settings.standin_cores:
        raise SettingsError("no devices: give --nvml, or --standin-cores 0 for a stand-in device on a CPU core")
    if not _NODE_ID.fullmatch(settings.node_id):
        raise SettingsError(f"node_id {settings.node_id!r}: 1 to 63 letters, digits, '.', '_' and '-' only")
    if bool(settings.tls_certificate) != bool(settings.tls_key) or (settings.tls_certificate and not settings.tls_ca):
        raise SettingsError("--tls-certificate, --tls-key and --tls-ca belong together")
    if settings.allow_any_command and not is_loopback(settings.scheduler):
        raise SettingsError(
            f"--allow-any-command is for a scheduler on this machine, and {settings.scheduler} is not: whoever reaches "
            "it could run anything here; list what this node runs with --allow-executable and --allow-environment"
        )
    missing = sorted(set(settings.standin_cores) - os.sched_getaffinity(0))
    if missing:
        raise SettingsError(
            f"--standin-cores: this process may not run on {missing}; there are {os.sched_getaffinity(0)}"
        )
    for name, low in _LEAST.items():
        if getattr(settings, name) < low:
            raise SettingsError(f"{name} must be at least {low}")
    if settings.metrics_port > _PORT_MAX:
        raise SettingsError(f"metrics_port must be at most {_PORT_MAX}")


_BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
