"""What explained decisions promise: registered reasons with all their numbers, and a row for every GPU."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from string import Formatter

from scheduler_service.core.cluster_view.capacity import reserved_bytes, samples_per_gpu
from scheduler_service.core.cluster_view.view import Policy, SchedulingView
from scheduler_service.core.decisions import Candidate, Decision, Hold, unfolded
from scheduler_service.core.reasons.reason_texts import REASON_TEXTS
from scheduler_service.core.records import JobRequest, Reason
from scheduler_service.policies.placement.reasons import NEAREST_FIRST

UNITS = ("_ms", "_bytes", "_ratio", "_cores", "_samples", "_count")
COUNTED = frozenset({"gpus", "jobs", "nodes", "devices", "steps", "restarts", "refusals"})
"""A number whose name holds one of these words counts them: gpus_needed, jobs_on_gpu_max."""
PARTS_OF_JOBS = frozenset({"first_job", "other_jobs"})
WITHOUT_UNIT = frozenset({"cost", "micro_batch_size", "restart_limit", "exit_code", "rank"})
"""Names that clients read since before the rule; `cost` is in the policy's own unit, `rank` is no quantity."""


def has_unit(name: str) -> bool:
    """Say whether the name of a number states its unit."""
    return name.endswith(UNITS) or not COUNTED.isdisjoint(name.split("_")) or name in WITHOUT_UNIT


def required_of(code: str) -> frozenset[str]:
    """Return what a reason of this code must bring: numbers by name, and `jobs` or `gpus` where ids are named.

    Raises:
        KeyError: The code is not registered.
    """
    names = frozenset(name for _, name, _, _ in Formatter().parse(REASON_TEXTS[code]) if name)
    return names - PARTS_OF_JOBS | {"jobs"} if names & PARTS_OF_JOBS else names


def faults_of_reason(reason: Reason) -> list[str]:
    """Return what a reason lacks: a registered code, numbers or ids that its text gives, finite values, units."""
    if reason.code not in REASON_TEXTS:
        return [f"{reason.code} is not in REASON_TEXTS"]
    given = {*reason.numbers, *(["jobs"] if reason.job_ids else ()), *(["gpus"] if reason.gpu_ids else ())}
    return [
        *(f"{reason.code} lacks {name}" for name in sorted(required_of(reason.code) - given)),
        *(f"{reason.code}: {name} is {value}" for name, value in reason.numbers.items() if not math.isfinite(value)),
        *(f"{reason.code}: {name} states no unit" for name in reason.numbers if not has_unit(name)),
    ]


def faults_of_reasons(decisions: Iterable[Decision]) -> list[str]:
    """Return what the reasons of decisions and of their candidates lack."""
    return [
        f"{decision.job_id}: {fault}"
        for decision in unfolded(decisions)
        for reason in (decision.reason, *(candidate.reason for candidate in decision.candidates))
        for fault in faults_of_reason(reason)
    ]


def faults_of_tables(view: SchedulingView, decisions: Iterable[Decision]) -> list[str]:
    """Return what the candidate tables of waiting jobs lack; `view.explain` is on.

    A table has exactly one row per GPU of the view, whatever the job waits for; it is not bounded otherwise. A row that
    is not feasible gives an obstacle, one that is feasible none. A job that fits no GPU has no feasible row.
    """
    requests = {job.request.job_id: job.request for job in view.pending}
    return [
        f"{decision.job_id} ({decision.reason.code}): {fault}"
        for decision in unfolded(decisions)
        if isinstance(decision, Hold)
        for fault in _faults_of_table(view, requests[decision.job_id], decision)
    ]


def _faults_of_table(view: SchedulingView, request: JobRequest, hold: Hold) -> Iterator[str]:
    rows = Counter(candidate.gpu_id for candidate in hold.candidates)
    if rows != Counter(view.gpus.keys()):
        yield f"{len(hold.candidates)} rows about {len(rows)} GPUs, and the view has {len(view.gpus)}"
    for candidate in hold.candidates:
        yield from _faults_of_row(view, request, candidate)


def _faults_of_row(view: SchedulingView, request: JobRequest, candidate: Candidate) -> Iterator[str]:
    code = candidate.reason.code
    if candidate.chosen:
        yield f"{candidate.gpu_id} is chosen by a job that waits"
    if candidate.feasible and (code != "CANDIDATE" or not _might_start_on(view, request, candidate.gpu_id)):
        yield f"{candidate.gpu_id} is called feasible ({code}), and the job cannot start on it"
    if not candidate.feasible and code not in NEAREST_FIRST:
        yield f"{candidate.gpu_id} is refused by {code}, which is no obstacle in NEAREST_FIRST"


def _might_start_on(view: SchedulingView, request: JobRequest, gpu_id: str) -> bool:
    """Say whether one worker could be on this GPU at all: no job leaves it, and this job has the memory alone.

    Judged at the smallest micro-batch that any policy may choose for the job.
    """
    entry = view.gpus[gpu_id]
    prediction = view.predictions.job(request.key, entry.gpu.device)
    most = max((request.gpus, *request.allowed_gpus))
    alone = replace(request, gpus=most)
    return (
        not entry.is_releasing
        and reserved_bytes(alone, prediction, samples_per_gpu(alone, most), entry.gpu) is not None
    )


def explained(policy: Policy, view: SchedulingView) -> list[Decision]:
    """Return a policy's decisions where the candidate tables are wanted."""
    return list(unfolded(policy.decide(replace(view, explain=True))))
