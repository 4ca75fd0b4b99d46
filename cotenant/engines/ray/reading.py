"""Ray's tables as records: GPUs with a placement group of ours, and the jobs that wait for them or run there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cotenant.engines.device_rules import DeviceRule, rule_of
from cotenant.engines.job_tag import read_tag
from cotenant.engines.ray.job_records import (
    JOB,
    ORDER,
    PROGRESS,
    JobRecord,
    OrderRecord,
    ProgressRecord,
    read_records,
)
from cotenant.engines.ray.tables import ClaimedGpu, RayTables
from cotenant.engines.records import EngineGpu, EngineJob, EngineNode, EnginePhase, EngineState

SLOTS: Final = 100
"""Parts of a GPU: Ray counts in fractions, of which hundredths are enough."""
WARNINGS_MAX: Final = 20


class RayReading:
    """One reading.

    Args:
        tables: Reach Ray.
        devices: The first rule that fits a node counts.
    """

    def __init__(self, tables: RayTables, devices: Sequence[DeviceRule]) -> None:
        self._devices = devices
        self._warnings: list[str] = []
        self._claimed = tables.claimed_gpus()
        self._living_nodes = {node.node_hex: node for node in tables.nodes()}
        self._records = read_records(tables, JOB, JobRecord)
        self._orders = read_records(tables, ORDER, OrderRecord)
        self._reports = read_records(tables, PROGRESS, ProgressRecord)
        # Last: a job that starts meanwhile is seen with its record.
        self._living_jobs = tables.living_jobs()

    def state(self) -> EngineState:
        """Return it."""
        nodes = tuple(self._node(node_id) for node_id in sorted({gpu.node_id for gpu in self._claimed}))
        jobs = tuple(self._job(job_id, record) for job_id, record in sorted(self._records.items()))
        self._warnings += [
            f"actor {name} in the namespace cotenant was not submitted by cotenant.ray; nothing is known of its GPU"
            for name in sorted(self._living_jobs - self._records.keys())
        ]
        return EngineState(nodes=nodes, jobs=jobs, warnings=tuple(self._warnings[:WARNINGS_MAX]))

    def _node(self, node_id: str) -> EngineNode:
        claimed = sorted((gpu for gpu in self._claimed if gpu.node_id == node_id), key=lambda gpu: gpu.gpu_index)
        living = self._living_nodes.get(claimed[0].node_hex)
        rule = rule_of(node_id, self._devices)
        if rule is None:
            self._warnings.append(f"node {node_id} has GPUs and no --gpu names their type; no job is placed there")
        return EngineNode(
            node_id=node_id,
            cpu_cores=living.cpu_cores if living else 0.0,
            host_memory_bytes=living.memory_bytes if living else 0,
            is_usable=living is not None,
            gpus=tuple(_gpu(gpu, rule) for gpu in claimed) if rule else (),
        )

    def _job(self, job_id: str, record: JobRecord) -> EngineJob:
        order, is_alive = self._orders.get(job_id, OrderRecord()), job_id in self._living_jobs
        gpu_id = (self._seen_gpu(record) if is_alive else "") or order.gpu_id
        return EngineJob(
            job_id=job_id,
            phase=_phase(order, is_alive=is_alive),
            tag=read_tag(record.tag),
            held_slots={gpu_id: order.slots} if gpu_id else {},
            note=order.note,
            tenant=record.tenant,
            submitted_at_ms=record.submitted_at_ms,
            started_at_ms=record.started_at_ms if is_alive else 0,
            steps_done=self._steps_done(job_id, record) if is_alive else 0,
        )

    def _steps_done(self, job_id: str, record: JobRecord) -> int:
        """Return what the present attempt has reported; what an earlier one did may be lost."""
        report = self._reports.get(job_id, ProgressRecord())
        return max(report.steps, 0) if report.at_ms >= record.started_at_ms else 0

    def _seen_gpu(self, record: JobRecord) -> str:
        """Return the GPU that a job itself sees; empty = it has not said so yet."""
        if not record.node_hex:
            return ""
        found = (gpu for gpu in self._claimed if (gpu.node_hex, gpu.gpu_index) == (record.node_hex, record.gpu_index))
        return next((gpu.gpu_id for gpu in found), f"{record.node_hex[:8]}/{record.gpu_index or 'none'}")


def _gpu(claimed: ClaimedGpu, rule: DeviceRule) -> EngineGpu:
    return EngineGpu(gpu_id=claimed.gpu_id, device=rule.device, memory_bytes=rule.memory_bytes, slots=SLOTS)


def _phase(order: OrderRecord, *, is_alive: bool) -> EnginePhase:
    if is_alive:
        return EnginePhase.RUNNING
    if not order.gpu_id:
        return EnginePhase.HELD
    return EnginePhase.PLACED if order.is_released else EnginePhase.INTERRUPTED
