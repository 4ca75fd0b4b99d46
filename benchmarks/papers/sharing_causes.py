"""Why the ratios of Fig. 6b are what they are: how much is shared, what it yields, gangs, the preemptive baseline."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from benchmarks.papers.seeds import Row, as_row
from benchmarks.papers.sharing_runs import (
    MIX,
    XIS,
    Outcome,
    committed_mix,
    on_one_gpu,
    ratios_of,
    run,
    sweep,
    with_slowdown,
)
from cotenant_simulator.run.records import OverheadCosts
from scheduler_service.core.cluster_view.view import PendingJob, RunningJob, SchedulingView
from scheduler_service.core.engine import MakePolicy
from scheduler_service.policies.tiresias import Tiresias
from scheduler_service.policy_registry import make_policy

SHARING = ("sjf_ffs", "sjf_bsbf")
EQUAL_CLUSTER = "7x2"
"""The mix asks one GPU a job for 0.72 h every 120 s, 21.7 GPUs in all: 14 of them have the mix' load of 1.5."""
COMPARED_XI = 1.5
MEDIAN_GPU_STEPS = 45_776.0
"""GPUs times steps that half of the mix' jobs need."""
GPU_HOUR_MS = 3_600_000


@dataclass(frozen=True, kw_only=True)
class TiresiasByIterations(Tiresias):
    """The baseline as section VI-A3 words it: attained service is "consumed GPU numbers and training iterations".

    Attributes:
        limit: GPUs times steps at which a job leaves the first queue; the paper prints none.
    """

    limit: float = MEDIAN_GPU_STEPS

    def order(self, view: SchedulingView, job: PendingJob | RunningJob) -> tuple[int, int, str]:
        """Return where a job stands among all, first come first."""
        is_later = job.request.gpus * job.steps_done >= self.limit
        return int(is_later), job.submitted_at_ms, job.request.job_id


@dataclass(frozen=True, slots=True, kw_only=True)
class _Variant:
    """One reading of an exclusive policy."""

    policy: str = "tiresias"
    make: MakePolicy = make_policy
    parameters: Mapping[str, object] = field(default_factory=dict)
    charges: OverheadCosts = field(default_factory=OverheadCosts)


FREE_OF_CHARGE = OverheadCosts(restart_ms=0, checkpoint_ms=0)
PREEMPTIVE: Mapping[str, _Variant] = {
    "tiresias": _Variant(),
    "tiresias, preemption costs nothing": _Variant(charges=FREE_OF_CHARGE),
    "tiresias, who has waited as long as it ran goes first": _Variant(parameters={"promote_ratio": 1.0}),
    "tiresias, first queue of 1 GPU-hour": _Variant(parameters={"queue_limit_gpu_ms": GPU_HOUR_MS}),
    "tiresias, service in GPUs times iterations (VI-A3)": _Variant(make=lambda *_: TiresiasByIterations()),
    "srtf, preemption costs nothing": _Variant(policy="srtf", charges=FREE_OF_CHARGE),
}


def equal_widths(seeds: int) -> list[Row]:
    """Fig. 6b's ratios where every job takes one GPU, so that Theorem 1 sees all that sharing does to its pair."""
    traces = [on_one_gpu(committed_mix(MIX, seed)) for seed in range(seeds)]
    alone = sweep(traces, ("sjf", "tiresias"), "equal widths", cluster=EQUAL_CLUSTER)
    rows = [as_row("", "equal widths, sjf over tiresias", None, ratios_of(alone["sjf"], alone["tiresias"]))]
    for xi in XIS:
        slowed = [with_slowdown(trace, xi) for trace in traces]
        found = sweep(slowed, SHARING, f"equal widths, xi {xi}", cluster=EQUAL_CLUSTER)
        for other, outcomes in (("sjf_ffs", found["sjf_ffs"]), ("tiresias", alone["tiresias"])):
            setting = f"equal widths, xi {xi}, sjf_bsbf over {other}"
            rows.append(as_row("", setting, None, ratios_of(found["sjf_bsbf"], outcomes)))
        rows += shared_rows(f"equal widths, xi {xi}, sjf_bsbf", found["sjf_bsbf"])
    return rows


def tiresias_variants(seeds: int) -> list[Row]:
    """What sjf and sjf_bsbf are next to other readings of the baseline and to preemption that knows all lengths."""
    traces = [committed_mix(MIX, seed) for seed in range(seeds)]
    shared = [with_slowdown(trace, COMPARED_XI) for trace in traces]
    own = sweep(traces, ("sjf",), "alone") | sweep(shared, ("sjf_bsbf",), f"xi {COMPARED_XI}")
    rows: list[Row] = []
    for name, variant in PREEMPTIVE.items():
        others = [
            run(
                trace,
                variant.policy,
                seed=seed,
                parameters=variant.parameters,
                charges=variant.charges,
                make=variant.make,
            )
            for seed, trace in enumerate(traces)
        ]
        sys.stderr.write(f"{name}: {fmean(one.jct_h for one in others):.3f} h\n")
        rows.append(as_row("", f"{name}, h", None, [one.jct_h for one in others]))
        rows.append(as_row("", f"sjf over {name}", None, ratios_of(own["sjf"], others)))
        rows.append(as_row("", f"xi {COMPARED_XI}, sjf_bsbf over {name}", None, ratios_of(own["sjf_bsbf"], others)))
    return rows


def shared_rows(label: str, outcomes: Sequence[Outcome]) -> list[Row]:
    """Return how much GPU time is shared, what shared GPUs give: 2 / xi for a pair of equal width, less for gangs."""
    return [
        as_row(
            "", f"{label}: share of the GPU time in use that has two jobs", None, [o.shared_ratio for o in outcomes]
        ),
        as_row("", f"{label}: work out of a shared GPU", None, [o.shared_yield_ratio for o in outcomes]),
        as_row("Fig. 5b", f"{label}: time without GPUs, h", None, [o.queueing_h for o in outcomes]),
    ]
