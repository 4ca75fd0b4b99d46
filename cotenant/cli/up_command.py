"""up: predictor, scheduler and agent on this machine, in the foreground."""

from __future__ import annotations

import os
import re
import shlex
import signal
from pathlib import Path

import click

from cotenant import system_clock
from cotenant.access.server_rules import account_name
from cotenant.cli.session import tell
from cotenant.cli.settings import Settings, resolve_settings, state_folder
from cotenant.cli.up_checks import refuse_taken_ports, refuse_unknown_policy
from cotenant.client import ChannelOptions, SchedulerClient, open_channel
from cotenant.client_errors import InputError, ProgramError, ServiceError
from cotenant.default_policy import DEFAULT_POLICY
from cotenant.local_cluster import AgentOptions, LocalCluster
from cotenant.names import NAME_PATTERN
from cotenant.option_types import NamedFolder
from cotenant.process_tree import processes
from cotenant.quantities import parse_bytes
from cotenant.stop_signals import until_signal

_PORT = click.IntRange(0, 65_535)


@click.command(epilog="Example:  cotenant up --policy horus --allow-directory ~/trainings")
@click.option("--state-dir", type=NamedFolder(), help="Where everything is kept.")
@click.option(
    "--policy", default=DEFAULT_POLICY, show_default=True, help="Policy of a new state; an old one keeps its own."
)
@click.option(
    "--replace-missing-policy",
    is_flag=True,
    help="Let --policy take the place of an old state's that is not installed any more.",
)
@click.option("--predictor-port", type=_PORT, default=7070, show_default=True, help="0 = any free one.")
@click.option("--scheduler-port", type=_PORT, default=7071, show_default=True, help="0 = any free one.")
@click.option("--node-id", default="local", show_default=True, help="Name of this machine in the cluster.")
@click.option("--standin-cores", metavar="0,1", help="Cores that stand in for GPUs.  [default: the real GPUs]")
@click.option("--standin-memory", default="2GiB", show_default=True, help="Memory of each stand-in device.")
@click.option(
    "--allow-directory",
    "allowed",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Where jobs may run.  [default: here]",
)
@click.option("--no-trial", is_flag=True, help="Share only where the prediction is reliable, never on trial.")
@click.option(
    "--tenants",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TOML file with quotas and weights of tenants.",
)
def up(
    *,
    state_dir: Path | None,
    policy: str,
    replace_missing_policy: bool,
    predictor_port: int,
    scheduler_port: int,
    node_id: str,
    standin_cores: str | None,
    standin_memory: str,
    allowed: tuple[Path, ...],
    no_trial: bool,
    tenants: Path | None,
) -> None:
    """Start predictor, scheduler and agent on this machine and keep them until interrupted.

    Serves this account only, by a private socket and on loopback by a token. Jobs may run any program with any
    environment, in the allowed directories and below, as the user of `cotenant up`. Running jobs survive a stop: they
    end themselves when their lease runs out, or go on when `cotenant up` comes back before that.
    """
    if not NAME_PATTERN.fullmatch(node_id):
        raise InputError(f"{node_id!r} names no node", remedy="up to 63 letters, digits, '.', '_' or '-'")
    agent = AgentOptions(
        node_id=node_id,
        standin_cores=() if standin_cores is None else parse_cores(standin_cores),
        standin_memory_bytes=parse_bytes(standin_memory),
        allowed_directories=allowed or (Path.cwd(),),
        any_command=True,
    )
    cluster = LocalCluster(
        state_dir=(state_dir or state_folder(resolve_settings({}).settings)).absolute(),
        policy=policy,
        is_missing_policy_replaced=replace_missing_policy,
        agents=(agent,),
        predictor_port=predictor_port,
        scheduler_port=scheduler_port,
        has_trials=not no_trial,
        tenants_file=tenants.absolute() if tenants is not None else None,
    )
    refuse_second(cluster.state_dir)
    refuse_taken_ports(predictor_port=predictor_port, scheduler_port=scheduler_port)
    refuse_unknown_policy(policy)
    _serve(cluster)


def refuse_second(state_dir: Path) -> None:
    """Looks for programs that an earlier `up` left on a state; they outlive one that is killed.

    Raises:
        InputError: There are some.
    """
    words = f"--ready-file {state_dir}/"
    pids = [str(process.pid) for process in processes() if words in process.command and process.state != "Z"]
    if pids:
        remedy = f"use it, or end it: kill {' '.join(pids)}   (jobs go on if `cotenant up` comes back soon)"
        raise InputError(f"a cluster runs on {state_dir} already", remedy=remedy)


def parse_cores(text: str) -> tuple[int, ...]:
    """Reads a list of CPU cores such as 0,1.

    Raises:
        InputError: Not numbers, or cores that this machine lacks.
    """
    if not re.fullmatch(r"\s*[0-9]{1,6}\s*(,\s*[0-9]{1,6}\s*)*", text):
        raise InputError(f"{text!r} is not a list of cores", remedy="e.g. --standin-cores 0,1")
    cores = tuple(int(part) for part in text.split(","))
    if len(set(cores)) < len(cores):
        raise InputError(f"a core is named twice: {text}", remedy="each stand-in device needs a core of its own")
    usable = os.sched_getaffinity(0)
    if not set(cores) <= usable:
        raise InputError(f"no such core: {text}", remedy=f"usable here: {','.join(map(str, sorted(usable)))}")
    return cores


def _serve(cluster: LocalCluster) -> None:
    stop = until_signal(signal.SIGHUP)
    try:
        cluster.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        remedy = "name a folder that can be written to with --state-dir"
        raise InputError(f"cannot make {cluster.state_dir}: {error.strerror}", remedy=remedy) from error
    steps = StartLines(is_first=not (cluster.state_dir / "predictor").exists())
    cluster.start(on_step=steps.begin, stop=stop)
    if not stop.is_set():
        steps.end()
    try:
        if not stop.is_set():
            _announce(cluster)
        ended = cluster.watch(stop)
    finally:
        tell("stopping ...")
        cluster.stop()
    if ended is not None:
        remedy = f"start `cotenant up` again, jobs that run are adopted; its log is {ended.log_file}"
        raise ProgramError(f"the {ended.name} {ended.how_it_ended()}:\n{ended.log_tail()}", remedy=remedy)


class StartLines:
    """Says of every program that it starts, why that may take long, and how long it took.

    Args:
        is_first: Nothing is there yet: the predictor takes over the shipped models, or learns where they are older.
    """

    def __init__(self, *, is_first: bool) -> None:
        self._is_first = is_first
        self._name = ""
        self._since_ms = 0

    def begin(self, name: str) -> None:
        """Notes that the one before serves, and that the next one starts."""
        self.end()
        self._name, self._since_ms = name, system_clock.steady_ms()
        may_learn = self._is_first and name == "predictor"
        tell(f"starting {name}" + (" (its first start: up to two minutes where it has to learn)" if may_learn else ""))

    def end(self) -> None:
        """Notes that the last one serves."""
        if self._name:
            tell(f"  {self._name} ready after {(system_clock.steady_ms() - self._since_ms) / 1000:.0f} s", style="dim")
        self._name = ""


def _announce(cluster: LocalCluster) -> None:
    tell(f"up. scheduler {cluster.scheduler_address}, predictor {cluster.predictor_address}")
    tell(f"state and logs in {cluster.state_dir}; Ctrl-C stops")
    for line, style in reach_lines(cluster, user_id=os.geteuid()):
        tell(line, style=style)
    active = _active_policy(cluster.target("scheduler"))
    if active not in ("", cluster.policy):
        tell(f"policy {active} of the kept state stays in force; `cotenant policies use {cluster.policy}` changes it")
    for line in export_lines(cluster, resolve_settings({}).settings):
        click.echo(line)
    tell("next, in another terminal: cotenant submit -- python SCRIPT.py; then cotenant ps, cotenant explain JOB")


def reach_lines(cluster: LocalCluster, *, user_id: int) -> list[tuple[str, str]]:
    """Returns who may run what, under which user, as lines with their styles; as root it is a warning."""
    directories = ", ".join(str(one.absolute()) for agent in cluster.agents for one in agent.allowed_directories)
    name = account_name(user_id)
    access = f"only {name} gets in, by a private socket or with {_token_file(cluster)}; jobs run any program"
    if user_id != 0:
        return [(f"{access} as {name}, in {directories}", "")]
    remedy = "end it (Ctrl-C) and start `cotenant up` as an ordinary user, unless every job may do everything here"
    return [(f"warning: {access} AS ROOT, in {directories}", "bold red"), (f"  remedy: {remedy}", "")]


def _token_file(cluster: LocalCluster) -> str:
    return str(cluster.access.token_file("operator")) if cluster.access is not None else "a token"


def _active_policy(address: str) -> str:
    """Returns what the scheduler decides by; empty when it does not answer."""
    with open_channel(ChannelOptions(address=address)) as channel:
        try:
            policies = SchedulerClient(channel, address=address).list_policies()
        except ServiceError:
            return ""
    return next((policy.name for policy in policies if policy.active), "")


def export_lines(cluster: LocalCluster, known: Settings) -> list[str]:
    """Returns what another terminal has to set, because its settings differ."""
    here = [
        ("STATE_DIR", str(cluster.state_dir), str(state_folder(known).absolute())),
        ("SCHEDULER", cluster.scheduler_address, known.scheduler),
        ("PREDICTOR", cluster.predictor_address, known.predictor),
    ]
    lines = [f"export COTENANT_{name}={shlex.quote(value)}" for name, value, usual in here if value != usual]
    return ["# in other terminals:", *lines] if lines else []
