"""From a launch request to the exact program, arguments, environment and place: pure, except for looking up paths."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cotenant_agent.checkpointing.checkpoints import Checkpoint
from cotenant_agent.errors import CommandRefusedError
from cotenant_agent.isolation.allow_list import AllowList
from cotenant_agent.progress_reading.progress import check_pattern
from cotenant_agent.ranks.parameter_blocks import ASSIGNMENT_NAME
from cotenant_agent.ranks.rank_plan import RankPlan, defaults_of, plan_ranks, plan_servers
from cotenant_agent.records import DeviceBinding, LaunchRequest

# What a job inherits of the agent's own environment; everything else comes from the allow-list or from here.
_INHERITED = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH")
# And of the environment of an owner whose every command is run: what a shell, or a folder of caches, is found by.
_OWNERS = ("HOME", "LOGNAME", "SHELL", "TMPDIR", "USER")
_ARGUMENT_LIMIT = 4096
_TEXT_LIMIT_BYTES = 128 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlaces:
    """Directories of one attempt and the checkpoint that it continues from."""

    run_directory: Path
    checkpoint_directory: Path
    resume: Checkpoint | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """What the shim executes.

    Attributes:
        overridden: Variables of the job whose values the node has replaced.
        ranks: The processes of a gang; empty = there is one process.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    working_directory: str
    cpu_cores: tuple[int, ...] = ()
    overridden: tuple[str, ...] = ()
    ranks: tuple[RankPlan, ...] = ()


def plan_launch(
    request: LaunchRequest,
    *,
    allow_list: AllowList,
    binding: DeviceBinding,
    places: LaunchPlaces,
    grace_ms: int,
    checkpoint_interval_ms: int,
    device_memory_bytes: int,
    is_owners: bool = False,
    login_name: str = "",
    rank_bindings: Sequence[DeviceBinding] = (),
    rendezvous_port: int = 0,
    rendezvous_interface: str = "",
) -> LaunchPlan:
    """Put a launch together.

    Args:
        request: What the scheduler wants started.
        allow_list: What this node runs.
        binding: How the job is tied to its devices.
        places: Its directories.
        grace_ms: How long it has to end after its lease.
        checkpoint_interval_ms: How often the helper checkpoints; 0 = never.
        device_memory_bytes: Of the smallest of its devices.
        is_owners: Jobs run as the owner of the agent, with the owner's home.
        login_name: For a user that the machine's list does not have; empty = it has.
        rank_bindings: Of a gang, how each rank is tied to its own device.
        rendezvous_port: Where the ranks meet.
        rendezvous_interface: By which other nodes reach this one; empty = not known.

    Raises:
        CommandRefusedError: the node's allow-list, or the shape of the request, forbids it.
    """
    _check_shape(request)
    allow_list.check_environment(request.environment)
    working_directory = str(places.run_directory)
    if request.working_directory:
        working_directory = allow_list.resolve_directory(request.working_directory)
    argv = _argv(request.command, request, allow_list, places, working_directory)
    contract = _contract(request, places, grace_ms, checkpoint_interval_ms)
    if device_memory_bytes > 0 and request.memory_limit_bytes > 0:
        contract["COTENANT_GPU_MEMORY_FRACTION"] = f"{min(1.0, request.memory_limit_bytes / device_memory_bytes):.4f}"
    defaults = _defaults(places, is_owners=is_owners, login_name=login_name)
    defaults |= defaults_of(request, port=rendezvous_port, interface=rendezvous_interface)
    ranks = plan_ranks(request, rank_bindings, port=rendezvous_port)
    of_servers = request.servers.command if request.servers is not None else ()
    servers_argv = _argv(of_servers, request, allow_list, places, working_directory) if of_servers else ()
    # The later ones win: what ties the job to its devices and its attempt cannot be overridden.
    environment = {**defaults, **request.environment, **binding.environment, **contract}
    effective = {**environment, **(ranks[0].environment if ranks else {})}
    overridden = tuple(sorted(name for name, value in request.environment.items() if effective[name] != value))
    return LaunchPlan(
        argv=argv,
        environment=environment,
        working_directory=working_directory,
        cpu_cores=binding.cpu_cores or (),
        overridden=overridden,
        ranks=(*ranks, *plan_servers(request, ranks, servers_argv, port=rendezvous_port)),
    )


def _argv(
    command: Sequence[str],
    request: LaunchRequest,
    allow_list: AllowList,
    places: LaunchPlaces,
    working_directory: str,
) -> tuple[str, ...]:
    executable = allow_list.resolve_executable(
        command[0], working_directory=working_directory, search_path=request.environment.get("PATH", "")
    )
    values = _template_values(request, places)
    return (executable, *(_fill(argument, values) for argument in command[1:]))


def _defaults(places: LaunchPlaces, *, is_owners: bool, login_name: str) -> dict[str, str]:
    """What a job has unless it says otherwise: some of the agent's own variables, and what they leave open."""
    names = (*_INHERITED, *_OWNERS) if is_owners else _INHERITED
    inherited = {name: os.environ[name] for name in names if name in os.environ}
    # Caches of PyTorch are named after the user, and one without a name is an error there.
    login = dict.fromkeys(("LOGNAME", "USER"), login_name) if login_name else {}
    # Without it Python keeps 8 KiB of output back without a terminal: progress would come in bursts, minutes late.
    return {"HOME": str(places.run_directory), "PYTHONUNBUFFERED": "1", **login, **inherited}


def _check_shape(request: LaunchRequest) -> None:
    of_servers = request.servers.command if request.servers is not None else ()
    texts = [*request.command, *of_servers, *request.environment, *request.environment.values()]
    texts.append(request.working_directory)
    if not request.command or max(len(request.command), len(of_servers)) > _ARGUMENT_LIMIT:
        raise CommandRefusedError("COMMAND_NOT_ALLOWED", f"a command has 1 to {_ARGUMENT_LIMIT} arguments")
    if any("\0" in text or len(text.encode()) > _TEXT_LIMIT_BYTES for text in texts):
        raise CommandRefusedError("COMMAND_NOT_ALLOWED", "an argument or variable holds a NUL byte or is over 128 KiB")
    fault = check_pattern(request.progress_regex) if request.progress_regex else ""
    if fault:
        raise CommandRefusedError("INVALID_PROGRESS_REGEX", f"progress_regex: {fault}")


def _template_values(request: LaunchRequest, places: LaunchPlaces) -> dict[str, str]:
    return {
        "{sub_batch}": str(request.micro_batch_size),
        "{accumulation_steps}": str(request.accumulation_steps),
        "{checkpoint_dir}": str(places.checkpoint_directory),
        "{resume}": _resume(places),
    }


def _fill(argument: str, values: Mapping[str, str]) -> str:
    """Replace the four templates and nothing else: other braces belong to the script."""
    for template, value in values.items():
        argument = argument.replace(template, value)
    return argument


def _resume(places: LaunchPlaces) -> str:
    return "" if places.resume is None else str(places.resume.directory)


def _assignment(request: LaunchRequest, places: LaunchPlaces) -> dict[str, str]:
    """Where the job finds which of its parameter servers holds which block."""
    is_known = request.servers is not None and request.servers.blocks
    return {"COTENANT_PARAMETER_ASSIGNMENT": str(places.run_directory / ASSIGNMENT_NAME)} if is_known else {}


def _contract(
    request: LaunchRequest, places: LaunchPlaces, grace_ms: int, checkpoint_interval_ms: int
) -> dict[str, str]:
    incarnation_id, array_index = request.key.incarnation_id, request.array_index
    return {
        **({"COTENANT_ARRAY_INDEX": str(array_index)} if array_index is not None else {}),
        **({"COTENANT_INCARNATION_ID": incarnation_id} if incarnation_id else {}),
        **_assignment(request, places),
        **({"COTENANT_TARGET_LOSS": repr(request.target_loss)} if request.target_loss else {}),
        "COTENANT_JOB_ID": request.key.job_id,
        "COTENANT_ATTEMPT": str(request.key.attempt),
        "COTENANT_FENCE": str(request.key.fence),
        "COTENANT_CHECKPOINT_DIR": str(places.checkpoint_directory),
        "COTENANT_RESUME": _resume(places),
        "COTENANT_GLOBAL_BATCH": str(request.global_batch_size or ""),
        "COTENANT_SUB_BATCH": str(request.micro_batch_size or ""),
        "COTENANT_ACCUMULATION_STEPS": str(request.accumulation_steps or ""),
        "COTENANT_RANK": str(request.rank),
        # One process has all GPUs of an attempt; ranks are told another number.
        "COTENANT_WORLD_SIZE": "1",
        "COTENANT_PROGRESS": str(places.run_directory / "progress.sock"),
        "COTENANT_GRACE_MS": str(grace_ms),
        "COTENANT_CHECKPOINT_INTERVAL_MS": str(checkpoint_interval_ms or ""),
    }


def batches_of_step(request: LaunchRequest) -> int:
    """Return how many batches the script takes for one step: its own number, times what an argument tells it."""
    is_told = any("{accumulation_steps}" in argument for argument in request.command)
    return max(request.batches_per_step, 1) * (max(request.accumulation_steps, 1) if is_told else 1)
