"""Slurm's commands over tables in memory, rows as Slurm 22.05 writes them; orders change them as they do there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cotenant.engines.errors import EngineRefusedError

_RECORDED = Path(__file__).parents[1] / "unit" / "engines" / "recorded"
_FIELDS = {"ReqNodeList": "required_nodes", "AdminComment": "admin_comment", "Gres": "tres_per_node"}


class FakeSlurm:
    """A `SlurmCommands` with the nodes of the recording and jobs of a test's own."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = json.loads((_RECORDED / "sinfo_22_05.json").read_text())["nodes"]
        self.jobs: dict[str, dict[str, Any]] = {}
        self._row: dict[str, Any] = json.loads((_RECORDED / "squeue_22_05.json").read_text())["jobs"][0]

    def submit(self, job_id: str, comment: str) -> None:
        """Hand a job in, as a user does where job_submit.lua is installed."""
        self.jobs[job_id] = {**self._row, "job_id": int(job_id), "comment": comment}

    def query(self, command: Sequence[str]) -> Mapping[str, Any]:
        """See `SlurmCommands.query`."""
        return {"squeue": {"jobs": [*self.jobs.values()]}, "sinfo": {"nodes": self.nodes}}[command[0]]

    def order(self, command: Sequence[str]) -> None:
        """See `SlurmCommands.order`."""
        verb, *words = command if command[0] == "scancel" else command[1:]
        if verb == "release" and "," in words[0]:
            self._release_several(words[0].split(","))
            return
        name = words[0].removeprefix("JobId=")
        row = self.jobs.get(name) or self._task(name)
        if row is None:
            raise EngineRefusedError("Invalid job id specified")
        if verb == "release":
            self._release(row)
            return
        if verb == "scancel":
            del self.jobs[words[0]]
            return
        if verb == "requeue":
            row |= {"job_state": "PENDING", "state_reason": "BeginTime", "nodes": "", "gres_detail": []}
            return
        if verb == "hold":
            # Also of a running job, without a word, as the real one.
            row |= {"priority": 0, "state_reason": "JobHeldAdmin"}
            return
        changes = dict(word.split("=", 1) for word in words[1:])
        if "Gres" in changes and row["job_state"] != "PENDING":
            raise EngineRefusedError("Job is no longer pending execution")
        row |= {_FIELDS[name]: f"gres:{value}" if name == "Gres" else value for name, value in changes.items()}

    def _task(self, name: str) -> dict[str, Any] | None:
        """Make a task that waits together with others a row of its own, as every order about it does."""
        array, _, task = name.partition("_")
        together = self.jobs.get(array, {})
        waiting = together.get("array_task_string", "").split(",")
        if not task or task not in waiting:
            return None
        waiting.remove(task)
        own = {"job_id": 1_000 + len(self.jobs), "array_task_id": int(task), "array_task_string": ""}
        self.jobs[name] = {**together, **own}
        together["array_task_string"] = ",".join(waiting)
        if not waiting:
            del self.jobs[array]
        return self.jobs[name]

    def _release_several(self, job_ids: Sequence[str]) -> None:
        """Release those that are there, and complain of the others, as the real one does."""
        for row in (self.jobs[job_id] for job_id in job_ids if job_id in self.jobs):
            self._release(row)
        if missing := [job_id for job_id in job_ids if job_id not in self.jobs]:
            raise EngineRefusedError(f"Invalid job id specified for job {missing[0]}")

    def _release(self, row: dict[str, Any]) -> None:
        row |= {"priority": 1, "state_reason": "None"}
        gres = row["tres_per_node"].removeprefix("gres:")
        if gres:
            row |= {"job_state": "RUNNING", "nodes": row["required_nodes"], "gres_detail": [f"{gres}(IDX:0)"]}
