"""Settings of the agent: flags > COTENANT_AGENT_* > TOML file > defaults; read once, in `commands`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import click

from cotenant.addresses import is_loopback, split_address
from cotenant.errors import InputError
from cotenant.names import NAME_PATTERN
from cotenant.option_types import Integers, Texts
from cotenant.program_settings import ProgramSettings, setting
from cotenant.structured_log import LEVELS
from cotenant.tls_settings import check_client_tls, check_metrics_exposure, tls_setting
from cotenant_agent.ranks.rendezvous_addresses import is_host


def _host_name() -> str:
    return os.uname().nodename


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """How one agent runs; every field is a flag of `run` as well."""

    scheduler: str = setting("127.0.0.1:7071", "Where the scheduler listens.", metavar="HOST:PORT")
    node_id: str = setting(_host_name, "Name of this node; its host name by default.", kind=click.STRING)
    rack_id: str = setting("", "Rack of this node.")
    state_dir: str = setting("", "Where everything is kept; needed.")
    checkpoint_dir: str = setting("", "Checkpoints, shared storage perhaps; in the state directory by default.")
    shared_checkpoints: bool = setting(
        False, "Other nodes have the folder of --checkpoint-dir too: jobs may be on several of them at once."
    )
    transfer_limit_bytes: int = setting(
        32 << 30,
        "Largest checkpoint fetched from another node, or sent to one, through the scheduler; 0 = none, and no gang "
        "across nodes here unless they share checkpoints.",
        kind=click.IntRange(0),
    )
    rendezvous_host: str = setting(
        "",
        "Where other nodes reach ranks that run here; by default the address from which it dials the scheduler.",
        metavar="HOST",
    )
    nvml: bool = setting(False, "Offer the NVIDIA GPUs of this machine.")
    standin_cores: tuple[int, ...] = setting((), "Cores that play one device each.", kind=Integers())
    standin_memory_bytes: int = setting(2 << 30, "Memory of one stand-in device.", kind=click.IntRange(1))
    allow_file: str = setting("", "TOML list of what this node runs.")
    allow_executable: tuple[str, ...] = setting((), "Further executables (paths).", kind=Texts())
    allow_directory: tuple[str, ...] = setting((), "Further roots of working directories.", kind=Texts())
    allow_environment: tuple[str, ...] = setting((), "Further environment patterns.", kind=Texts())
    allow_any_command: bool = setting(
        False,
        "Run any executable with any environment (directories stay listed); for a scheduler on this machine only.",
    )
    job_user: str = setting("", "Unprivileged user for jobs; the agent must be root.")
    job_users: str = setting(
        "", "Users for jobs, one per tenant, without another use; the agent must be root.", metavar="FIRST-LAST"
    )
    cgroups: bool = setting(True, "Use control groups where possible.")
    namespaces: bool = setting(True, "Give each job a process namespace of its own where possible.")
    job_tasks_max: int = setting(
        8_192, "Processes and threads of a job, where control groups bound them; 0 = no bound.", kind=click.IntRange(0)
    )
    log_limit_bytes: int = setting(8 << 20, "Size of each of the two log files of a job.", kind=click.IntRange(4096))
    checkpoint_interval_ms: int = setting(
        60_000, "Jobs with the helper checkpoint this often; 0 = never.", kind=click.IntRange(0)
    )
    sample_ms: int = setting(1_000, "Time between two readings of the devices.", kind=click.IntRange(50))
    collect_profiles: bool = setting(True, "Record how jobs run here, for predictions; no names are sent.")
    calibrate: bool = setting(True, "Measure new devices for a minute while nothing runs, for predictions.")
    calibrate_despite_load: bool = setting(False, "Measure new devices although others use them; the record says so.")
    tls_ca_file: Path | None = tls_setting("tls_ca_file")
    tls_certificate_file: Path | None = tls_setting("tls_certificate_file")
    tls_key_file: Path | None = tls_setting("tls_key_file")
    token_file: Path | None = tls_setting("token_file")
    tls_server_name: str = setting("", "Name in the scheduler's certificate, if not its host.")
    insecure: bool = tls_setting("insecure")
    metrics_address: str = setting("", "HOST:PORT of /metrics; none by default.", metavar="HOST:PORT")
    ready_file: str = setting("", "Written as JSON once the scheduler has welcomed this agent.")
    stop_jobs_on_exit: bool = setting(False, "End the jobs with the agent.")
    seed: int = setting(0, "Of the reconnection jitter; 0 = from the node's name.")
    log_level: str = setting("info", "Least level in the log.", kind=click.Choice(LEVELS, case_sensitive=False))


def _check(settings: AgentSettings) -> None:
    if not settings.state_dir:
        raise InputError("the agent keeps everything in its state directory", remedy="name one with --state-dir")
    if not settings.nvml and not settings.standin_cores:
        remedy = "give --nvml, or --standin-cores 0 for a stand-in device on a CPU core"
        raise InputError("no devices are offered", remedy=remedy)
    if not NAME_PATTERN.fullmatch(settings.node_id):
        remedy = "give --node-id 1 to 63 letters, digits, '.', '_' and '-'"
        raise InputError(f"{settings.node_id!r} cannot be the name of a node (node_id)", remedy=remedy)
    if settings.shared_checkpoints and not settings.checkpoint_dir:
        remedy = "name the folder that other nodes have too with --checkpoint-dir"
        raise InputError("--shared-checkpoints is about the folder of --checkpoint-dir", remedy=remedy)
    if settings.rendezvous_host and not is_host(settings.rendezvous_host):
        remedy = "give --rendezvous-host the name or address of this machine, without a port"
        raise InputError(f"{settings.rendezvous_host[:80]!r} is no address of a machine", remedy=remedy)
    if settings.job_user and settings.job_users:
        raise InputError("one user for all jobs, or one for each tenant", remedy="give --job-user or --job-users")
    check_client_tls(settings)
    if settings.metrics_address:
        split_address(settings.metrics_address)
        check_metrics_exposure(settings.metrics_address, insecure=settings.insecure)
    if settings.allow_any_command and not is_loopback(settings.scheduler):
        raise InputError(
            f"--allow-any-command is for a scheduler on this machine, and {settings.scheduler} is not: any user that "
            "reaches it could run anything here",
            remedy="list what this node runs with --allow-executable and --allow-environment",
        )
    missing = sorted(set(settings.standin_cores) - os.sched_getaffinity(0))
    if missing:
        remedy = f"give --standin-cores out of {sorted(os.sched_getaffinity(0))}"
        raise InputError(f"this process may not run on the cores {missing}", remedy=remedy)


SETTINGS = ProgramSettings(AgentSettings, prefix="COTENANT_AGENT_", check=_check, section="agent")
