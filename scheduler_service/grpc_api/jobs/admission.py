"""What is looked at when a job is submitted: whether a connected node can run it, and whether it fits on a device.

Nothing of it is stored: the engine knows nothing of what nodes run, and a replayed log gives what it gave.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from cotenant.counted_nouns import agreed
from cotenant.v1 import node_agent_pb2, resources_pb2, scheduling_pb2
from scheduler_service.adapters.agents.agent_sessions import AgentSessions
from scheduler_service.adapters.agents.launch_rules import (
    Obstacle,
    gpus_at_least,
    gpus_of_one_kind,
    gpus_together,
    node_obstacles,
)
from scheduler_service.adapters.job_specs import kept_settings, key_of, spec_message
from scheduler_service.adapters.local_files import file_obstacles
from scheduler_service.adapters.predictor.memory_ranges import MemoryRanges
from scheduler_service.core.cluster_view.capacity import memory_point
from scheduler_service.core.cluster_view.inventory import kind_of
from scheduler_service.core.commands import RequestPrediction
from scheduler_service.core.reasons.reason_texts import format_quantity
from scheduler_service.core.records import MemoryRange, Node
from scheduler_service.core.state import ClusterState
from scheduler_service.errors import FitsNoDeviceError, NoNodeRunsItError, PredictorError, QuotaTooSmallError
from scheduler_service.grpc_api.side_thread import SideThread

PATIENCE_S = 3.0
"""How long a submission waits for the predictor; without an answer the job is accepted."""
_PATIENCE_RATIO = 0.5
FILE_CHECKS_MAX = 100
_NAMED_NODES_MAX = 4
FINAL_REFUSALS = frozenset({"COMMAND_NOT_ALLOWED", "COMMAND_NOT_RUNNABLE", "INVALID_PROGRESS_REGEX"})
"""Codes of agents that the same node will answer again."""
_SET_BY_NODES = "CUDA_VISIBLE_DEVICES"
_LAUNCHERS = frozenset({"torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec", "horovodrun", "srun"})
_FORCE = "or submit it anyway with --force"


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Looks at what is submitted.

    Attributes:
        sessions: Which agents are connected, and what they run.
        ranges: Answers about memory.
        sees_files: Every node sees the files of this machine, so what a job names is looked for here.
    """

    sessions: AgentSessions
    ranges: MemoryRanges
    sees_files: bool = False
    _files: SideThread = field(default_factory=lambda: SideThread("files", waiting_max=FILE_CHECKS_MAX))

    async def review(
        self, state: ClusterState, request: scheduling_pb2.SubmitJobRequest, *, seconds_left: float | None
    ) -> Sequence[resources_pb2.Warning]:
        """Return the warnings about an accepted job; with no node connected nothing is known.

        Args:
            state: The cluster.
            request: A valid submission; with `force` what would refuse it becomes a warning.
            seconds_left: Until the caller's deadline; None = there is none.

        Raises:
            NoNodeRunsItError: Every connected node lacks something that the job asks for, or does not see its files.
            OverloadedError: Too many submissions wait for the disk.
            FitsNoDeviceError: The job takes more memory than any device that it could have.
            QuotaTooSmallError: The job asks for more GPUs than its tenant may hold.
        """
        warnings = [*_environment_warnings(request.spec), *_launcher_warnings(request.spec)]
        try:
            _check_quota(state, request.spec)
            nodes = self._able_nodes(state, request.spec)
            await self._check_files(nodes, request.spec)
            warnings += self._directory_warnings(nodes, request.spec)
            patience_s = PATIENCE_S if seconds_left is None else min(PATIENCE_S, _PATIENCE_RATIO * seconds_left)
            warnings += await self._memory_warnings(state, nodes, request.spec, patience_s)
        except (NoNodeRunsItError, FitsNoDeviceError, QuotaTooSmallError) as error:
            if not request.force:
                raise
            warnings.append(_warning("FORCED", error.message))
        return warnings

    async def _check_files(self, nodes: Sequence[Node], spec: scheduling_pb2.JobSpec) -> None:
        """Look for the files of a job, with patience: a disk that does not answer holds up no submission for long.

        Raises:
            NoNodeRunsItError: What the job names is not there for any of these nodes.
        """
        rules = {node.node_id: self.sessions.connected[node.node_id].launch_rules for node in nodes}
        stated = {node_id: one for node_id, one in rules.items() if one is not None}
        if not self.sees_files or not stated or len(stated) < len(rules):
            return
        looking = self._files.begin(lambda: {name: tuple(file_obstacles(one, spec)) for name, one in stated.items()})
        try:
            lacks = await asyncio.wait_for(asyncio.shield(looking), PATIENCE_S)
        except TimeoutError:
            return
        if all(lacks.values()):
            raise _no_node(lacks, away=0)

    def is_final(self, state: ClusterState, node_id: str, refused: node_agent_pb2.CommandRefused) -> bool:
        """Return whether a refused launch is useless here and on every other connected node."""
        job = state.jobs.get(refused.key.job_id)
        if job is None or node_id not in job.node_ids or refused.code not in FINAL_REFUSALS:
            return False
        spec = spec_message(job.submission.launch, job.submission.settings)
        others = (node for node in self._connected(state) if node.node_id != node_id)
        return not any(self._may_run(node, spec) for node in others)

    def _may_run(self, node: Node, spec: scheduling_pb2.JobSpec) -> bool:
        rules = self.sessions.connected[node.node_id].launch_rules
        is_listed = rules is None or rules.lists_directory(spec.working_directory)
        return is_listed and not any(node_obstacles(node, rules, spec))

    def _connected(self, state: ClusterState) -> list[Node]:
        return [state.nodes[node_id] for node_id in sorted(self.sessions.connected) if node_id in state.nodes]

    def _able_nodes(self, state: ClusterState, spec: scheduling_pb2.JobSpec) -> list[Node]:
        """Return the connected nodes that nothing speaks against.

        Raises:
            NoNodeRunsItError: There are nodes, and not one of them.
        """
        connected = self._connected(state)
        lacks = {
            node.node_id: tuple(node_obstacles(node, self.sessions.connected[node.node_id].launch_rules, spec))
            for node in connected
        }
        able = [node for node in connected if not lacks[node.node_id]]
        if connected and not able:
            raise _no_node(lacks, away=len(state.nodes) - len(connected))
        together = gpus_together(able) if spec.across_nodes else 0
        if able and spec.across_nodes and together < gpus_at_least(spec):
            raise _too_few_together(together, gpus_at_least(spec))
        return able

    def _directory_warnings(self, nodes: Sequence[Node], spec: scheduling_pb2.JobSpec) -> list[resources_pb2.Warning]:
        rules = [self.sessions.connected[node.node_id].launch_rules for node in nodes]
        listing = [one for one in rules if one is not None and not one.lists_directory(spec.working_directory)]
        if not nodes or len(listing) < len(nodes):
            return []
        roots = sorted({root for one in listing for root in one.directories})
        shown = ", ".join(roots[:_NAMED_NODES_MAX]) + (" ..." if len(roots) > _NAMED_NODES_MAX else "")
        message = (
            f"{spec.working_directory} lies in no directory that a connected node allows ({shown or 'none'}): it will "
            "refuse the job, unless a link leads inside; the node's owner adds it with --allow-directory"
        )
        return [_warning("DIRECTORY_NOT_LISTED", message)]

    async def _memory_warnings(
        self, state: ClusterState, nodes: Sequence[Node], spec: scheduling_pb2.JobSpec, patience_s: float
    ) -> list[resources_pb2.Warning]:
        """Compare what is stated or predicted with the devices.

        Raises:
            FitsNoDeviceError: Even the least that it may take is more than they have.
        """
        if not spec.memory_bytes and not spec.graph_sha256:
            return []
        sizes = _device_sizes(nodes, 1 if spec.across_nodes else gpus_at_least(spec))
        if sizes and spec.memory_bytes > max(sizes.values()):
            raise _stated_too_large(spec.memory_bytes, max(sizes.values()))
        # A number stated by the user overrides a prediction.
        if not sizes or spec.memory_bytes:
            return []
        most_gpus = gpus_together(nodes) if spec.across_nodes else max(map(gpus_of_one_kind, nodes))
        questions = _questions(spec, sizes, state, most_gpus=most_gpus)
        if any(_is_known_to_fit(state, question) for question in questions.values()):
            return []
        ranges = await self.ranges.ask(questions, patience_s=patience_s)
        return _judge(ranges, sizes)


def _check_quota(state: ClusterState, spec: scheduling_pb2.JobSpec) -> None:
    """Look whether a tenant may ever hold the GPUs of a job.

    Raises:
        QuotaTooSmallError: It may not.
    """
    rules = state.tenants.rules
    quota = rules.quota_of(spec.tenant) if rules is not None else None
    wanted = gpus_at_least(spec)
    if quota is not None and wanted > quota:
        fewer = f"ask for fewer {'--ranks' if spec.ranks else '--gpus'}, " if quota else ""
        raise QuotaTooSmallError(
            f"jobs of tenant {spec.tenant!r} may hold {agreed(f'{quota} GPU(s)')} at once; this one asks for {wanted}",
            metadata={"remedy": f"{fewer}let an operator raise the quota in the scheduler's --tenants file, {_FORCE}"},
        )


def _no_node(lacks: Mapping[str, Sequence[Obstacle]], *, away: int) -> NoNodeRunsItError:
    named = [f"{node_id} {' and '.join(one.finding for one in found)}" for node_id, found in lacks.items()]
    shown = "; ".join(named[:_NAMED_NODES_MAX])
    more = f"; and {len(named) - _NAMED_NODES_MAX} more nodes alike" if len(named) > _NAMED_NODES_MAX else ""
    unasked = agreed(f" ({away} known node(s) are not connected)") if away > 0 else ""
    remedies = dict.fromkeys(one.remedy for found in lacks.values() for one in found)
    return NoNodeRunsItError(
        f"no connected node can run this job: {shown}{more}{unasked}",
        metadata={"remedy": ", ".join([*remedies, _FORCE])},
    )


def _too_few_together(together: int, wanted: int) -> NoNodeRunsItError:
    return NoNodeRunsItError(
        f"the nodes that go on from each other's checkpoints have {agreed(f'{together} GPU(s)')} of one kind together, "
        f"not {wanted}",
        metadata={
            "remedy": "ask for fewer --ranks, start the agents of more nodes likewise (all with --shared-checkpoints, "
            f"or all without), {_FORCE}"
        },
    )


def _stated_too_large(stated_bytes: int, largest_bytes: int) -> FitsNoDeviceError:
    return FitsNoDeviceError(
        f"the job asks for {_gib(stated_bytes)} of device memory, and the largest device has {_gib(largest_bytes)}",
        metadata={"remedy": f"ask for less --memory, {_FORCE}"},
    )


def _device_sizes(nodes: Iterable[Node], gpus: int) -> dict[str, int]:
    """Return the largest memory of every device type of which a node has so many."""
    sizes: dict[str, int] = {}
    for node in nodes:
        for (device, memory_bytes, *_), count in Counter(map(kind_of, node.gpus)).items():
            if count >= gpus:
                sizes[device] = max(sizes.get(device, 0), memory_bytes)
    return sizes


def _questions(
    spec: scheduling_pb2.JobSpec,
    sizes: Mapping[str, int],
    state: ClusterState,
    *,
    most_gpus: int,
) -> Mapping[str, RequestPrediction]:
    """Ask about the smallest share of the batch that a GPU may get."""
    counts = [count for count in spec.allowed_gpus or (spec.gpus or 1,) if count <= most_gpus]
    batch = spec.settings.global_batch_size
    share = -(-batch // max(counts, default=1))
    return {
        device: RequestPrediction(
            key=key_of(spec.graph_sha256, kept_settings(spec)),
            device=device,
            device_memory_bytes=size,
            graph_sha256=spec.graph_sha256,
            settings=kept_settings(spec),
            micro_batch_sizes=(share,) if share != batch else (),
            gpus=(1,),
            calibration=state.calibrations.get(device),
            facts=state.device_facts.get(device),
        )
        for device, size in sorted(sizes.items())
    }


def _is_known_to_fit(state: ClusterState, question: RequestPrediction) -> bool:
    """Return whether the engine's own predictions suffice already."""
    known = state.predictions.job(question.key, question.device)
    whole = question.settings.global_batch_size if question.settings is not None else 1
    samples = min(question.micro_batch_sizes, default=whole)
    point = memory_point(known, samples) if known is not None else None
    return point is not None and point.memory_bytes_upper_99 <= question.device_memory_bytes


def _judge(ranges: Mapping[str, MemoryRange | PredictorError], sizes: Mapping[str, int]) -> list[resources_pb2.Warning]:
    answered = {device: one for device, one in ranges.items() if isinstance(one, MemoryRange)}
    failed = [one for one in ranges.values() if isinstance(one, PredictorError)]
    if any(one.upper_99_bytes <= sizes[device] for device, one in answered.items()):
        return []
    if failed:
        is_unwanted = all(one.code == "NO_PREDICTOR" for one in failed)
        message = f"whether the job fits is not known: {failed[0].message}"
        return [] if is_unwanted else [_warning("MEMORY_NOT_CHECKED", message)]
    device = max(answered, key=lambda one: (sizes[one] - answered[one].lower_bytes, one))
    need = answered[device]
    needed = f"{_gib(need.lower_bytes)} to {_gib(need.upper_99_bytes)} on {device}, which has {_gib(sizes[device])}"
    if need.lower_bytes > sizes[device]:
        raise FitsNoDeviceError(
            f"the job fits on no connected device: predicted are {needed}",
            metadata={"remedy": "use a smaller --batch-size (`cotenant predict` prints the largest that fits), add a "
                      f"larger device, {_FORCE}"},
        )  # fmt: skip
    return [
        _warning("MEMORY_MAY_NOT_FIT", f"the job may not fit: predicted are {needed}; a smaller --batch-size is safer")
    ]


def _environment_warnings(spec: scheduling_pb2.JobSpec) -> list[resources_pb2.Warning]:
    if _SET_BY_NODES not in spec.environment:
        return []
    message = f"{_SET_BY_NODES} is set by the node to the GPUs that the job is given; the submitted value is ignored"
    return [_warning("VARIABLE_SET_BY_NODE", message)]


def _launcher_warnings(spec: scheduling_pb2.JobSpec) -> list[resources_pb2.Warning]:
    launcher = PurePosixPath(spec.command[0]).name if spec.ranks > 1 else ""
    if launcher not in _LAUNCHERS:
        return []
    message = (
        f"{launcher} starts processes itself, and with --ranks the node starts it {spec.ranks} times: ask for --gpus "
        f"{spec.gpus} without --ranks, or put the script itself behind --"
    )
    return [_warning("LAUNCHER_STARTS_RANKS", message)]


def _warning(code: str, message: str) -> resources_pb2.Warning:
    return resources_pb2.Warning(code=code, message=message)


def _gib(size_bytes: int) -> str:
    return format_quantity("size_bytes", size_bytes)
