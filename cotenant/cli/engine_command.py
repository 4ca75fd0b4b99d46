"""engine: advise or place the jobs of an engine that people already run."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import Final

import click

from cotenant import system_clock
from cotenant.cli.engine_rounds import run_rounds, show_round, wait_for_engine
from cotenant.cli.policy_commands import parse_parameters
from cotenant.cli.session import Session, show, tell, with_session
from cotenant.client_errors import BrokenServiceError, ServiceError, TlsMismatchError, UnavailableError
from cotenant.command_groups import ListedGroup
from cotenant.counted_nouns import agreed
from cotenant.engines.bridge import NOTES_PER_ROUND_MAX, Bridge
from cotenant.engines.device_rules import read_device_rule
from cotenant.engines.kubernetes.access import find_access
from cotenant.engines.kubernetes.adapter import KubernetesEngine
from cotenant.engines.kubernetes.api import ServedApi
from cotenant.engines.kubernetes.extender import Extender
from cotenant.engines.kubernetes.extender_server import ExtenderServer
from cotenant.engines.kubernetes.lease import ControllerLease
from cotenant.engines.port import Engine
from cotenant.engines.ray.adapter import RayEngine
from cotenant.engines.ray.connection import ConnectedRay
from cotenant.engines.ray.lost_jobs import LostJobs
from cotenant.engines.ray.step_windows import StepWindows, record_request
from cotenant.engines.records import EngineState
from cotenant.engines.slurm.adapter import SlurmEngine
from cotenant.engines.slurm.commands import InstalledCommands
from cotenant.option_types import FiniteRange, OptionalFile
from cotenant.stop_signals import until_signal
from cotenant.v1 import scheduling_pb2

POLICY = "horus"
"""The default policy weighs how long jobs will run, which jobs of other engines do not state."""
EXTENDER_TIMEOUT_S: Final = 2.0
"""For each question behind an answer to kube-scheduler, which waits 5 s (deploy/kubernetes)."""
ORDERS: Final = ("hold", "stop", "requeue")

_advises = click.option(
    "--advise/--place", "advises", default=True, show_default=True, help="Write advice, or place held jobs."
)
_policy = click.option("--policy", default=POLICY, show_default=True, help="That decides.")
_interval = click.option(
    "--interval", "interval_s", type=FiniteRange(0.1, 3600), default=5.0, show_default=True, metavar="SECONDS"
)
_once = click.option("--once", is_flag=True, help="One round only.")
_order = click.option(
    "--order",
    type=(click.Choice(ORDERS), str),
    default=None,
    metavar="[hold|stop|requeue] JOB",
    help="Give this one order, and do nothing else.",
)
_grace = click.option(
    "--grace",
    "grace_s",
    type=click.IntRange(1, 86_400),
    default=30,
    show_default=True,
    metavar="SECONDS",
    help="Between SIGTERM and SIGKILL of --order stop and requeue, where the engine has no grace of its own.",
)
_kubeconfig = click.option("--kubeconfig", type=OptionalFile(), help="Default: KUBECONFIG, the pod, ~/.kube/config.")
_context = click.option("--context", default="", metavar="NAME", help="Of the kubeconfig; default: its current one.")


_gpus = click.option(
    "--gpu",
    "gpus",
    multiple=True,
    metavar="NODES=DEVICE:MEMORY",
    help="What the GPUs of some nodes are; NODES may hold * and ?, and of Slurm be NODES/TYPE, one gres type of them. "
    "Repeat it; the first that fits counts.",
)


@click.group(cls=ListedGroup)
def engine() -> None:
    """Advise or place the jobs of an engine that people already run."""


@engine.command(
    epilog="""\b
Example:  cotenant engine slurm --advise --gpu 'gpu-a*=NVIDIA A100-SXM4-80GB:80GiB'
"""
)
@_advises
@_gpus
@_policy
@_interval
@_once
@_order
@_grace
@with_session
def slurm(
    session: Session,
    /,
    *,
    advises: bool,
    gpus: tuple[str, ...],
    policy: str,
    interval_s: float,
    order: tuple[str, str] | None,
    grace_s: int,
    once: bool,
) -> None:
    """Advise or place the jobs of Slurm whose comment begins with the word cotenant (docs/slurm.md)."""
    slurm_engine = SlurmEngine(InstalledCommands(), [read_device_rule(text) for text in gpus])
    if order is not None:
        _give_order(slurm_engine, *order, grace_s)
        return
    if not gpus:
        raise click.UsageError("Missing option '--gpu': Slurm does not say what its GPUs are.")
    _run(slurm_engine, session, policy, interval_s, places=not advises, once=once)


@engine.command(
    epilog="""\b
Example:  cotenant engine kubernetes --advise
          cotenant engine kubernetes --place --kubeconfig cotenant.kubeconfig
"""
)
@_advises
@_gpus
@_kubeconfig
@_context
@_policy
@_interval
@_once
@_order
@_grace
@with_session
def kubernetes(
    session: Session,
    /,
    *,
    advises: bool,
    gpus: tuple[str, ...],
    kubeconfig: Path | None,
    context: str,
    policy: str,
    interval_s: float,
    order: tuple[str, str] | None,
    grace_s: int,
    once: bool,
) -> None:
    """Advise or place the pods of Kubernetes with the annotation cotenant.io/job (docs/kubernetes.md)."""
    rules = [read_device_rule(text) for text in gpus]
    with closing(ServedApi(find_access(kubeconfig, context))) as api:
        lease = ControllerLease(api, f"{socket.gethostname()}_{os.getpid()}_{secrets.token_hex(4)}")
        kubernetes_engine = KubernetesEngine(api, rules, keep_lease=lease.keep, closes_devices=not advises)
        if order is not None:
            _give_order(kubernetes_engine, *order, grace_s)
            return
        try:
            _run(kubernetes_engine, session, policy, interval_s, places=not advises, once=once)
        finally:
            lease.give_up()


@engine.command(
    epilog="""\b
Example:  cotenant engine kubernetes-extender --address 127.0.0.1:8787
"""
)
@click.option("--address", default="127.0.0.1:8787", show_default=True, metavar="HOST:PORT", help="Where to listen.")
@click.option("--insecure", is_flag=True, help="Allow other addresses than loopback without TLS.  [default: no]")
@_gpus
@_kubeconfig
@_context
@_policy
@with_session
def kubernetes_extender(
    session: Session,
    /,
    *,
    address: str,
    gpus: tuple[str, ...],
    kubeconfig: Path | None,
    context: str,
    policy: str,
    insecure: bool,
) -> None:
    """Filter and score nodes for kube-scheduler, which goes on placing (docs/kubernetes.md)."""
    rules = [read_device_rule(text) for text in gpus]
    with closing(ServedApi(find_access(kubeconfig, context), timeout_s=EXTENDER_TIMEOUT_S)) as api:
        read = KubernetesEngine(api, rules).read
        _check_policy(session.scheduler().decide, policy)
        extender = Extender(read, session.scheduler().decide, policy=policy, now_ms=system_clock.now_ms, tell=tell)
        server = ExtenderServer(address, extender, insecure=insecure)
        show(f"answers kube-scheduler at {server.address}")
        until_signal().wait()
        server.stop()


@engine.command(
    epilog="""\b
Example:  cotenant engine ray --gpu '*=NVIDIA A100-SXM4-80GB:80GiB'
          cotenant engine ray --give-back
"""
)
@click.option("--address", default="auto", show_default=True, metavar="HOST:PORT", help="Of the cluster's head.")
@_gpus
@_policy
@click.option("--set", "parameters", multiple=True, metavar="NAME=VALUE", help="A parameter of it; VALUE is JSON.")
@_interval
@click.option("--record", is_flag=True, help="Report step times to the predictor (role observer).")
@click.option(
    "--give-back", "gives_back", is_flag=True, help="Give GPUs without a job back to Ray, and do nothing else."
)
@_once
@_order
@_grace
@with_session
def ray(
    session: Session,
    /,
    *,
    address: str,
    gpus: tuple[str, ...],
    policy: str,
    parameters: tuple[str, ...],
    interval_s: float,
    record: bool,
    gives_back: bool,
    order: tuple[str, str] | None,
    grace_s: int,
    once: bool,
) -> None:
    """Place the tasks and actors that cotenant.ray submits, on GPUs that Ray gives it (docs/ray.md)."""
    rules = [read_device_rule(text) for text in gpus]
    if not (rules or order or gives_back):
        raise click.UsageError("Missing option '--gpu': Ray does not say what its GPUs are.")
    chosen = parse_parameters(parameters)
    is_single = once or gives_back or order is not None
    with closing(wait_for_engine(lambda: ConnectedRay.connect(address), 0.0 if is_single else interval_s)) as connected:
        if order is not None:
            _give_order(RayEngine(connected, rules), *order, grace_s)
            return
        if gives_back:
            _give_back(connected)
            return
        rounds = _RayRounds(session, connected, records=record)
        ray_engine = RayEngine(connected, rules, prepare=rounds.prepare, look=rounds.look)
        _run(ray_engine, session, policy, interval_s, places=True, once=once, parameters=chosen)


class _RayRounds:
    """What is done besides deciding, at each reading of Ray.

    Args:
        session: Reaches the predictor.
        connected: The cluster.
        records: The predictor is told of what was measured.
    """

    def __init__(self, session: Session, connected: ConnectedRay, *, records: bool) -> None:
        self._session = session
        self._connected = connected
        self._records = records
        self._lost = LostJobs(connected)
        self._windows = StepWindows(connected)
        self._used_by_others = 0

    def prepare(self) -> None:
        """Take GPUs that are there now, and say how many are not; forget jobs whose driver is gone."""
        used = self._connected.claim_gpus()
        if used != self._used_by_others:
            others = agreed(f"{used} cluster GPU(s) are") if used else "none of the cluster's GPUs is"
            show(f"{others} used by others of Ray; each is taken when Ray has it free")
        self._used_by_others = used
        for job_id in self._lost.remove(system_clock.now_ms()):
            show(f"job {job_id}: forgotten: its driver is gone")

    def look(self, state: EngineState) -> None:
        """Tell, and report where that is wanted, the step times of windows that have ended."""
        self._windows.look(state)
        ended = self._windows.take()
        for window in ended:
            show(window.line())
        request = record_request(ended) if self._records else None
        if request is not None:
            try:
                self._session.predictor().record_measurement_windows(request)
            except ServiceError as error:
                count = len(request.measurement_windows)
                tell(f"error: {count} windows were not recorded: {error.message}", style="red")


def _give_back(connected: ConnectedRay) -> None:
    """Remove the placement groups of GPUs that no job of ours holds."""
    state = RayEngine(connected, ()).read()
    held = {gpu_id for job in state.jobs for gpu_id in job.held_slots}
    for gpu in connected.claimed_gpus():
        if gpu.gpu_id not in held:
            connected.give_back(gpu.group_id)
            show(f"{gpu.gpu_id}: given back")


def _give_order(running: Engine, order: str, job_id: str, grace_s: int) -> None:
    if order == "hold":
        running.hold(job_id)
    elif order == "stop":
        running.stop(job_id, grace_s=grace_s)
    else:
        running.requeue(job_id, grace_s=grace_s)
    show(f"job {job_id}: {order}: done")


def _run(
    running: Engine,
    session: Session,
    policy: str,
    interval_s: float,
    *,
    places: bool,
    once: bool,
    parameters: Mapping[str, float | str | bool] = MappingProxyType({}),
) -> None:
    ask = session.scheduler().decide

    def decide(request: scheduling_pb2.DecideRequest) -> scheduling_pb2.DecideResponse:
        request.parameters.update(parameters)
        return ask(request)

    _check_policy(decide, policy)
    bridge = Bridge(running, decide, policy=policy, places=places)
    if once:
        show_round(bridge, NOTES_PER_ROUND_MAX)
    else:
        run_rounds(bridge, interval_s)


def _check_policy(decide: Callable[[scheduling_pb2.DecideRequest], object], policy: str) -> None:
    """Refuse what the scheduler will refuse in every round, before the first job waits.

    Raises:
        ServiceError: It has no such policy or parameter, or does not let us ask.
    """
    try:
        decide(scheduling_pb2.DecideRequest(policy=policy, validate_only=True))
    except TlsMismatchError:
        raise
    except (UnavailableError, BrokenServiceError):
        return  # the rounds ask again, and say so
