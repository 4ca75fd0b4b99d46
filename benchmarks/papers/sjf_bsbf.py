"""Tables II to IV and Figs. 5 and 6 of the SJF-BSBF paper, run again.

    python -m benchmarks.papers.sjf_bsbf [--seeds 20]
        [--parts interference table_3 table_4 loads pollux physical equal_widths tiresias]

Prints JSON; needs the public data of COTENANT_SHARED_DATA for measured interference and Pollux' workloads. Every policy
of a seed meets the same jobs; ratios are taken per seed. What replaces what: docs/research/reproduction-sjf-bsbf.md.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean

from benchmarks.papers.command import print_parts
from benchmarks.papers.seeds import Row, as_order_row, as_row
from benchmarks.papers.sharing_causes import equal_widths, shared_rows, tiresias_variants
from benchmarks.papers.sharing_runs import (
    LITERAL,
    MIX,
    XIS,
    Outcome,
    Ratios,
    committed_mix,
    measured_slowdowns,
    pollux_workload,
    run,
    sweep,
    with_measured_slowdowns,
    with_slowdown,
)
from benchmarks.papers.targets import Target, read_targets
from cotenant_simulator.truth.trace import Trace

MILD_XI_MAX = 1.25
SHARING, EXCLUSIVE = ("sjf_ffs", "sjf_bsbf"), ("fifo", "sjf", "tiresias")
POLICIES = (*EXCLUSIVE, *SHARING)
POLLUX_WORKLOADS = 7
TIRESIAS_RATIO_MAX, MILD_BAR, HARD_BAR = 0.75, (0.98, 1.02), (0.85, 0.93)
_SIZES = {"all": "jct_h", "large": "large_jct_h", "small": "small_jct_h"}


def interference(seeds: int) -> list[Row]:
    """Fig. 6b and the bar: one interference ratio for all pairs of the committed mix."""
    paper = {target.setting.partition(",")[0]: target.values["sjf_bsbf"] for target in _targets("Fig. 6b, VI-C")}
    (preemptive,) = (target.values["sjf_bsbf"] for target in _targets("Table II, VI-B"))
    traces = [committed_mix(MIX, seed) for seed in range(seeds)]
    alone = {name: [one.jct_h for one in outcomes] for name, outcomes in sweep(traces, EXCLUSIVE, "alone").items()}
    tiresias = alone["tiresias"]
    rows = [
        as_row(
            "Table III",
            "any xi, sjf over tiresias",
            _printed_ratio("Table III", "tiresias", policy="sjf"),
            _ratios(alone["sjf"], tiresias),
        )
    ]
    for xi in XIS:
        found = sweep([with_slowdown(trace, xi) for trace in traces], (*SHARING, LITERAL), f"xi {xi}")
        ratios = _ratios([one.jct_h for one in found["sjf_bsbf"]], [one.jct_h for one in found["sjf_ffs"]])
        is_mild = xi <= MILD_XI_MAX
        printed = paper["xi at most 1.25" if is_mild else "xi 1.5 to 2.0"]
        rows.append(
            as_row("Fig. 6b", f"xi {xi}, sjf_bsbf over sjf_ffs", printed, ratios)
            | _held(fmean(ratios), MILD_BAR if is_mild else HARD_BAR)
        )
        literal = _ratios([one.jct_h for one in found[LITERAL]], [one.jct_h for one in found["sjf_ffs"]])
        rows.append(as_row("Fig. 6b", f"xi {xi}, {LITERAL} over sjf_ffs", printed, literal))
        for policy in SHARING:
            rows += shared_rows(f"xi {xi}, {policy}", found[policy])
        work = [one.work_ratio for one in found["sjf_bsbf"]]
        rows.append(as_row("", f"xi {xi}, sjf_bsbf, work alone over GPU time held", None, work))
        against = _ratios([one.jct_h for one in found["sjf_bsbf"]], tiresias)
        rows.append(
            as_row("Table II, VI-B", f"xi {xi}, sjf_bsbf over tiresias", preemptive, against)
            | _held(fmean(against), (0.0, TIRESIAS_RATIO_MAX))
        )
    return rows


def table_3(seeds: int) -> list[Row]:
    """Table III, Figs. 5a and 5b: the committed mix under measured interference."""
    found = sweep(_measured_mixes(seeds, 240, measured_slowdowns(_shared())), POLICIES, "240 jobs")
    return _table("Table III", "240 jobs, measured interference", found) + _figure_5(found)


def table_4(seeds: int) -> list[Row]:
    """Table IV: twice the jobs in the same eight hours."""
    found = sweep(_measured_mixes(seeds, 480, measured_slowdowns(_shared())), POLICIES, "480 jobs")
    return _table("Table IV", "480 jobs, measured interference", found)


def loads(seeds: int) -> list[Row]:
    """Fig. 6a: 120 to 480 jobs in the same eight hours, measured interference."""
    ratios, rows = measured_slowdowns(_shared()), []
    (printed,) = (target for target in _targets("Fig. 6a, VI-C") if target.setting == "480 jobs")
    for jobs in (120, 180, 240, 360, 480):
        found = sweep(_measured_mixes(seeds, jobs, ratios), POLICIES, f"{jobs} jobs")
        values = {policy: [one.jct_h for one in outcomes] for policy, outcomes in found.items()}
        rows.append(as_order_row("Fig. 6a", f"{jobs} jobs, mean completion time, h", printed.order, values))
    return rows


def pollux(seeds: int) -> list[Row]:
    """The same comparisons on Pollux' own seven workloads, and against what its authors published for them."""
    shared = _shared()
    ratios, rows, numbers = measured_slowdowns(shared), [], range(1, min(seeds, POLLUX_WORKLOADS) + 1)
    for load in ("load-1.5", "load-realistic"):
        traces = [pollux_workload(shared, load, number) for number in numbers]
        for label, change in _interferences(ratios).items():
            found = sweep([change(trace) for trace in traces], (*SHARING, "tiresias"), f"{load} {label}")
            rows += _relations("VI-C", f"{load}, {label}", found, tiresias_paper=None)
            if load == "load-1.5":
                published = [_published_pollux_h(shared, number) for number in numbers]
                against = _ratios([one.jct_h for one in found["sjf_bsbf"]], published)
                setting = f"{load}, {label}, sjf_bsbf over published pollux"
                rows.append(as_row("Table III", setting, _printed_ratio("Table III", "pollux"), against))
    return rows


def physical(seeds: int) -> list[Row]:
    """Table II on a stand-in for the 30 jobs of the testbed: 4 x 4 GPUs, xi 1.5 for all pairs."""
    traces = [with_slowdown(committed_mix("sjf_bsbf_physical", seed), 1.5) for seed in range(seeds)]
    found = {
        policy: [run(trace, policy, seed=seed, cluster="4x4") for seed, trace in enumerate(traces)]
        for policy in POLICIES
    }
    rows = []
    for target in _targets("Table II"):
        for policy in POLICIES:
            is_stay = target.quantity == "jct_mean"
            values = [one.jct_h * 3_600 if is_stay else one.makespan_s for one in found[policy]]
            rows.append(as_row("Table II", f"{target.quantity}, {policy}, s", target.values[policy], values))
    return rows + _relations(
        "Table II", "30 jobs, xi 1.5", found, tiresias_paper=_printed_ratio("Table II", "tiresias")
    )


PARTS: Mapping[str, Callable[[int], list[Row]]] = {
    "interference": interference,
    "table_3": table_3,
    "table_4": table_4,
    "loads": loads,
    "pollux": pollux,
    "physical": physical,
    "equal_widths": equal_widths,
    "tiresias": tiresias_variants,
}


def main(seeds: int = 20, parts: Sequence[str] = tuple(PARTS)) -> dict[str, object]:
    """Run the named parts."""
    return {"paper": "sjf-bsbf", "seeds": seeds, "rows": [row for part in parts for row in PARTS[part](seeds)]}


def _table(place: str, setting: str, found: Mapping[str, Sequence[Outcome]]) -> list[Row]:
    rows = []
    for target in _targets(place):
        size = _SIZES[target.setting.rpartition(" ")[2]]
        for policy in POLICIES:
            values = [getattr(one, size) for one in found[policy]]
            rows.append(as_row(place, f"{target.setting}, {policy}, h", target.values[policy], values))
    return rows + _relations(place, setting, found, tiresias_paper=_printed_ratio(place, "tiresias"))


def _relations(
    place: str, setting: str, found: Mapping[str, Sequence[Outcome]], *, tiresias_paper: float | None
) -> list[Row]:
    """Return sjf_bsbf over sjf_ffs and over tiresias, seed by seed."""
    stays = {policy: [one.jct_h for one in outcomes] for policy, outcomes in found.items()}
    first_fit = _ratios(stays["sjf_bsbf"], stays["sjf_ffs"])
    preemptive = _ratios(stays["sjf_bsbf"], stays["tiresias"])
    return [
        as_row(place, f"{setting}, sjf_bsbf over sjf_ffs", _printed_ratio(place, "sjf_ffs"), first_fit),
        as_row(place, f"{setting}, sjf_bsbf over tiresias", tiresias_paper, preemptive)
        | _held(fmean(preemptive), (0.0, TIRESIAS_RATIO_MAX)),
    ]


def _figure_5(found: Mapping[str, Sequence[Outcome]]) -> list[Row]:
    (short,) = _targets("Fig. 5a, VI-C")
    (queueing,) = _targets("Fig. 5b")
    waits = {policy: [one.queueing_h for one in outcomes] for policy, outcomes in found.items()}
    shares = [one.half_thousand_share for one in found["sjf_bsbf"]]
    return [
        as_row("Fig. 5a", short.setting, short.values["sjf_bsbf"], shares),
        as_order_row("Fig. 5b", "240 jobs, mean queueing time, h", queueing.order, waits),
    ]


def _targets(place: str) -> list[Target]:
    return [target for target in read_targets("sjf-bsbf") if target.place == place]


def _printed_ratio(place: str, other: str, *, policy: str = "sjf_bsbf") -> float | None:
    """Return the ratio of two policies' mean completion times of all jobs in a printed table."""
    for target in _targets(place):
        if target.quantity == "jct_mean" and not target.setting.endswith(("large", "small")):
            own, others = target.values[policy], target.values.get(other)
            if isinstance(own, float) and isinstance(others, float):
                return round(own / others, 4)
    return None


def _held(value: float, bar: tuple[float, float]) -> Row:
    return {"bar": list(bar), "is_held": bar[0] <= value <= bar[1]}


def _ratios(values: Sequence[float], others: Sequence[float]) -> list[float]:
    return [value / other for value, other in zip(values, others, strict=True)]


def _measured_mixes(seeds: int, jobs: int, ratios: Ratios) -> list[Trace]:
    return [with_measured_slowdowns(committed_mix(MIX, seed, jobs=jobs), ratios) for seed in range(seeds)]


def _interferences(ratios: Ratios) -> dict[str, Callable[[Trace], Trace]]:
    """Return what may be true of pairs: constants, and what Gavel measured."""
    constants = {f"xi {xi}": partial(with_slowdown, xi=xi) for xi in (1.25, 1.5, 2.0)}
    return {**constants, "measured interference": partial(with_measured_slowdowns, ratios=ratios)}


def _published_pollux_h(shared: Path, number: int) -> float:
    """Return the mean completion time that Pollux' authors published for a workload of load 1.5, in hours."""
    path = shared / "traces" / "pollux" / "published" / "avg_jct.csv"
    with path.open(encoding="utf-8", newline="") as file:
        for cells in csv.DictReader(file):
            if (cells["policy"], cells["load"], cells["workload"]) == ("pollux", "1.5", f"workload-{number}"):
                return float(cells["avg_jct_s"]) / 3_600
    raise SystemExit(f"{path.name} has no row of pollux, load 1.5, workload-{number}; restore the file")


def _shared() -> Path:
    root = os.environ.get("COTENANT_SHARED_DATA", "")
    if not root:
        raise SystemExit("COTENANT_SHARED_DATA is not set; set it to the public data, or use --parts interference")
    return Path(root)


if __name__ == "__main__":
    print_parts(__doc__, PARTS, main)
