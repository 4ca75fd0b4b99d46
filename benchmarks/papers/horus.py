"""Tables 6 and 7 and Figs. 7 to 9 of the Horus paper, run again.

    python -m benchmarks.papers.horus [--seeds 20] [--parts testbed simulation dense partners slowdowns]
                                      [--crowds pairwise summed printed]

Prints JSON; the simulation needs the public data of COTENANT_SHARED_DATA. Every policy of a seed meets the same jobs;
ratios are taken per seed. Three and more jobs on a GPU slow each other down by the sum of what pairs do (pairwise), or
by their summed utilization, as pairs do (summed), or pairs and larger groups alike by the range that section 3.2 prints
(printed, the testbed only). `partners` says what choosing partners can be worth, `slowdowns` what less interference
is. docs/research/reproduction-horus.md says what replaces what.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.papers.colocation_limits import HOUR_MS, least_gpu_h, with_least_memory
from benchmarks.papers.colocation_workloads import (
    cluster_of,
    draw_philly,
    draw_testbed,
    settings_of,
    with_summed_crowds,
)
from benchmarks.papers.seeds import Row, as_order_row, as_row, means_of
from benchmarks.papers.targets import Target, read_targets
from cotenant_simulator.run.records import OverheadCosts, RunSettings
from cotenant_simulator.run.simulation import Simulation
from cotenant_simulator.truth.cluster import Cluster
from cotenant_simulator.truth.predictions import NoErrors, TruthPredictor
from cotenant_simulator.truth.trace import Trace

WIDE_HORUS = "horus, 4 jobs per GPU"
"""obp and pab put as many jobs on a GPU as its memory holds; so may this one."""
PROFILED_PAB = "pab, profiled a minute each"
"""Section 6.1 blames its makespan on waiting for every job's stable performance; ours judges while others start."""
POLICIES: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "fifo": ("fifo", {}),
    "obp": ("obp", {}),
    "pab": ("pab", {}),
    PROFILED_PAB: ("pab", {}),
    "horus": ("horus", {}),
    WIDE_HORUS: ("horus", {"max_jobs_per_gpu": 4}),
    "horus_f": ("horus_f", {}),
    "horus_f k=5": ("horus_f", {"queues": 5}),
}
TESTBED = ("fifo", "obp", "pab", PROFILED_PAB, "horus", WIDE_HORUS)
PARTNERS = ("fifo", "obp", "pab", "horus")
LEAST_MEMORY_GIB = {"memory as committed": 0.0, "two fit on a GPU": 2.7}
"""Of 8 GiB."""
SLOWDOWNS = (0.1, 0.15, 0.2, 0.25)
MEANS_OF = 5
"""Section 5.2: five runs of each algorithm and pattern."""
SIMULATED = ("fifo", "obp", "horus", "horus_f", "horus_f k=5")
PATTERNS = ("W-Small", "W-Large")
CROWDS = ("pairwise", "summed", "printed")
REPORT_INTERVAL_MS = 10_000
"""pab watches step times, for which reports have to come."""
PROFILING_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one run left: minutes, the mean share of all GPUs' time that computes until the last job ends, GPU hours."""

    makespan_min: float
    run_min: float
    first_wait_median_min: float
    first_wait_mean_min: float
    utilization_ratio: float
    held_gpu_h: float


def testbed(seeds: int, crowds: str) -> list[Row]:
    """Table 6, Figs. 7 and 8: 100 jobs on 12 GPUs, two patterns."""
    settings, rows = _testbed_settings(crowds), []
    for pattern in PATTERNS:
        traces = [_with_multiway(draw_testbed(settings, pattern, seed), settings, crowds) for seed in range(seeds)]
        found = _sweep(traces, cluster_of(settings), TESTBED, pattern)
        makespans = {policy: [one.makespan_min for one in outcomes] for policy, outcomes in found.items()}
        for policy in TESTBED:
            printed = _one("Table 6, 6.1", "makespan", has_values=True).values.get(policy)
            rows.append(as_row("Table 6", f"{pattern}, makespan, {policy}, min", printed, makespans[policy]))
        rows.append(as_order_row("Table 6", f"{pattern}, makespan", _one("Table 6, 6.1", "makespan").order, makespans))
        rows += _over_others(pattern, makespans) + _slower(pattern, found) + _busier(pattern, found)
    return rows


def simulation(seeds: int, crowds: str, part: str = "simulation") -> list[Row]:
    """Table 7 and Fig. 9: 398 jobs of Philly."""
    if crowds == "printed":
        return []
    settings, path = settings_of(part), _philly()
    traces = [_with_multiway(draw_philly(settings, path, seed), settings, crowds) for seed in range(seeds)]
    found = _sweep(traces, cluster_of(settings), SIMULATED, "398 jobs")
    makespans = {policy: [one.makespan_min for one in outcomes] for policy, outcomes in found.items()}
    waits = {policy: [one.first_wait_median_min for one in outcomes] for policy, outcomes in found.items()}
    rows = [
        as_order_row("Fig. 9a", "398 jobs, makespan", _one("Fig. 9a, 6.2", "makespan").order, makespans),
        as_row("6.2", "398 jobs, makespan, horus_f over horus", 1.0, _ratios(makespans, "horus_f", "horus")),
    ]
    rows += [as_row("Table 7", f"398 jobs, median wait, {name}, min", None, waits[name]) for name in SIMULATED]
    if min(waits["horus"]) > 0:
        printed = _one("Table 7, 6.2", "first_wait_median", has_values=True).values["horus_f"]
        ratios = _ratios(waits, "horus_f", "horus")
        rows.append(as_row("Table 7", "398 jobs, median wait, horus_f over horus", printed, ratios))
    mean_waits = {policy: [one.first_wait_mean_min for one in outcomes] for policy, outcomes in found.items()}
    rows += [as_row("Table 7", f"398 jobs, mean wait, {name}, min", None, mean_waits[name]) for name in SIMULATED]
    five = _ratios(makespans, "horus_f k=5", "horus_f")
    rows.append(as_row("Fig. 9d", "398 jobs, makespan, k = 5 over k = 3", None, five))
    for policy in SIMULATED:
        busy = [one.utilization_ratio for one in found[policy]]
        rows.append(as_row("Fig. 9a", f"398 jobs, utilization, {policy}", None, busy))
    return rows


def dense(seeds: int, crowds: str) -> list[Row]:
    """Table 7 and Fig. 9 with jobs that wait: the same on half of the GPUs."""
    return [{**row, "setting": f"half of the GPUs, {row['setting']}"} for row in simulation(seeds, crowds, "dense")]


def partners(seeds: int, crowds: str) -> list[Row]:
    """Table 6: the GPU time that obp, pab and horus take, the least possible, and what five runs may show by chance."""
    if crowds == "pairwise":
        return []
    settings, rows = _testbed_settings(crowds), []
    for pattern in PATTERNS:
        drawn = [_with_multiway(draw_testbed(settings, pattern, seed), settings, crowds) for seed in range(seeds)]
        for memory, least_gib in LEAST_MEMORY_GIB.items():
            traces, label = [with_least_memory(trace, least_gib) for trace in drawn], f"{pattern}, {memory}"
            found = _sweep(traces, cluster_of(settings), PARTNERS, label)
            held = {policy: [one.held_gpu_h for one in outcomes] for policy, outcomes in found.items()}
            for most in (2, 4):
                held[f"the least, {most} per GPU"] = [least_gpu_h(trace, settings, most) for trace in traces]
            rows += [
                as_row("Table 6", f"{label}, GPU time, {name} over obp", None, _ratios(held, name, "obp"))
                for name in held
                if name not in ("fifo", "obp")
            ]
            makespans = {policy: [one.makespan_min for one in outcomes] for policy, outcomes in found.items()}
            rows += _over_others(label, makespans)
            rows += [row for row in _slower(label, found) if "obp" in str(row["setting"])]
            least = min(means_of(_ratios(makespans, "horus", "obp"), MEANS_OF))
            rows.append(as_row("Table 6", f"{label}, makespan, horus over obp, least of five runs", None, [least]))
    return rows


def slowdowns(seeds: int, crowds: str) -> list[Row]:
    """Table 6 and Fig. 7 where jobs slow each other down less than the committed 0.25 of their summed utilization."""
    if crowds != "summed":
        return []
    rows = []
    for slowdown in SLOWDOWNS:
        settings = {**settings_of("testbed"), "slowdown": {"linear": slowdown, "quadratic": slowdown}}
        for pattern in PATTERNS:
            traces = [_with_multiway(draw_testbed(settings, pattern, seed), settings, crowds) for seed in range(seeds)]
            label = f"{pattern}, slowdown {slowdown}"
            found = _sweep(traces, cluster_of(settings), ("fifo", "obp", "horus"), label)
            makespans = {policy: [one.makespan_min for one in outcomes] for policy, outcomes in found.items()}
            rows += _over_others(label, makespans) + _slower(label, found)
    return rows


PARTS: Mapping[str, Callable[[int, str], list[Row]]] = {
    "testbed": testbed,
    "simulation": simulation,
    "dense": dense,
    "partners": partners,
    "slowdowns": slowdowns,
}


def main(seeds: int = 20, parts: Sequence[str] = tuple(PARTS), crowds: Sequence[str] = CROWDS) -> dict[str, object]:
    """Run the named parts."""
    rows = [{"crowds": one, **row} for one in crowds for part in parts for row in PARTS[part](seeds, one)]
    return {"paper": "horus", "seeds": seeds, "rows": rows}


def run(trace: Trace, cluster: Cluster, name: str, *, seed: int) -> Outcome:
    """Run a workload under a policy that knows the true values.

    Raises:
        RuntimeError: A job did not finish; a mean over the others would say nothing.
    """
    policy, parameters = POLICIES[name]
    interval_ms = REPORT_INTERVAL_MS if policy == "pab" else 0
    settings = RunSettings(
        policy=policy,
        parameters=parameters,
        seed=seed,
        charges=OverheadCosts(launch_ms=PROFILING_MS if name == PROFILED_PAB else 0),
        report_interval_ms=interval_ms,
    )
    result = Simulation(trace, cluster, TruthPredictor(trace.truth, NoErrors()), settings).run()
    if result.unfinished:
        raise RuntimeError(f"{result.unfinished} jobs did not finish under {name}; give them a cluster they fit on")
    waits_ms = [job.first_started_at_ms - job.submitted_at_ms for job in result.jobs]
    span_ms = result.ended_at_ms - result.began_at_ms
    return Outcome(
        makespan_min=span_ms / 60_000,
        run_min=fmean(job.finished_at_ms - job.first_started_at_ms for job in result.jobs) / 60_000,
        first_wait_median_min=median(waits_ms) / 60_000,
        first_wait_mean_min=fmean(waits_ms) / 60_000,
        utilization_ratio=result.gpu_ms_utilized / (result.gpus * span_ms),
        held_gpu_h=result.gpu_ms_held / HOUR_MS,
    )


def _testbed_settings(crowds: str) -> Mapping[str, Any]:
    settings = settings_of("testbed")
    return {**settings, "slowdown": settings["printed_slowdown"]} if crowds == "printed" else settings


def _with_multiway(trace: Trace, settings: Mapping[str, Any], crowds: str) -> Trace:
    return trace if crowds == "pairwise" else with_summed_crowds(trace, settings)


def _sweep(traces: Sequence[Trace], cluster: Cluster, policies: Sequence[str], label: str) -> dict[str, list[Outcome]]:
    found = {}
    for policy in policies:
        found[policy] = [run(trace, cluster, policy, seed=seed) for seed, trace in enumerate(traces)]
        sys.stderr.write(f"{label} {policy}: makespan {fmean(one.makespan_min for one in found[policy]):.0f} min\n")
    return found


def _over_others(pattern: str, makespans: Mapping[str, Sequence[float]]) -> list[Row]:
    """Section 6.1: shorter makespans than under every other policy."""
    settings = {
        "fifo": "100 jobs on 12 GPUs, horus over fifo",
        "others": "100 jobs on 12 GPUs, horus over the others that co-locate, W-Large",
    }
    printed = {target.setting: target.values for target in read_targets("horus") if target.values}
    rows = []
    for other in [one for one in ("fifo", "obp", "pab", PROFILED_PAB) if one in makespans]:
        paper = printed[settings["fifo" if other == "fifo" else "others"]]["horus"]
        ratios = _ratios(makespans, "horus", other)
        rows.append(as_row("6.1", f"{pattern}, makespan, horus over {other}", paper, ratios))
    return rows


def _slower(pattern: str, found: Mapping[str, Sequence[Outcome]]) -> list[Row]:
    """Fig. 7: how much longer jobs run than under fifo, from their first start."""
    printed = _one("Fig. 7, 6.1", "run_mean", has_values=True).values
    runs = {policy: [one.run_min for one in outcomes] for policy, outcomes in found.items()}
    return [
        as_row("Fig. 7", f"{pattern}, run time, {name} over fifo", printed.get(name), _ratios(runs, name, "fifo"))
        for name in found
        if name != "fifo"
    ]


def _busier(pattern: str, found: Mapping[str, Sequence[Outcome]]) -> list[Row]:
    """Fig. 8: utilization of the cluster."""
    busy = {policy: [one.utilization_ratio for one in outcomes] for policy, outcomes in found.items()}
    own = _one("Fig. 8, 6.1", "utilization", has_values=True).values["horus"]
    gain = _one("Fig. 8, abstract of section 1", "utilization", has_values=True).values["horus"]
    rows = [as_row("Fig. 8", f"{pattern}, utilization, horus", own, busy["horus"])]
    return rows + [
        as_row("Fig. 8", f"{pattern}, utilization, horus over {other}", gain, _ratios(busy, "horus", other))
        for other in ("fifo", "obp", "pab")
    ]


def _one(place: str, quantity: str, *, has_values: bool = False) -> Target:
    (found,) = (
        target
        for target in read_targets("horus")
        if target.place == place and target.quantity == quantity and bool(target.values) == has_values
    )
    return found


def _ratios(values: Mapping[str, Sequence[float]], policy: str, other: str) -> list[float]:
    return [value / reference for value, reference in zip(values[policy], values[other], strict=True)]


def _philly() -> Path:
    root = os.environ.get("COTENANT_SHARED_DATA", "")
    if not root:
        raise SystemExit("COTENANT_SHARED_DATA is not set; set it to the public data, or use --parts testbed")
    return Path(root) / "traces" / "philly" / "philly_jobs.csv"


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--parts", nargs="*", choices=sorted(PARTS), default=list(PARTS))
    parser.add_argument("--crowds", nargs="*", choices=CROWDS, default=list(CROWDS))
    arguments = parser.parse_args()
    print(json.dumps(main(max(arguments.seeds, 1), arguments.parts, arguments.crowds), indent=2))


if __name__ == "__main__":
    _main()
