"""Random snapshots for Decide: clusters that can exist, in every mixture that a client may send, and broken ones."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from cotenant.v1 import resources_pb2, scheduling_pb2

GIB = 2**30
_MEMORY_BYTES = {"V100": 16 * GIB, "A100": 40 * GIB, "T4": 15 * GIB}
_ODD_VALUES = {
    FieldDescriptor.TYPE_DOUBLE: (float("nan"), float("inf"), -float("inf"), -1.0, 1e308, 5e-324),
    FieldDescriptor.TYPE_INT32: (-1, 2**31 - 1, -(2**31), 0),
    FieldDescriptor.TYPE_INT64: (-1, 2**63 - 1, -(2**63), 0),
    FieldDescriptor.TYPE_ENUM: (0, 77, -3),
    FieldDescriptor.TYPE_STRING: ("", "x" * 5_000, "g0.0"),
    FieldDescriptor.TYPE_BOOL: (False, True),
}


class SnapshotMaker:
    """Draws one snapshot.

    Args:
        seed: The same seed gives the same snapshot.
    """

    def __init__(self, seed: int) -> None:
        self.generator = random.Random(seed)
        self.snapshot = scheduling_pb2.Snapshot(now_ms=self.generator.choice((0, 1_000, 10**13)), seed=seed)
        self._keys = [f"k{number}" for number in range(self.generator.choice((1, 3, 6)))]
        self._has_servers = self.generator.random() < 0.3
        self._has_limits = seed % 2 == 1
        self._jobs = 0

    def make(self) -> scheduling_pb2.Snapshot:
        """Return the snapshot."""
        self._add_nodes()
        self._add_running()
        for _ in range(self.generator.choice((1, 3, 10, 25))):
            self._add_pending()
        for device in sorted({gpu.device for node in self.snapshot.nodes for gpu in node.gpus}):
            for key in self._keys:
                self._add_prediction(key, device)
        return self.snapshot

    def _add_nodes(self) -> None:
        generator = self.generator
        devices = generator.choice((["V100"], ["T4"], ["V100", "A100"]))
        for number in range(generator.choice((0, 1, 2, 3, 6))):
            node = self.snapshot.nodes.add(
                node_id=f"n{number}",
                rack_id=generator.choice(("", "r0", "r1")),
                cpu_cores=generator.choice((0, 4, 64)),
                host_memory_bytes=generator.choice((0, 8 * GIB, 256 * GIB)),
                schedulable=generator.random() < 0.9,
                queues=generator.choice(([], [], ["day"], ["day", "night"])) if self._has_limits else [],
            )
            for index in range(generator.choice((0, 1, 2, 4, 8))):
                device = generator.choice(devices)
                node.gpus.add(
                    gpu_id=f"g{number}.{index}",
                    device=device,
                    memory_bytes=_MEMORY_BYTES[device],
                    healthy=generator.random() < 0.9,
                    slowdown_ewma_ratio=generator.choice((0, 0, 0.1, 0.5, 3)),
                )

    def _job(self) -> scheduling_pb2.SnapshotJob:
        generator = self.generator
        self._jobs += 1
        job = scheduling_pb2.SnapshotJob(
            job_id=f"j{self._jobs:03d}",
            job_key=generator.choice(self._keys) if generator.random() < 0.9 else "",
            gpus=generator.choice((0, 1, 1, 1, 2, 3, 4, 8, 16)),
            global_batch_size=generator.choice((0, 1, 2, 7, 32, 33, 1_000)),
            steps_total=generator.choice((0, 1, 100, 10**5, 10**9)),
            share=generator.choice(resources_pb2.ShareMode.values()),
            max_slowdown_ratio=generator.choice((0, 0.05, 0.2, 1, 10)),
            cpu_cores=generator.choice((0, 0, 1, 8)),
            host_memory_bytes=generator.choice((0, 0, GIB, 16 * GIB)),
            memory_floor_bytes=generator.choice((0, 0, 0, 10 * GIB, 50 * GIB)),
            migration_cost_ms=generator.choice((0, 100, 10**7)),
            allowed_gpus=sorted(generator.sample((1, 2, 3, 4, 8), 2)) if generator.random() < 0.4 else [],
        )
        if self._has_servers and generator.random() < 0.6:
            job.worker_demand.CopyFrom(scheduling_pb2.TaskDemand(cpu_cores=generator.choice((0, 1, 2)), gpus=1))
            job.server_demand.CopyFrom(scheduling_pb2.TaskDemand(cpu_cores=generator.choice((0, 1, 4))))
        if self._has_limits:
            self._limit(job)
        return job

    def _limit(self, job: scheduling_pb2.SnapshotJob) -> None:
        generator = self.generator
        job.queue = generator.choice(("", "", "day", "night", "never"))
        job.allowed_node_ids.extend(generator.choice(([], [], ["n0"], ["n0", "n2"], ["elsewhere"])))
        job.excluded_node_ids.extend(generator.choice(([], [], ["n1"])))
        job.allowed_devices.extend(generator.choice(([], [], ["V100"], ["T4", "A100"])))
        job.anti_affinity_group = generator.choice(("", "", "db"))
        if generator.random() < 0.3:
            job.stated_memory_bytes = generator.choice((0, GIB, 30 * GIB))
            job.stated_utilization_ratio = generator.choice((0, 0.2, 1))
            job.stated_step_ms = generator.choice((0, 0.5, 1e5))
        if generator.random() < 0.3:
            job.stated_slowdown_ratio = generator.choice((0, 0.1, 5))

    def _add_running(self) -> None:
        held: dict[str, list[int]] = defaultdict(list)
        by_device: dict[str, list[str]] = defaultdict(list)
        for gpu in (gpu for node in self.snapshot.nodes for gpu in node.gpus):
            by_device[gpu.device].append(gpu.gpu_id)
        for _ in range(self.generator.choice((0, 1, 3, 8)) if by_device else 0):
            job = self._job()
            gpu_ids = [
                one for one in by_device[self.generator.choice(sorted(by_device))] if _admits(held[one], job.share)
            ]
            if len(gpu_ids) < max(job.gpus, 1):
                continue
            entry = self.snapshot.running.add(
                job=job,
                micro_batch_size=self.generator.choice((0, 1, 8)),
                steps_done=self.generator.choice((0, 50, 10**10)),
                attained_gpu_ms=self.generator.choice((0, 10**6, 10**9)),
                started_at_ms=self.generator.choice((0, self.snapshot.now_ms)),
            )
            for rank, gpu_id in enumerate(self.generator.sample(gpu_ids, max(job.gpus, 1))):
                held[gpu_id].append(job.share)
                entry.assignments.add(gpu_id=gpu_id, rank=rank)

    def _add_pending(self) -> None:
        now_ms = self.snapshot.now_ms
        self.snapshot.pending.add(
            job=self._job(),
            submitted_at_ms=self.generator.choice((0, now_ms, now_ms + 1_000, now_ms // 2)),
            not_before_ms=self.generator.choice((0, 0, 0, now_ms + 5)),
            steps_done=self.generator.choice((0, 0, 60, 10**10)),
            attained_gpu_ms=self.generator.choice((0, 10**8)),
        )

    def _add_prediction(self, key: str, device: str) -> None:
        generator = self.generator
        found = self.snapshot.job_predictions.add(
            job_key=key,
            device=device,
            utilization_ratio=generator.choice((0, 0.1, 0.5, 1)),
            level=generator.choice((0, 1, 2, 3, 4)),
            in_domain=generator.random() < 0.8,
        )
        if generator.random() < 0.5:
            found.sm_activity_ratio = generator.choice((0, 0.2, 0.9, 1))
        if generator.random() < 0.5:
            found.memory_triple.gamma_ratio = generator.choice((0, 0.2, 0.6))
            found.memory_triple.delta_ratio = generator.choice((0, 0.1, 0.4))
            found.memory_triple.high_state_ratio = generator.choice((0, 0.3, 1))
        base_bytes = generator.choice((GIB // 2, 3 * GIB, 14 * GIB, 60 * GIB))
        for samples in sorted(generator.sample((1, 2, 4, 8, 16, 32, 33, 500, 1_000), generator.choice((0, 2, 5)))):
            found.micro_batches.add(micro_batch_size=samples, memory_bytes=base_bytes + samples * 2**20)
        for gpus in generator.sample((1, 2, 3, 4, 8), generator.choice((0, 2, 5))):
            for samples in generator.sample((1, 4, 8, 16, 32, 1_000), 3):
                found.step_times.add(
                    gpus=gpus, micro_batch_size=samples, step_ms=generator.choice((0.001, 1, 100, 1e6)) / gpus
                )
        if self._has_servers:
            found.step_times.add(workers=1, servers=1, step_ms=100)
            found.step_times.add(workers=2, servers=1, step_ms=60)
        for other in self._keys:
            if generator.random() < 0.7:
                self.snapshot.pair_predictions.add(
                    victim_job_key=key,
                    other_job_key=other,
                    device=device,
                    micro_batch_size=generator.choice((0, 1, 8, 32)),
                    slowdown_ratio=generator.choice((0, 0.1, 0.4, 2, -0.1)),
                    level=generator.choice((0, 1, 2, 3, 4)),
                    in_domain=generator.random() < 0.8,
                )


def _admits(shares: list[int], share: int) -> bool:
    return not shares or (len(shares) < 2 and min(share, *shares) > resources_pb2.SHARE_MODE_NEVER)


def break_somewhere(snapshot: scheduling_pb2.Snapshot, seed: int) -> None:
    """Put values that no cluster has into some fields, whichever."""
    generator = random.Random(seed)
    messages: list[Message] = []
    _collect(snapshot, messages)
    for _ in range(generator.choice((1, 2, 4))):
        message = generator.choice(messages)
        # A token of nothing that is kept is the one thing for which a snapshot is refused as a whole.
        fields = [one for one in message.DESCRIPTOR.fields if one.message_type is None and one.name != "base_token"]
        field = generator.choice(fields)
        if field.is_repeated:
            odd = _ODD_VALUES[field.type] if field.type == FieldDescriptor.TYPE_STRING else (0, -1, 2**31 - 1)
            getattr(message, field.name).append(generator.choice(odd))
        else:
            setattr(message, field.name, generator.choice(_ODD_VALUES[field.type]))


def repeat_somewhere(snapshot: scheduling_pb2.Snapshot, seed: int) -> None:
    """Put a row of a snapshot there a second time, whichever."""
    generator = random.Random(seed)
    tables: list[Any] = [snapshot.nodes, snapshot.running, snapshot.pending, *(node.gpus for node in snapshot.nodes)]
    filled = [rows for rows in tables if len(rows)]
    if filled:
        rows = generator.choice(filled)
        rows.add().CopyFrom(generator.choice(rows))


def _collect(message: Message, found: list[Message]) -> None:
    found.append(message)
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in value if field.is_repeated else (value,):
                _collect(part, found)


def faults_of(snapshot: scheduling_pb2.Snapshot, answer: scheduling_pb2.DecideResponse) -> list[str]:
    """Return what is wrong with an answer, judged by the messages alone."""
    pending = {one.job.job_id: one.job for one in snapshot.pending}
    running = {one.job.job_id: one.job for one in snapshot.running}
    devices = {
        gpu.gpu_id: gpu.device for node in snapshot.nodes if node.schedulable for gpu in node.gpus if gpu.healthy
    }
    faults = _faults_of_limits(snapshot, answer)
    counted = Counter(one.job_id for one in answer.decisions if one.job_id in pending)
    if counted != Counter(pending.keys()):
        faults.append(f"decisions per pending job: {counted}")
    for decision in answer.decisions:
        if not (decision.reason.code and decision.reason.message):
            faults.append(f"{decision.job_id} without a reason")
        action = decision.WhichOneof("action") or ""
        if action not in {"start", "reshape", "migrate"}:
            continue
        job, part = (pending | running)[decision.job_id], getattr(decision, action)
        gpu_ids = [one.gpu_id for one in part.assignments]
        if not gpu_ids or len(set(gpu_ids)) < len(gpu_ids) or len({devices.get(one, one) for one in gpu_ids}) > 1:
            faults.append(f"{decision.job_id} on {gpu_ids}")
        if sorted(one.rank for one in part.assignments) != list(range(len(gpu_ids))):
            faults.append(f"ranks of {decision.job_id}")
        if action == "start" and len(gpu_ids) not in {*job.allowed_gpus, job.gpus or 1}:
            faults.append(f"{decision.job_id} on {len(gpu_ids)} GPUs")
        if action != "migrate" and min(part.micro_batch_size, part.accumulation_steps) < 1:
            faults.append(f"{decision.job_id} with an empty batch")
    return faults


def _faults_of_limits(snapshot: scheduling_pb2.Snapshot, answer: scheduling_pb2.DecideResponse) -> list[str]:
    """Return which placements break the queue, nodes, device types or group that a job states."""
    node_of = {gpu.gpu_id: node for node in snapshot.nodes for gpu in node.gpus}
    device_of = {gpu.gpu_id: gpu.device for node in snapshot.nodes for gpu in node.gpus}
    jobs = {one.job.job_id: one.job for one in snapshot.running}
    jobs |= {one.job.job_id: one.job for one in snapshot.pending}
    held = [(one.job, part.gpu_id) for one in snapshot.running for part in one.assignments if part.gpu_id in node_of]
    in_group = {(job.anti_affinity_group, node_of[gpu_id].node_id) for job, gpu_id in held}
    faults = []
    for decision in answer.decisions:
        job = jobs.get(decision.job_id)
        placement = getattr(decision, decision.WhichOneof("action") or "", None)
        gpu_ids = {part.gpu_id for part in getattr(placement, "assignments", ())}
        nodes = {node_of[gpu_id].node_id: node_of[gpu_id] for gpu_id in gpu_ids if gpu_id in node_of}
        if job is None:
            continue
        queue_fits = all(not job.queue or not node.queues or job.queue in node.queues for node in nodes.values())
        named_fits = not job.allowed_node_ids or nodes.keys() <= set(job.allowed_node_ids)
        device_fits = not job.allowed_devices or {device_of.get(one) for one in gpu_ids} <= set(job.allowed_devices)
        if not (queue_fits and named_fits and device_fits) or nodes.keys() & set(job.excluded_node_ids):
            faults.append(f"{decision.job_id} must not run on {sorted(gpu_ids)}")
        places = {(job.anti_affinity_group, node_id) for node_id in nodes} if job.anti_affinity_group else set()
        if places & in_group:
            faults.append(f"{decision.job_id} meets its group on {sorted(nodes)}")
        in_group |= places
    return faults
