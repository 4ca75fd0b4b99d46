"""From settings to a running agent: the one place that knows every concrete class."""

from __future__ import annotations

import contextlib
import logging
import os
import uuid
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from cotenant_agent.attempts.attempt_table import AttemptTable
from cotenant_agent.attempts.early_start import PREPARED_PARTS, PREPARED_STARTS
from cotenant_agent.attempts.launching import JobRules, Launcher
from cotenant_agent.attempts.pausing_means import pausing_enforcements
from cotenant_agent.checkpointing.checkpoint_transfers import CHECKPOINT_TRANSFERS, GANG_TRANSFERS, CheckpointTransfers
from cotenant_agent.checkpointing.shared_storage import read_storage_id
from cotenant_agent.cluster_membership import ClusterMembership
from cotenant_agent.devices.calibration import Calibrations, measuring_command
from cotenant_agent.devices.gpu_inventory import GpuInventory, SeveralInventories
from cotenant_agent.devices.import_baseline import measure_baseline
from cotenant_agent.devices.measurement_windows import MeasurementWindowRecorder
from cotenant_agent.devices.nvml_inventory import NvmlInventory
from cotenant_agent.devices.other_baselines import OtherBaselines
from cotenant_agent.devices.standin_inventory import StandinInventory
from cotenant_agent.isolation.allow_list import AllowList, load_allow_list
from cotenant_agent.isolation.cgroups import ControlGroups, detect, name_agent
from cotenant_agent.isolation.isolation_means import NAMESPACE_ENFORCEMENTS, SEALED_FILES, find_namespace_obstacle
from cotenant_agent.keeper.seals import hide_memory
from cotenant_agent.metrics import AgentMetrics
from cotenant_agent.node_agent import AgentRules, NodeAgent
from cotenant_agent.processes import LinuxProcesses, Processes
from cotenant_agent.ranks.rank_plan import RANK_PROCESSES, SERVER_PROCESSES, SPREAD_SERVERS
from cotenant_agent.ranks.rendezvous_addresses import find_interface, find_own_address
from cotenant_agent.scheduler_link import LinkSettings
from cotenant_agent.settings import AgentSettings
from cotenant_agent.storage.durable_files import read_json, read_text, write_json
from cotenant_agent.storage.state_directory import StateDirectory
from cotenant_agent.storage.state_disk import StateDisk

_log = logging.getLogger(__name__)
_NAMESPACE_REMEDY = "run the agent as root outside of a container, or permit it user namespaces"

_ROOT_REMEDY = "give --job-users FIRST-LAST, users without another use, or start the agent as an ordinary user"


@contextlib.contextmanager
def build_agent(settings: AgentSettings) -> Iterator[NodeAgent]:
    """Put an agent together; its state directory and its driver are held inside the block.

    Raises:
        OperatorError: a setting, file or permission is wrong.
        DeviceError: the devices that were asked for cannot be used.
    """
    checkpoint_root = Path(settings.checkpoint_dir) if settings.checkpoint_dir else None
    allow_list = _allow_list(settings)
    _warn_of_root(settings)
    directory = StateDirectory(Path(settings.state_dir), checkpoint_root)
    membership = ClusterMembership(directory.cluster)
    processes = LinuxProcesses()
    with contextlib.ExitStack() as stack:
        stack.callback(directory.close)
        storage_id = read_storage_id(directory.checkpoints) if settings.shared_checkpoints else ""
        inventory = _build_inventory(settings, directory.root, processes, stack)
        stack.callback(inventory.close)
        agent_name = name_agent(settings.node_id, directory.root)
        groups = detect(agent_name) if settings.cgroups else ControlGroups()
        isolation = _isolation(settings)
        launcher = Launcher(
            directory=directory,
            processes=processes,
            inventory=inventory,
            groups=groups,
            allow_list=allow_list,
            rules=_job_rules(settings, isolation),
        )
        table = AttemptTable(
            directory=directory, processes=processes, inventory=inventory, groups=groups, launcher=launcher
        )
        windows = MeasurementWindowRecorder(
            campaign=_campaign(directory.root),
            devices={gpu.gpu_id: gpu.device for gpu in inventory.describe()},
            make_id=lambda: uuid.uuid4().hex,
            collects=settings.collect_profiles,
        )
        calibrations = Calibrations(
            state_dir=directory.root,
            inventory=inventory,
            is_free=lambda: all(attempt.end is not None for attempt in table),
            enabled=settings.calibrate,
            command=partial(measuring_command, despite_load=settings.calibrate_despite_load),
        )
        metrics = AgentMetrics()
        if settings.metrics_address:
            metrics.serve(settings.metrics_address)
        yield NodeAgent(
            rules=replace(_agent_rules(settings, inventory, groups, allow_list, isolation), storage_id=storage_id),
            link=_link_settings(settings),
            table=table,
            windows=windows,
            inventory=inventory,
            calibrations=calibrations,
            metrics=metrics,
            membership=membership,
            transfers=_transfers(settings, directory, membership),
            disk=StateDisk(directory.root),
        )


def _transfers(
    settings: AgentSettings, directory: StateDirectory, membership: ClusterMembership
) -> CheckpointTransfers:
    return CheckpointTransfers(
        node_id=settings.node_id,
        root=directory.checkpoints,
        membership=membership,
        limit_bytes=_transfer_limit_bytes(settings),
    )


def _transfer_limit_bytes(settings: AgentSettings) -> int:
    """Nothing is to be fetched where all nodes see the same folder."""
    return 0 if settings.shared_checkpoints else settings.transfer_limit_bytes


def _isolation(settings: AgentSettings) -> tuple[str, ...]:
    """By what jobs are kept apart, in the words of the Hello; empty = this machine refuses it, or it is off."""
    obstacle = find_namespace_obstacle() if settings.namespaces else "--no-namespaces"
    if obstacle:
        _log.warning(
            "no_namespaces", extra={"reason": obstacle, "remedy": _NAMESPACE_REMEDY if settings.namespaces else ""}
        )
    if not obstacle:
        return NAMESPACE_ENFORCEMENTS
    if settings.job_user or settings.job_users:
        # The agent's files have a mode that keeps another user out.
        return ()
    hide_memory()
    return (SEALED_FILES,)


def _warn_of_root(settings: AgentSettings) -> None:
    if os.geteuid() == 0 and not (settings.job_user or settings.job_users):
        _log.warning("jobs_run_as_root", extra={"remedy": _ROOT_REMEDY})


def _job_rules(settings: AgentSettings, isolation: tuple[str, ...]) -> JobRules:
    return JobRules(
        user=settings.job_user,
        users=settings.job_users,
        log_limit_bytes=settings.log_limit_bytes,
        checkpoint_interval_ms=settings.checkpoint_interval_ms,
        tasks_max=settings.job_tasks_max,
        namespaces=NAMESPACE_ENFORCEMENTS[0] in isolation,
        seals=SEALED_FILES in isolation,
        find_interface=cache(partial(_rendezvous_interface, settings)),
        gangs_by_transfer=_transfer_limit_bytes(settings) > 0,
    )


def _rendezvous_interface(settings: AgentSettings) -> str:
    """Look names up only when a gang across nodes comes: a name server that is down holds an agent up for long."""
    return find_interface(settings.rendezvous_host or find_own_address(settings.scheduler))


def _build_inventory(
    settings: AgentSettings, state: Path, processes: Processes, stack: contextlib.ExitStack
) -> GpuInventory:
    inventories: list[GpuInventory] = []
    if settings.nvml:
        inventories.append(NvmlInventory(visible=os.environ.get("CUDA_VISIBLE_DEVICES")))
    if settings.standin_cores:
        others = OtherBaselines(state)
        stack.callback(others.close)
        inventories.append(
            StandinInventory(
                node_id=settings.node_id,
                cores=settings.standin_cores,
                memory_bytes=settings.standin_memory_bytes,
                baseline=measure_baseline(state),
                processes=processes,
                # A job that can write its own environment would have this agent run what it hides in it, beside the job
                # and not in its namespaces: no matter where the owner of both is one, as under `cotenant up`.
                baseline_of=others.of if settings.allow_any_command else lambda _: None,
            )
        )
    return inventories[0] if len(inventories) == 1 else SeveralInventories(inventories)


def _campaign(root: Path) -> str:
    """The machine's id in the profile store: drawn once at random, so that it reveals nothing about the machine."""
    path = root / "profile_campaign.json"
    campaign = read_text(read_json(path), "campaign")
    if not campaign:
        campaign = f"collected_{uuid.uuid4().hex[:8]}"
        write_json(path, {"campaign": campaign})
    return campaign


def _allow_list(settings: AgentSettings) -> AllowList:
    return load_allow_list(
        Path(settings.allow_file) if settings.allow_file else None,
        settings.allow_executable,
        settings.allow_directory,
        settings.allow_environment,
        any_command=settings.allow_any_command,
    )


def _agent_rules(
    settings: AgentSettings,
    inventory: GpuInventory,
    groups: ControlGroups,
    allow_list: AllowList,
    isolation: tuple[str, ...],
) -> AgentRules:
    user = tuple(name for name in ("job_user", "job_users") if getattr(settings, name))
    pausing = pausing_enforcements(groups, os.environ if settings.nvml else {})
    return AgentRules(
        node_id=settings.node_id,
        instance_id=uuid.uuid4().hex,
        rack_id=settings.rack_id,
        sample_ms=settings.sample_ms,
        ready_file=settings.ready_file,
        stop_jobs_on_exit=settings.stop_jobs_on_exit,
        seed=settings.seed,
        allow_list=allow_list,
        rendezvous_address=settings.rendezvous_host,
        enforcements=(
            *("shim_lease", RANK_PROCESSES, SERVER_PROCESSES, SPREAD_SERVERS, PREPARED_STARTS, PREPARED_PARTS),
            *inventory.enforcements,
            *groups.enforcements,
            *pausing,
            *isolation,
            *user,
            *((CHECKPOINT_TRANSFERS, GANG_TRANSFERS) if _transfer_limit_bytes(settings) else ()),
        ),
    )


def _link_settings(settings: AgentSettings) -> LinkSettings:
    return LinkSettings(
        scheduler=settings.scheduler,
        tls_ca_file=settings.tls_ca_file,
        tls_certificate_file=settings.tls_certificate_file,
        tls_key_file=settings.tls_key_file,
        token_file=settings.token_file,
        tls_server_name=settings.tls_server_name,
        insecure=settings.insecure,
    )
