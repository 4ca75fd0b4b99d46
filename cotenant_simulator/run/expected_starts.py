"""When waiting jobs start: many runs of the present state, each with other lengths, and what they have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import inf

from cotenant_simulator.run.present_run import PresentRun, Starts

DRAWS = 20
CONFIDENCE = 0.8
DRAWS_MIN = 9
"""With fewer runs even the first and the last start of all enclose the true one too seldom."""
_NAMED_MAX = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedStart:
    """When one job starts.

    Attributes:
        position: Its place among the waiting jobs by their expected starts, from 1.
        wait_ms: From now until its start, with the expected lengths; -1 = not known.
        wait_lower_ms: Lower end of the interval.
        wait_upper_ms: Upper end of the interval.
        depends_on: Jobs of unknown length that may have to end before; the first three.
        held_by: Why it still waited at the end of the run with the expected lengths, in words; empty = it did not.
    """

    position: int
    wait_ms: int = -1
    wait_lower_ms: int = -1
    wait_upper_ms: int = -1
    depends_on: Sequence[str] = ()
    held_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedStarts:
    """When the waiting jobs start.

    Attributes:
        jobs: By job id.
        runs: Runs that the intervals come from; below `DRAWS_MIN` there are none.
    """

    jobs: Mapping[str, ExpectedStart]
    runs: int


def expect_starts(
    run_of: Callable[[str | None], PresentRun], *, now_ms: int, goes_on: Callable[[], bool]
) -> ExpectedStarts:
    """Return the expected start of every waiting job, from at most `DRAWS` runs.

    Args:
        run_of: Builds a run from the name of a draw; None = expected values.
        now_ms: The instant at which the runs begin.
        goes_on: False when no more time may be spent: no further run begins, and the present one ends unfinished.
    """
    first = run_of(None)
    waiting = tuple(first.waiting)
    middle = first.run(goes_on=goes_on)
    order = sorted(waiting, key=lambda job_id: middle.at_ms.get(job_id, inf))
    positions = {job_id: place for place, job_id in enumerate(order, start=1)}
    runs: list[Starts] = []
    for number in range(DRAWS if waiting else 0):
        starts = run_of(str(number)).run(goes_on=goes_on)
        if not goes_on():
            break
        runs.append(starts)
    jobs = {
        job_id: replace(
            _expected([*runs, middle], runs, job_id, now_ms),
            position=positions[job_id],
            held_by=middle.held_by.get(job_id, ""),
        )
        for job_id in waiting
    }
    return ExpectedStarts(jobs=jobs, runs=len(runs))


def _expected(every: Sequence[Starts], runs: Sequence[Starts], job_id: str, now_ms: int) -> ExpectedStart:
    sure_ms = sorted(
        max(starts.at_ms[job_id] - now_ms, 0)
        for starts in runs
        if job_id in starts.at_ms and job_id not in starts.depend_on
    )
    lower, upper = _ends(len(runs))
    # What is missing lies beyond the upper end: the interval stands as long as it is not reached.
    if len(runs) < DRAWS_MIN or len(sure_ms) <= upper:
        return ExpectedStart(position=0, depends_on=_named(starts.depend_on.get(job_id, ()) for starts in every))
    lower_ms, median_ms, upper_ms = sure_ms[lower], sure_ms[len(runs) // 2], sure_ms[upper]
    # Without errors a run is exact where a few drawn ones are not, as long as it is no exception among them.
    plain_ms = max(every[-1].at_ms.get(job_id, now_ms) - now_ms, 0)
    wait_ms = plain_ms if lower_ms <= plain_ms <= upper_ms else median_ms
    return ExpectedStart(position=0, wait_ms=wait_ms, wait_lower_ms=lower_ms, wait_upper_ms=upper_ms)


def _ends(runs: int) -> tuple[int, int]:
    """Return the places of the interval's ends among the sorted starts.

    The true start is equally likely before the first, after the last, and between any two neighbours.
    """
    outside = int((runs + 1) * (1 - CONFIDENCE) / 2 + 1e-9)
    return outside - 1, runs - outside


def _named(found: Iterable[Sequence[str]]) -> tuple[str, ...]:
    return tuple(islice(dict.fromkeys(job_id for ids in found for job_id in ids), _NAMED_MAX))
