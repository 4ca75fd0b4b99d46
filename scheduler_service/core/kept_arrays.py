"""Keeps the columns of the GPUs up to date: what events have touched since the last reading, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

from scheduler_service.core.gpu_arrays import GpuArrays, build_arrays, load_of
from scheduler_service.core.ledger import Ledger
from scheduler_service.core.rest_column import RestColumn, Rests
from scheduler_service.core.state import ClusterState
from scheduler_service.core.view import HostUse, SchedulingView

UNUSED_CLASSES_MAX = 10_000
"""Classes beyond the number of GPUs after which everything is built anew, since classes are never forgotten."""


class KeptArrays:
    """The columns of one state, built when somebody reads them for the first time.

    Args:
        state: Notes the GPUs that events touch, and every change of nodes.
    """

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._layout = -1
        self._columns: GpuArrays | None = None

    def read(self, view: SchedulingView) -> GpuArrays:
        """Return the columns as of a view of the state."""
        columns, state = self._columns, self._state
        is_crowded = columns is not None and len(columns.classes) > len(columns.gpu_ids) + UNUSED_CLASSES_MAX
        if columns is None or is_crowded or self._layout != state.layout:
            self._layout = state.layout
            columns = self._columns = build_arrays(view)
        else:
            self._catch_up(view, columns)
        state.touched_gpu_ids.clear()
        return columns

    def _catch_up(self, view: SchedulingView, columns: GpuArrays) -> None:
        ledger, node_ids = Ledger(view), set[str]()
        for gpu_id in sorted(self._state.touched_gpu_ids):
            entry = view.gpus.get(gpu_id)
            if entry is not None:
                columns.put_gpu(gpu_id, load_of(entry, ledger.residents(gpu_id)))
                node_ids.add(entry.node_id)
        for node_id in node_ids:
            columns.put_host(view, node_id, view.host_use.get(node_id) or HostUse())


class KeptRests:
    """The column of remaining times of one state, built when somebody reads it for the first time.

    Args:
        state: Notes the running jobs that events touch, and every change of nodes.
    """

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._layout = -1
        self._column: RestColumn | None = None

    def read(self, view: SchedulingView, gpu_ids: Sequence[str]) -> Rests:
        """Return the column as of a view of the state; GPUs at their positions."""
        state, column = self._state, self._column
        touched: Iterable[str] = state.touched_job_ids
        if column is None or self._layout != state.layout:
            self._layout, touched = state.layout, state.running
            column = self._column = RestColumn({gpu_id: position for position, gpu_id in enumerate(gpu_ids)})
        for job_id in touched:
            job = state.jobs[job_id]
            column.put(view, job, pace_ms=job.pace_ms or inf)
        state.touched_job_ids.clear()
        return column.at(view.now_ms)
