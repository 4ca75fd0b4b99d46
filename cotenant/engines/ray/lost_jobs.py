"""Jobs whose driver is gone: Ray has ended their actors, and nothing else would remove their records."""

from __future__ import annotations

from typing import Final

from cotenant.engines.ray.job_records import JOB, JobRecord, forget_job, read_records
from cotenant.engines.ray.tables import RayTables

SILENT_MS_MAX: Final = 20_000
"""A driver that lives says so every two seconds."""


class LostJobs:
    """Removes them. What it remembers may be lost: then it waits as long again.

    Args:
        tables: Reach Ray.
    """

    def __init__(self, tables: RayTables) -> None:
        self._tables = tables
        self._heard: dict[str, tuple[int, int]] = {}

    def remove(self, now_ms: int) -> list[str]:
        """Remove the jobs that neither run nor have been heard of for twenty seconds; return them.

        Args:
            now_ms: Time of this machine; the drivers' clocks do not matter.
        """
        records = read_records(self._tables, JOB, JobRecord)
        self._heard = {job_id: heard for job_id, heard in self._heard.items() if job_id in records}
        for job_id, record in records.items():
            if self._heard.get(job_id, (-1, 0))[0] != record.beat:
                self._heard[job_id] = (record.beat, now_ms)
        silent = {job_id for job_id, (_, at_ms) in self._heard.items() if now_ms - at_ms > SILENT_MS_MAX}
        lost = sorted(silent - self._tables.living_jobs()) if silent else []
        for job_id in lost:
            forget_job(self._tables, job_id)
        return lost
