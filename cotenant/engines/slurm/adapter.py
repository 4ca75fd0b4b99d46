"""Slurm as an engine: read by squeue and sinfo, told by scontrol."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from cotenant.engines.device_rules import DeviceRule
from cotenant.engines.errors import EngineRefusedError, EngineUnreachableError
from cotenant.engines.port import order_each
from cotenant.engines.records import EngineState, Placement
from cotenant.engines.slurm.commands import SlurmCommands
from cotenant.engines.slurm.node_gpus import type_of
from cotenant.engines.slurm.reading import SlurmReading
from cotenant.engines.slurm.values import number_of, rows_of, words_of
from cotenant.engines.slurm.waiting import job_names

JOBS_PER_ORDER_MAX: Final = 100
_JOBS: Final = ("squeue", "--json")
_NODES: Final = (("sinfo", "--json"), ("scontrol", "show", "nodes", "--json"))
"""Newer versions: sinfo writes groups of nodes, and scontrol, which has no --json in 22.05, the nodes."""
_NOTE_CHARACTERS_MAX: Final = 400
_JOB_NUMBER: Final = re.compile(r"[0-9]{1,10}(_[0-9]{1,10})?", re.ASCII)


class SlurmEngine:
    """An `Engine`; its account must be Slurm's operator where it gives orders.

    Args:
        commands: Reach Slurm.
        devices: What the GPUs of its nodes are.
    """

    def __init__(self, commands: SlurmCommands, devices: Sequence[DeviceRule]) -> None:
        self._commands = commands
        self._devices = tuple(devices)
        self._node_commands: tuple[tuple[str, ...], ...] = _NODES

    def read(self) -> EngineState:
        """Return the cluster as it is now."""
        # At the same time: each spends most of it in starting.
        with ThreadPoolExecutor(1) as reader:
            nodes = reader.submit(self._read_nodes)
            jobs = self._commands.query(_JOBS)
            return SlurmReading(nodes.result(), jobs, self._devices).state()

    def _read_nodes(self) -> Mapping[str, Any]:
        """Return a table with a row per node, by the command that this version of Slurm writes one with."""
        for command in self._node_commands:
            document = self._commands.query(command)
            if "nodes" in document:
                # The other one stays: Slurm may become newer while this runs.
                self._node_commands = (command, *(one for one in self._node_commands if one != command))
                return document
        raise EngineUnreachableError(f"{' '.join(command)} lists no nodes", remedy="Slurm 21.08 or newer is needed")

    def annotate(self, job_id: str, note: str) -> None:
        """Write a note into a job's AdminComment."""
        self._update(job_id, f"AdminComment={_plain(note)}")

    def place(self, placement: Placement) -> None:
        """Give a held job without gres its node and its GPU in one order."""
        type_name = f":{name}" if (name := type_of(placement.gpu_id)) else ""
        gres = f"shard{type_name}:{placement.slots}" if placement.slots else f"gpu{type_name}:1"
        self._update(
            placement.job_id,
            f"ReqNodeList={placement.node_id}",
            f"Gres={gres}",
            f"AdminComment={_plain(placement.note)}",
        )

    def release(self, job_id: str) -> None:
        """Let a placed job start."""
        self._commands.order(["scontrol", "release", _job_number(job_id)])

    def release_all(self, job_ids: Sequence[str]) -> Mapping[str, str]:
        """Let placed jobs start by one order; where it is refused, by one for each."""
        refused: dict[str, str] = {}
        for begin in range(0, len(job_ids), JOBS_PER_ORDER_MAX):
            some = job_ids[begin : begin + JOBS_PER_ORDER_MAX]
            try:
                self._commands.order(["scontrol", "release", ",".join(_job_number(job_id) for job_id in some)])
            except EngineRefusedError:
                refused |= order_each(self.release, some)
        return refused

    def hold(self, job_id: str) -> None:
        """Hold a job that has not started; a GPU that it was given stays its own."""
        number = _job_number(job_id)
        rows = rows_of(self._commands.query(_JOBS), "jobs")
        of_job = (row for row in rows if number in (*job_names(row), str(number_of(row, "job_id"))))
        states = next((words_of(row, "job_state") for row in of_job), frozenset())
        # scontrol takes the order for a running job too, and says nothing.
        if "PENDING" not in states:
            raise EngineRefusedError(f"job {job_id} has started, or is gone")
        self._commands.order(["scontrol", "hold", number])

    def stop(self, job_id: str, *, grace_s: int) -> None:
        """End a job by SIGTERM, and by SIGKILL after the KillWait of the site, whatever the grace."""
        self._commands.order(["scancel", _job_number(job_id)])

    def requeue(self, job_id: str, *, grace_s: int) -> None:
        """End a job likewise; it waits again, for the GPU that it had."""
        self._commands.order(["scontrol", "requeue", _job_number(job_id)])

    def _update(self, job_id: str, *changes: str) -> None:
        self._commands.order(["scontrol", "update", f"JobId={_job_number(job_id)}", *changes])


def _job_number(job_id: str) -> str:
    """Return the id of one job or of one task of an array, never a list or a pattern of several."""
    if not _JOB_NUMBER.fullmatch(job_id):
        raise EngineRefusedError(
            f"{job_id!r} is no job of Slurm", remedy="name one as squeue does: 4712, or 4712_3 for a task of an array"
        )
    return job_id


def _plain(note: str) -> str:
    return " ".join("".join(letter if letter.isprintable() else " " for letter in note).split())[:_NOTE_CHARACTERS_MAX]
