"""Inside a job: how far it is goes out, that it is to end comes in. Outside of one nothing happens.

A thread talks to Ray once a second; a report itself only notes numbers.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field
from typing import Final

from cotenant import system_clock
from cotenant.engines.errors import EngineUnreachableError
from cotenant.engines.ray.job_records import METRICS_MAX, ORDER, PROGRESS, OrderRecord, ProgressRecord, decode, encode
from cotenant.engines.ray.tables import RayTables

INTERVAL_S: Final = 1.0
STEPS_MAX: Final = 2**53


@dataclass(slots=True)
class Reporter:
    """What one process of a job reports.

    Attributes:
        job_id: Empty = this process is none of a job.
    """

    job_id: str = ""
    latest: ProgressRecord = field(default_factory=ProgressRecord)
    told: ProgressRecord = field(default_factory=ProgressRecord)
    ending: str = ""

    def note(self, step: int, metrics: dict[str, float], now_ms: int) -> None:
        """Keep the newest numbers; those that are none are left out."""
        numbers = {str(name)[:100]: float(value) for name, value in [*metrics.items()][:METRICS_MAX]}
        finite = {name: value for name, value in numbers.items() if math.isfinite(value)}
        self.latest = ProgressRecord(steps=min(max(int(step), 0), STEPS_MAX), at_ms=now_ms, metrics=finite)

    def exchange(self, tables: RayTables) -> None:
        """Tell what is new, and ask whether the job is to end."""
        latest = self.latest
        if latest.at_ms and latest is not self.told:
            tables.write(PROGRESS + self.job_id, encode(latest))
            self.told = latest
        self.ending = decode(OrderRecord, tables.read(ORDER + self.job_id)).ending


_reporter = Reporter()
_lock = threading.Lock()


def report(step: int, **metrics: float) -> None:
    """Say how many optimizer steps are done; takes microseconds and never waits for anything.

    Args:
        step: Counted from the start of the job, growing.
        metrics: Further numbers, such as the loss. Only the newest report of each second goes out.

    Raises:
        ValueError: Something is no number.
    """
    _reporter.note(step, metrics, system_clock.now_ms())


def should_stop() -> bool:
    """Say whether the job is to end now; write a checkpoint then, and return."""
    return bool(_reporter.ending)


def begin(job_id: str, tables: RayTables) -> None:
    """Let this process report for a job from now on; reports before are kept."""
    _reporter.job_id = job_id
    threading.Thread(target=_exchange_for_ever, args=(tables,), name="cotenant-report", daemon=True).start()


def flush(tables: RayTables) -> None:
    """Tell the last report before the process ends; without a job, or where Ray does not answer, nothing."""
    try:
        if _reporter.job_id:
            with _lock:
                _reporter.exchange(tables)
    except EngineUnreachableError:
        return


def _exchange_for_ever(tables: RayTables) -> None:
    while True:
        flush(tables)
        system_clock.wait_ms(int(INTERVAL_S * 1000))
