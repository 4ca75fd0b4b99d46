"""What squeue and sinfo write, as records: nodes with their GPUs, jobs that wait for GPUs or hold some."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

from cotenant.engines.device_rules import DeviceRule
from cotenant.engines.job_tag import read_tag
from cotenant.engines.placement_notes import planned_gpu
from cotenant.engines.records import EngineJob, EngineNode, EnginePhase, EngineState
from cotenant.engines.slurm import requests
from cotenant.engines.slurm.features import fits_features
from cotenant.engines.slurm.gres import Gres, read_gres
from cotenant.engines.slurm.node_gpus import names_of, read_gpus, type_of
from cotenant.engines.slurm.node_lists import expand_nodes
from cotenant.engines.slurm.settling import settled
from cotenant.engines.slurm.values import number_of, rows_of, text_of, words_of
from cotenant.engines.slurm.waiting import HELD_BY_OPERATOR, JobsByName, job_names, obstacle_of

WARNINGS_MAX: Final = 20
_USABLE: Final = frozenset({"IDLE", "MIXED", "ALLOCATED", "MIX", "ALLOC"})
_CLOSED: Final = frozenset(
    {"DRAIN", "DRAINING", "DOWN", "FAIL", "FAILING", "MAINT", "MAINTENANCE", "NOT_RESPONDING", "REBOOT", "POWERED_DOWN"}
)
_HOLDING: Final = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "CONFIGURING", "STOPPED", "STAGE_OUT"})
_HELD: Final = frozenset({"JobHeldAdmin", "JobHeldUser"})
_NEVER: Final = "DependencyNeverSatisfied"
_OUR_NOTES: Final = "cotenant"
_MIB: Final = 2**20
_NAME_CHARACTERS_MAX: Final = 100


class SlurmReading:
    """One reading of both tables.

    Args:
        nodes: What sinfo wrote.
        jobs: What squeue wrote.
        devices: The first rule that fits a node counts.
    """

    def __init__(self, nodes: Mapping[str, Any], jobs: Mapping[str, Any], devices: Sequence[DeviceRule]) -> None:
        self._devices = devices
        self._warnings: list[str] = []
        self._nodes = {node.node_id: node for row in rows_of(nodes, "nodes") if (node := self._node(row)) is not None}
        self._rows = {text_of(row, "name"): row for row in rows_of(nodes, "nodes")}
        self._unfit: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._gpu_ids = {gpu.gpu_id for node in self._nodes.values() for gpu in node.gpus}
        self._partitions: dict[str, list[str]] = defaultdict(list)
        for node in self._nodes.values():
            for queue in node.queues:
                self._partitions[queue].append(node.node_id)
        rows = rows_of(jobs, "jobs")
        self._by_name = JobsByName(rows)
        self._arrays_told = {number_of(row, "array_job_id") for row in rows if _is_told_apart(row)}
        self._jobs = [job for row in rows for job in self._jobs_of(row)]

    def state(self) -> EngineState:
        """Return it."""
        nodes = tuple(self._with_rest(node) for node in self._nodes.values())
        warnings = self._warnings[:WARNINGS_MAX]
        if len(self._warnings) > WARNINGS_MAX:
            warnings.append(f"and {len(self._warnings) - WARNINGS_MAX:,} more like these")
        return EngineState(nodes=nodes, jobs=settled(self._jobs, self._nodes), warnings=tuple(warnings))

    def _with_rest(self, node: EngineNode) -> EngineNode:
        """Take off what jobs without a GPU use: it is not there for the others."""
        row, with_gpus = self._rows[node.node_id], self._used[node.node_id]
        cores = max(number_of(row, "alloc_cpus") - with_gpus["cores"], 0)
        memory_bytes = max(number_of(row, "alloc_memory") * _MIB - with_gpus["bytes"], 0)
        return replace(
            node, cpu_cores=node.cpu_cores - cores, host_memory_bytes=max(node.host_memory_bytes - memory_bytes, 0)
        )

    @cached_property
    def _used(self) -> Mapping[str, Counter[str]]:
        """What running jobs with GPUs use on each node; of several nodes, all of it on each."""
        used: dict[str, Counter[str]] = defaultdict(Counter)
        for job in filter(_is_running, self._jobs):
            for node_id in {gpu_id.partition("/")[0] for gpu_id in job.held_slots}:
                used[node_id].update(cores=int(job.cpu_cores), bytes=job.host_memory_bytes)
        return used

    def _node(self, row: Mapping[str, Any]) -> EngineNode | None:
        node_id, entries = text_of(row, "name"), read_gres(text_of(row, "gres"))
        gpus = tuple(read_gpus(node_id, entries, self._devices, self._warnings))
        if not gpus:
            return None
        states = words_of(row, "state") | words_of(row, "state_flags")
        return EngineNode(
            node_id=node_id,
            cpu_cores=number_of(row, "cpus"),
            host_memory_bytes=number_of(row, "real_memory") * _MIB,
            is_usable=bool(states & _USABLE) and not states & _CLOSED,
            queues=tuple(sorted(part for part in text_of(row, "partitions").split(",") if part)),
            gpus=gpus,
        )

    def _jobs_of(self, row: Mapping[str, Any]) -> Iterator[EngineJob]:
        """Yield the job of a row, or the tasks of an array that wait in it: an order to all would give all one GPU."""
        job_id, *others = job_names(row)
        job = self._job(job_id, row)
        if job is None:
            return
        is_first_told = bool(text_of(row, "array_task_string")) and number_of(row, "array_job_id") in self._arrays_told
        yield replace(job, takes_notes=not is_first_told)
        # A note makes a task a row of its own: it is enough that one task of each array says why they wait.
        yield from (replace(job, job_id=other, takes_notes=False) for other in others)

    def _job(self, job_id: str, row: Mapping[str, Any]) -> EngineJob | None:
        states = words_of(row, "job_state")
        tag, note = read_tag(text_of(row, "comment")), text_of(row, "admin_comment")
        asked = requests.gres_asked(row)
        if states & _HOLDING:
            held = self._held(job_id, row)
            if not held:
                return None
            phase = EnginePhase.RUNNING
        elif "PENDING" in states and tag is not None:
            planned = planned_gpu(note) if asked else ""
            held = {} if text_of(row, "state_reason") == _NEVER else self._given(planned, asked)
            if planned and planned not in self._gpu_ids:
                self._warnings.append(
                    f"job {job_id} waits for {planned}, which is no more; a gres is never altered: submit it again"
                )
            phase = _pending_phase(row, has_gres=bool(asked), is_planned=bool(held))
        else:
            return None
        job = EngineJob(
            job_id=job_id,
            phase=phase,
            tag=tag,
            gpus=requests.gpus_asked(row) or max(len(held), 1),
            held_slots=held,
            note=note,
            tenant=text_of(row, "account") or text_of(row, "user_name") or str(number_of(row, "user_id")),
            cpu_cores=requests.cpu_cores_asked(row),
            host_memory_bytes=requests.host_memory_bytes_asked(row),
            submitted_at_ms=number_of(row, "submit_time") * 1_000,
            started_at_ms=number_of(row, "start_time") * 1_000 if phase is EnginePhase.RUNNING else 0,
            array_id=str(number_of(row, "array_job_id") or ""),
            array_running_max=number_of(row, "array_max_tasks"),
        )
        if phase is EnginePhase.HELD:
            # Of a job that is held Slurm states one where its user did, by --begin.
            begins_at_ms = number_of(row, "eligible_time") * 1_000
            job = replace(job, not_before_ms=begins_at_ms, obstacle=obstacle_of(job_id, row, self._by_name))
        return self._with_places(job, row, asked)

    def _with_places(self, job: EngineJob, row: Mapping[str, Any], asked: Sequence[Gres]) -> EngineJob:
        """Add where a job may run; a form that is not understood leaves it with no node at all."""
        queues = tuple(part for part in text_of(row, "partition").split(",") if part)
        # A running one is where it is.
        is_waiting = job.phase is not EnginePhase.RUNNING
        try:
            required = expand_nodes(text_of(row, "required_nodes"))
            excluded = expand_nodes(text_of(row, "excluded_nodes"))
            excluded += self._unfit_nodes(row, asked) if is_waiting else ()
        except ValueError as error:
            self._warnings.append(f"job {job.job_id}: {error}; it is placed nowhere")
            required, excluded = ("",), ()
        if not required and len(queues) > 1:
            served = (node_id for queue in queues for node_id in self._partitions.get(queue, ()))
            required = tuple(dict.fromkeys(served)) or ("",)
        types = {entry.type_name for entry in asked} - {""} if is_waiting else set()
        devices = {gpu.device for node in self._nodes.values() for gpu in node.gpus if type_of(gpu.gpu_id) in types}
        return replace(
            job,
            queues=queues,
            allowed_node_ids=required,
            excluded_node_ids=tuple(dict.fromkeys(excluded)),
            allowed_devices=tuple(sorted(devices)),
        )

    def _unfit_nodes(self, row: Mapping[str, Any], asked: Iterable[Gres]) -> tuple[str, ...]:
        """Return the nodes without what a job asks for by --constraint, --gres or --reservation.

        Raises:
            ValueError: The constraint is not understood.
        """
        constraint, reservation = text_of(row, "features"), text_of(row, "resv_name")
        kinds = sorted({f"{entry.kind}:{entry.type_name}" for entry in asked})
        key = (constraint, reservation, *kinds)
        if key not in self._unfit:
            self._unfit[key] = tuple(
                node_id for node_id in self._nodes if not _is_fit(self._rows[node_id], constraint, reservation, kinds)
            )
        return self._unfit[key]

    def _held(self, job_id: str, row: Mapping[str, Any]) -> dict[str, int]:
        """Return the GPUs of a running job; a GPU that is not identified closes all of its node."""
        found: dict[str, int] = {}
        details = row.get("gres_detail")
        try:
            names = expand_nodes(text_of(row, "nodes"))
        except ValueError:
            names = ()
        for node_id, detail in zip(names, details if isinstance(details, list) else (), strict=False):
            node = self._nodes.get(node_id)
            for entry in read_gres(str(detail)) if node is not None else ():
                if not entry.count:
                    continue
                gpu_ids = [gpu_id for gpu_id in names_of(node_id, entry) if gpu_id in self._gpu_ids]
                if not gpu_ids and node is not None:
                    self._warnings.append(
                        f"job {job_id} holds {str(detail)[:_NAME_CHARACTERS_MAX]} on {node_id}, no GPU known"
                    )
                    gpu_ids = [gpu.gpu_id for gpu in node.gpus]
                found.update(dict.fromkeys(gpu_ids, entry.count if entry.kind == "shard" else 0))
        return found

    def _given(self, planned: str, asked: Iterable[Gres]) -> dict[str, int]:
        """Return what we gave a job that waits: the GPU of our note, if its gres is the one that belongs to it."""
        for entry in asked:
            if planned in self._gpu_ids and entry.type_name in (type_of(planned), ""):
                return {planned: entry.count if entry.kind == "shard" else 0}
        return {}


def _is_fit(node: Mapping[str, Any], constraint: str, reservation: str, kinds: Iterable[str]) -> bool:
    """Say whether a node has what a job asks for; kinds are `gpu:a100`, or `gpu:` of any type."""
    features = (text_of(node, "active_features") or text_of(node, "features")).split(",")
    has = {kind for one in read_gres(text_of(node, "gres")) for kind in (f"{one.kind}:", f"{one.kind}:{one.type_name}")}
    is_reserved = "RESERVED" in words_of(node, "state") | words_of(node, "state_flags")
    # Which reservation it is only newer versions say.
    is_open = is_reserved == bool(reservation) and text_of(node, "reservation") in ("", *reservation.split(","))
    return is_open and has.issuperset(kinds) and fits_features(constraint, features)


def _pending_phase(row: Mapping[str, Any], *, has_gres: bool, is_planned: bool) -> EnginePhase:
    # Without our note its user holds it: job_submit.lua tags what it holds.
    is_ours, reason = text_of(row, "admin_comment").startswith(_OUR_NOTES), text_of(row, "state_reason")
    is_held = is_ours and number_of(row, "priority") == 0 and reason in _HELD
    if is_planned:
        # One that was released before is held by its user or an operator.
        is_interrupted = is_held and reason != HELD_BY_OPERATOR and not number_of(row, "accrue_time")
        return EnginePhase.INTERRUPTED if is_interrupted else EnginePhase.PLACED
    return EnginePhase.HELD if is_held and not has_gres else EnginePhase.WAITING


def _is_told_apart(row: Mapping[str, Any]) -> bool:
    """Say whether a row is a held task of an array that says by itself why it waits."""
    is_held = number_of(row, "priority") == 0 and "PENDING" in words_of(row, "job_state")
    return is_held and bool(number_of(row, "array_job_id")) and not text_of(row, "array_task_string")


def _is_running(job: EngineJob) -> bool:
    return job.phase is EnginePhase.RUNNING
