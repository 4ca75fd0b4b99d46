"""Ray as an engine: a job waits because its driver asks before it starts it, in the placement group of one GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from cotenant.engines.device_rules import DeviceRule
from cotenant.engines.errors import EngineRefusedError
from cotenant.engines.port import order_each
from cotenant.engines.ray.job_records import JOB, ORDER, OrderRecord, decode, encode
from cotenant.engines.ray.reading import RayReading
from cotenant.engines.ray.tables import RayTables
from cotenant.engines.records import EngineState, Placement


class RayEngine:
    """An `Engine`; jobs are those that `cotenant.ray` submits, by its names.

    Args:
        tables: Reach Ray.
        devices: What the GPUs of its nodes are.
        prepare: Called before each reading, to take GPUs that are there now.
        look: Called with each reading.
    """

    def __init__(
        self,
        tables: RayTables,
        devices: Sequence[DeviceRule],
        *,
        prepare: Callable[[], None] = lambda: None,
        look: Callable[[EngineState], None] = lambda _: None,
    ) -> None:
        self._tables = tables
        self._devices = tuple(devices)
        self._prepare = prepare
        self._look = look

    def read(self) -> EngineState:
        """Return the cluster as it is now."""
        self._prepare()
        state = RayReading(self._tables, self._devices).state()
        self._look(state)
        return state

    def annotate(self, job_id: str, note: str) -> None:
        """Write a note into a job's record."""
        self._write(job_id, replace(self._order(job_id), note=note))

    def place(self, placement: Placement) -> None:
        """Write a job's GPU into its record; it does not start yet."""
        order = self._unstarted(placement.job_id)
        if order.gpu_id or order.ending:
            raise EngineRefusedError(f"job {placement.job_id} has a GPU already, or is to end")
        group = next((gpu for gpu in self._tables.claimed_gpus() if gpu.gpu_id == placement.gpu_id), None)
        if group is None:
            raise EngineRefusedError(f"there is no GPU {placement.gpu_id} with a placement group any more")
        self._write(
            placement.job_id,
            OrderRecord(note=placement.note, gpu_id=placement.gpu_id, group_id=group.group_id, slots=placement.slots),
        )

    def release(self, job_id: str) -> None:
        """Let the driver of a placed job start it."""
        order = self._unstarted(job_id)
        if not order.gpu_id:
            raise EngineRefusedError(f"job {job_id} was not placed")
        self._write(job_id, replace(order, is_released=True))

    def release_all(self, job_ids: Sequence[str]) -> Mapping[str, str]:
        """Let placed jobs start, one after the other."""
        return order_each(self.release, job_ids)

    def hold(self, job_id: str) -> None:
        """Take back where a job was to run; it has not started yet."""
        self._unstarted(job_id)
        self._write(job_id, OrderRecord(note="cotenant: held"))

    def stop(self, job_id: str, *, grace_s: int) -> None:
        """Ask a job to end; its driver kills it after the grace."""
        self._write(job_id, replace(self._order(job_id), ending="stop", grace_s=grace_s))

    def requeue(self, job_id: str, *, grace_s: int) -> None:
        """Ask a job likewise; its driver lets it wait again."""
        order = self._order(job_id)
        if job_id not in self._tables.living_jobs():
            raise EngineRefusedError(f"job {job_id} does not run", remedy="--order hold keeps it from starting")
        self._write(job_id, replace(order, ending="requeue", grace_s=grace_s))

    def _order(self, job_id: str) -> OrderRecord:
        if self._tables.read(JOB + job_id) is None:
            raise EngineRefusedError(f"there is no job {job_id}")
        return decode(OrderRecord, self._tables.read(ORDER + job_id))

    def _unstarted(self, job_id: str) -> OrderRecord:
        order = self._order(job_id)
        if job_id in self._tables.living_jobs():
            raise EngineRefusedError(f"job {job_id} has started")
        return order

    def _write(self, job_id: str, order: OrderRecord) -> None:
        self._tables.write(ORDER + job_id, encode(order))
