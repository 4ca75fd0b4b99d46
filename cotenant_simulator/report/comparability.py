"""What a comparison of policies cannot show: workloads and outcomes that are the same for several of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from cotenant_simulator.run.records import RunResult
from cotenant_simulator.truth.kinds import DOES_NOT_FIT, Kind
from cotenant_simulator.truth.trace import Trace, TraceJob
from scheduler_service.core.records import Share
from scheduler_service.policy_registry import policy_entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Caveat:
    """One of them.

    Attributes:
        code: What it is, for programs.
        policies: The policies concerned.
        message: What it is and what would change it.
    """

    code: str
    policies: tuple[str, ...]
    message: str


def caveats_of_trace(
    trace: Trace, policies: Sequence[str], *, is_truth_predicted: bool = True, own: Mapping[str, object] | None = None
) -> list[Caveat]:
    """Return what is known before any run.

    Args:
        trace: The workload, with the consent of its jobs.
        policies: Those that are asked for.
        is_truth_predicted: Predictions are without errors, so that no job shares by mistake.
        own: Policies that no registry knows, by name; they state as attributes what they may do.
    """
    entries = {name: (own or {}).get(name) or policy_entry(name) for name in policies}
    sharing = tuple(name for name, entry in entries.items() if getattr(entry, "shares_gpus", False))
    choosing = tuple(name for name, entry in entries.items() if getattr(entry, "chooses_counts", False))
    refused = _no_job_shares(trace, sharing) if is_truth_predicted else None
    found = [refused, _alike(trace, sharing), _rigid(trace, choosing)]
    return [one for one in found if one is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """What became of all jobs of one run.

    Attributes:
        digest: Equal where every job started and ended at the same instants.
        has_waiting: Some job had to wait for its GPUs, or never got them.
    """

    digest: str
    has_waiting: bool


def fate_of(result: RunResult) -> Fate:
    """Return what became of all jobs of a run."""
    jobs = [(job.first_started_at_ms, job.finished_at_ms, job.held_ms, job.attempts) for job in result.jobs]
    return Fate(
        digest=sha256(repr(jobs).encode()).hexdigest(),
        has_waiting=any(job.first_started_at_ms != job.submitted_at_ms for job in result.jobs),
    )


def caveats_of_outcomes(fates: Mapping[str, Sequence[Fate]]) -> list[Caveat]:
    """Return which policies did the same to every job, and what the seeds did not change.

    Args:
        fates: By policy, one for each seed.
    """
    return [*_waiting(fates), *_alike_outcomes(fates), *_alike_seeds(fates)]


def _waiting(fates: Mapping[str, Sequence[Fate]]) -> list[Caveat]:
    if len(fates) < 2 or any(fate.has_waiting for found in fates.values() for fate in found):
        return []
    return [
        Caveat(
            code="NO_CONTENTION",
            policies=tuple(fates),
            message="no job waited for a GPU under any policy: orders make no difference here "
            "(a smaller --cluster, or more jobs, would)",
        )
    ]


def _alike_outcomes(fates: Mapping[str, Sequence[Fate]]) -> list[Caveat]:
    alike: dict[tuple[str, ...], list[str]] = {}
    for policy, found in fates.items():
        alike.setdefault(tuple(fate.digest for fate in found), []).append(policy)
    return [
        Caveat(
            code="SAME_OUTCOME",
            policies=tuple(names),
            message=f"{_listed(names)} started and ended every job at the same instants: "
            "this workload on this cluster cannot distinguish them",
        )
        for names in alike.values()
        if len(names) > 1
    ]


def _alike_seeds(fates: Mapping[str, Sequence[Fate]]) -> list[Caveat]:
    seeds = max(map(len, fates.values()), default=0)
    if seeds < 2 or any(len({fate.digest for fate in found}) > 1 for found in fates.values()):
        return []
    return [
        Caveat(
            code="SEEDS_ALIKE",
            policies=tuple(fates),
            message=f"the {seeds} seeds gave one and the same outcome, so that intervals say nothing: nothing is drawn "
            "here (a generated workload, --measured, --predictions noise:0.3 or --node-failure-hours draw something)",
        )
    ]


def _no_job_shares(trace: Trace, sharing: tuple[str, ...]) -> Caveat | None:
    slowdowns = _slowdowns(trace)
    consents = {job.request.max_slowdown_ratio for job in trace.jobs}
    accepts_unknown = not trace.truth.predicts_unmeasured and any(_accepts_unknown(job) for job in trace.jobs)
    if not sharing or not slowdowns or not consents or min(slowdowns) <= max(consents) or accepts_unknown:
        return None
    return Caveat(
        code="NOBODY_SHARES",
        policies=sharing,
        message=f"every two jobs slow each other down by {_percent(min(slowdowns))} or more, and no job accepts more "
        f"than {_percent(max(consents))}: no job shares a GPU under {_listed(sharing)} "
        "(--max-slowdown and --slowdown change that)",
    )


def _accepts_unknown(job: TraceJob) -> bool:
    """It shares with jobs of which nothing is known, at once or on trial."""
    request = job.request
    return request.share is Share.ANY or (request.share is Share.SAFE and not request.no_trial)


def _alike(trace: Trace, sharing: tuple[str, ...]) -> Caveat | None:
    """All that a sharing policy could prefer one partner for is the same for all of them."""
    kinds, slowdowns = _kinds(trace), _slowdowns(trace)
    loads = {(kind.memory_bytes, kind.utilization_ratio) for kind in kinds}
    if len(sharing) < 2 or len(slowdowns) > 1 or len(loads) > 1 or len(trace.jobs) < 2:
        return None
    return Caveat(
        code="PAIRS_ALIKE",
        policies=sharing,
        message=f"every pair of jobs has the same slowdown, memory and utilization: {_listed(sharing)} differ by order "
        "only, not by which jobs they let share (--measured FOLDER takes them for measured jobs, whose pairs differ)",
    )


def _rigid(trace: Trace, choosing: tuple[str, ...]) -> Caveat | None:
    if not choosing or not trace.jobs or any(len(set(job.request.allowed_gpus)) > 1 for job in trace.jobs):
        return None
    return Caveat(
        code="JOBS_RIGID",
        policies=choosing,
        message=f"no job of this trace allows other numbers of GPUs than its own: {_listed(choosing)} cannot choose "
        "any, which is what they are made for (--gpu-counts 1,2,4,8 lets every job have these)",
    )


def _kinds(trace: Trace) -> list[Kind]:
    keys = {job.request.key for job in trace.jobs}
    return [kind for (key, _), kind in trace.truth.kinds.items() if key in keys]


def _slowdowns(trace: Trace) -> set[float]:
    """Return every slowdown that some pair of jobs of the trace may be predicted to have; empty = none is known."""
    truth, keys = trace.truth, {job.request.key for job in trace.jobs}
    measured = {
        (victim, other, device): ratio
        for (victim, other, device), ratio in truth.slowdowns.items()
        if victim in keys and other in keys
    }
    found = set(measured.values()) - {DOES_NOT_FIT}
    pairs = {(victim, other) for victim, other, _ in measured}
    if truth.predicts_unmeasured and len(pairs) < len(keys) ** 2:
        found.add(truth.slowdown_ratio)
    return found


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def _percent(ratio: float) -> str:
    return f"{100 * ratio:g} %"
