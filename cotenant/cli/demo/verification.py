"""What the demo checks itself: no job lost, no step lost, no process left."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from cotenant.client import SchedulerClient
from cotenant.v1 import scheduling_pb2

_STEP_LINE = re.compile(rb"^step (\d+)/(\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at.

    Attributes:
        claim: What ought to hold, in words.
        holds: Whether it does.
        evidence: What was seen.
    """

    claim: str
    holds: bool
    evidence: str


def check_jobs(jobs: Mapping[str, scheduling_pb2.Job], submitted: int, violations: list[str]) -> list[Check]:
    """Checks that every job finished with all of its steps, and that no step count went back."""
    finished = [job for job in jobs.values() if job.phase == scheduling_pb2.JOB_PHASE_FINISHED]
    short = [job.spec.name for job in finished if job.steps_done != job.spec.steps_total]
    others = [job.spec.name for job in jobs.values() if job.phase != scheduling_pb2.JOB_PHASE_FINISHED]
    return [
        Check(
            claim="no job was lost",
            holds=len(finished) == submitted,
            evidence=f"{len(finished)} of {submitted} finished" + (f"; not: {', '.join(others)}" if others else ""),
        ),
        Check(
            claim="every job did all its steps",
            holds=not short,
            evidence=f"{sum(job.steps_done for job in finished)} steps"
            + (f"; short: {', '.join(short)}" * bool(short)),
        ),
        Check(
            claim="no count of steps ever went back",
            holds=not violations,
            evidence="; ".join(violations[:3]) or "watched through the crash",
        ),
    ]


def check_crash(before: Mapping[str, scheduling_pb2.Job], after: Mapping[str, scheduling_pb2.Job]) -> list[Check]:
    """Compares the jobs right before the scheduler was killed with the end.

    Args:
        before: All jobs at the last look before the kill.
        after: The same jobs at the end.
    """
    running = [job for job in before.values() if job.phase == scheduling_pb2.JOB_PHASE_RUNNING]
    restarted = [job.spec.name for job in running if after[job.job_id].attempt != job.attempt]
    missing = [job.spec.name for job_id, job in before.items() if job_id not in after]
    return [
        Check(
            claim="the restarted scheduler knows every job",
            holds=not missing,
            evidence=f"missing: {', '.join(missing)}" if missing else f"{len(before)} jobs before, {len(after)} after",
        ),
        Check(
            claim="running jobs were adopted, not restarted",
            holds=not restarted,
            evidence=f"restarted: {', '.join(restarted)}" if restarted else f"{len(running)} ran on, same attempt",
        ),
    ]


def check_logs(client: SchedulerClient, jobs: Mapping[str, scheduling_pb2.Job]) -> Check:
    """Reads what the trainings themselves printed: their step numbers must rise to the last one."""
    faults = []
    for job in jobs.values():
        text = b"".join(client.read_job_log(job.job_id))
        fault = step_fault(text, job.spec.steps_total)
        if fault:
            faults.append(f"{job.spec.name}: {fault}")
    evidence = "; ".join(faults[:3]) or f"{len(jobs)} logs read: steps rise to the last one, none twice"
    return Check(claim="the jobs' own logs agree", holds=not faults, evidence=evidence)


def step_fault(log: bytes, steps_total: int) -> str:
    """Returns what is wrong with the step numbers of a log; empty = nothing."""
    steps = [int(match.group(1)) for match in _STEP_LINE.finditer(log)]
    if not steps:
        return "no step in the log"
    if any(later <= earlier for earlier, later in pairwise(steps)):
        return "a step was printed twice"
    return "" if steps[-1] == steps_total else f"the last step is {steps[-1]} of {steps_total}"
