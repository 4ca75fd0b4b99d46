"""The ordered list of runs of a campaign. The same campaign always gives the same list."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

from cotenant_profiler.campaign import Campaign, Method
from cotenant_profiler.information_gain import order_by_information
from cotenant_profiler.job_spec import JobSpec

# Runs that are shuffled among one another: a block takes about a minute, which is how fast a machine drifts.
BLOCK_RUNS = 16
WORKER_START_MS = 3_000
REFERENCE_OVERHEAD_MS = 140


class Kind(StrEnum):
    """What a run measures."""

    SOLO = "solo"
    MEMORY = "memory"
    TRACE = "trace"
    GROUP = "group"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measurement.

    Attributes:
        kind: What is measured.
        jobs: The job, or the jobs of a group in ascending order.
        repeat: Number of the repetition, from 0.
        method: How it is measured.
    """

    kind: Kind
    jobs: tuple[JobSpec, ...]
    repeat: int
    method: Method

    @property
    def run_id(self) -> str:
        """Hash of everything that the result depends on: 16 hexadecimal digits."""
        content = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    @property
    def label(self) -> str:
        """Short text for people."""
        return f"{self.kind} {' + '.join(job.name for job in self.jobs)}"

    @property
    def cost_ms(self) -> int:
        """Estimated duration of one attempt."""
        if self.kind is Kind.MEMORY:
            return WORKER_START_MS
        if self.kind is Kind.TRACE:
            return WORKER_START_MS + self.method.trace_ms_max // 2
        references_ms = 2 * len(self.jobs) * (self.method.reference_ms + REFERENCE_OVERHEAD_MS)
        if self.kind is Kind.GROUP:
            return references_ms + self.method.warm_in_ms + self.method.window_ms + self.method.tail_ms + 100
        return references_ms + self.method.warm_up_ms + self.method.window_ms + 200


def build_plan(campaign: Campaign) -> list[Run]:
    """Return all runs of the campaign in the order in which they are to be carried out.

    Each core job alone comes first, once, because waits depend on it; then everything else about the core jobs, then
    the rest, or the other way round if the campaign sets that. Groups come in the order of their information gain, so
    that an early end leaves the most informative ones; in blocks the order is shuffled, so that machine drift looks
    like noise and not like an effect.
    """
    order = random.Random(campaign.seed)
    first = list(_solo_runs(campaign, _with_bases(campaign.core_jobs), [0]))
    others = [
        *_solo_runs(campaign, campaign.core_jobs, range(1, campaign.solo_repeats)),
        *_memory_runs(campaign, campaign.core_jobs, known=()),
        *_trace_runs(campaign),
    ]
    rest = [
        *_solo_runs(campaign, _new_jobs(campaign), [0]),
        *_memory_runs(campaign, campaign.solo_jobs, known=campaign.core_jobs),
    ]
    order.shuffle(others)
    order.shuffle(rest)
    rest = _bases_before_waits(rest)
    together = _in_blocks(_informative_groups(campaign, order), others, order)
    return first + (rest + together if campaign.solo_first else together + rest)


def _informative_groups(campaign: Campaign, order: random.Random) -> list[Run]:
    groups = list(_group_runs(campaign))
    # Among equally informative groups the seed decides, not the alphabet.
    order.shuffle(groups)
    return [groups[index] for index in order_by_information([run.jobs for run in groups])]


def _in_blocks(groups: Sequence[Run], others: Sequence[Run], order: random.Random) -> list[Run]:
    """Spread the others evenly among the groups and shuffle within blocks."""
    places = [(index + 0.5) / len(runs) for runs in (groups, others) for index in range(len(runs))]
    spread = [run for _, run in sorted(zip(places, [*groups, *others], strict=True), key=lambda item: item[0])]
    blocks = [spread[start : start + BLOCK_RUNS] for start in range(0, len(spread), BLOCK_RUNS)]
    for block in blocks:
        order.shuffle(block)
    return [run for block in blocks for run in block]


def _with_bases(jobs: Iterable[JobSpec]) -> list[JobSpec]:
    """The jobs, each with a wait preceded by the same job without it, which determines how long to wait."""
    ordered: dict[JobSpec, None] = {}
    for job in jobs:
        ordered[job.without_wait] = None
        ordered[job] = None
    return sorted(ordered, key=lambda job: job.input_wait_ratio > 0)


def _new_jobs(campaign: Campaign) -> list[JobSpec]:
    known = set(_with_bases(campaign.core_jobs))
    return [job for job in _with_bases(campaign.solo_jobs) if job not in known]


def _solo_runs(campaign: Campaign, jobs: Iterable[JobSpec], repeats: Iterable[int]) -> Iterator[Run]:
    for repeat, job in itertools.product(repeats, jobs):
        yield Run(kind=Kind.SOLO, jobs=(job,), repeat=repeat, method=campaign.method)


def _memory_runs(campaign: Campaign, jobs: Iterable[JobSpec], *, known: Iterable[JobSpec]) -> Iterator[Run]:
    measured = {job.without_wait for job in known}
    for job in dict.fromkeys(job.without_wait for job in jobs):
        if job not in measured:
            yield Run(kind=Kind.MEMORY, jobs=(job,), repeat=0, method=campaign.method)


def _trace_runs(campaign: Campaign) -> Iterator[Run]:
    for job in campaign.core_jobs if campaign.traces else ():
        yield Run(kind=Kind.TRACE, jobs=(job,), repeat=0, method=campaign.method)


def _group_runs(campaign: Campaign) -> Iterator[Run]:
    pairs = list(itertools.combinations_with_replacement(sorted(campaign.core_jobs), 2))
    repeated = set(random.Random(campaign.seed).sample(pairs, min(campaign.repeated_pairs, len(pairs))))
    for pair in pairs:
        for repeat in range(campaign.pair_repeats if pair in repeated else 1):
            yield Run(kind=Kind.GROUP, jobs=pair, repeat=repeat, method=campaign.method)
    for group in (*campaign.groups, *_triples(campaign)):
        yield Run(kind=Kind.GROUP, jobs=group, repeat=0, method=campaign.method)


def _triples(campaign: Campaign) -> list[tuple[JobSpec, ...]]:
    """Threes of different core jobs of which two or more wait: three that never wait are no choice of a scheduler."""
    light = [
        triple
        for triple in itertools.combinations(sorted(campaign.core_jobs), 3)
        if sum(job.input_wait_ratio > 0 for job in triple) >= 2 and triple not in campaign.groups
    ]
    return random.Random(campaign.seed).sample(light, min(campaign.triples, len(light)))


def _bases_before_waits(runs: Sequence[Run]) -> list[Run]:
    """Move first measurements of jobs with a wait to the end; the sort is stable, the rest keeps its order."""
    return sorted(runs, key=lambda run: run.kind is Kind.SOLO and run.jobs[0].input_wait_ratio > 0)
