"""Which jobs share a GPU so that the sum of their ends is least: the ruler of sjf_bsbf.

Every new job either waits or takes exactly the GPUs that it needs from running jobs, at most one new job per GPU. A
choice of GPUs with a micro-batch is a pattern, and its price is what sharing gains against waiting for those partners.

Source:
    The SJF-BSBF paper, section V-A: Theorem 1 for pairs, Algorithm 1 lines 16-18 for gangs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from benchmarks.exact_rulers.integer_program import IntegerProgram
from scheduler_service.policies.pairing.pair_sharing import CoLocatedJob, shared_sum_ms, waiting_sum_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingJob:
    """A new job.

    Attributes:
        remaining_times_ms: How long it needs alone, by micro-batch; the largest one is the full batch.
        co_located: By GPU and micro-batch: the running job there, or absent where memory or consent forbid it.
        partner_of: The running job's name, by GPU.
    """

    name: str
    gpus: int
    remaining_times_ms: Mapping[int, float]
    co_located: Mapping[tuple[str, int], CoLocatedJob]
    partner_of: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class BestSharing:
    """An optimum: GPUs and micro-batch of every job that shares, and what all of that gains against waiting."""

    shares: Mapping[str, tuple[tuple[str, ...], int]]
    gain_ms: float


def share_best(jobs: Sequence[SharingJob]) -> BestSharing:
    """Return the best of all matchings; the number of patterns is (GPUs choose gang) per job and micro-batch."""
    program = IntegerProgram()
    choices: dict[int, tuple[str, tuple[str, ...], int]] = {}
    by_gpu: dict[str, dict[int, float]] = {}
    for job in jobs:
        mine: dict[int, float] = {}
        for gpu_ids, micro_batch_size, gain_ms in _options(job):
            number = program.add(-gain_ms)
            choices[number] = (job.name, gpu_ids, micro_batch_size)
            mine[number] = 1.0
            for gpu_id in gpu_ids:
                by_gpu.setdefault(gpu_id, {})[number] = 1.0
        program.require(mine, most=1.0)
    for here in by_gpu.values():
        program.require(here, most=1.0)
    uses = program.solve() or []
    chosen = [number for number, use in enumerate(uses) if use]
    return BestSharing(
        shares={choices[number][0]: choices[number][1:] for number in chosen},
        gain_ms=-sum(program.prices[number] for number in chosen),
    )


def _options(job: SharingJob) -> list[tuple[tuple[str, ...], int, float]]:
    """Return every choice of GPUs and micro-batch that gains something; a partner on several GPUs counts once."""
    found = []
    full_remaining_ms = job.remaining_times_ms[max(job.remaining_times_ms)]
    for micro_batch_size, remaining_ms in job.remaining_times_ms.items():
        gpu_ids = sorted(gpu_id for gpu_id, sub in job.co_located if sub == micro_batch_size)
        for chosen in combinations(gpu_ids, job.gpus):
            partners = {job.partner_of[gpu_id]: job.co_located[gpu_id, micro_batch_size] for gpu_id in chosen}
            co_located = list(partners.values())
            gain_ms = waiting_sum_ms(full_remaining_ms, co_located) - shared_sum_ms(remaining_ms, co_located)
            if gain_ms > 0:
                found.append((chosen, micro_batch_size, gain_ms))
    return found
