"""Table 5 and Figs. 5 to 11 of the OJPP paper, run again, and the same on our own measured matrix.

    python -m benchmarks.papers.ojpp [--seeds 20] [--parts frontier policies types balance predicted fluctuation ...]

Prints JSON. Static placements of workloads/ojpp.toml: 20 jobs at once, a GPU for every worker at hand, compute not
counted (compute_requirement = zero). Performance = mean over jobs of time alone / time shared, a job being as slow as
its slowest worker; GPUs saved = 1 - GPUs used / workers.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from benchmarks.papers.command import print_parts
from benchmarks.papers.ojpp_fluctuation import draw_fluctuation, watch
from benchmarks.papers.ojpp_workload import (
    Workload,
    draw_workload,
    gpus_saved_ratio,
    measured_workload,
    performance_ratio,
    placement_on_fewest,
    slowdowns_of,
    workload_of,
)
from benchmarks.papers.seeds import Row, as_order_row, as_row
from benchmarks.papers.targets import Target, read_targets
from scheduler_service.core.cluster_view.view import Policy
from scheduler_service.policies.b_greedy import BGreedy
from scheduler_service.policies.best_fit import BestFit
from scheduler_service.policies.c_greedy import CGreedy
from scheduler_service.policies.i_greedy import IGreedy
from scheduler_service.policies.ojpp import Ojpp
from scheduler_service.policies.ojpp_greedy import OjppGreedy
from tests.support.packing import Placement, placement_of

SETTINGS = {
    f"tau_max {tau}, theta_max {theta}, theta_diff {balance}": Ojpp(
        compute_requirement="zero", tau_max=tau, theta_max=theta, theta_diff=balance
    )
    for tau, theta, balance in (
        (0.05, 0.1, 0.1),
        (0.05, 0.2, 0.1),
        (0.05, 0.4, 0.1),
        (0.1, 0.2, 0.1),
        (0.1, 0.2, 0.2),
        (0.1, 0.4, 0.2),
    )
}
BAR_SETTING = "tau_max 0.1, theta_max 0.2, theta_diff 0.1"
SAVED_MIN_PERCENT, PERFORMANCE_MIN_PERCENT = 46.0, 92.97
QUANTITIES = {"performance": "performance, %", "gpus_saved": "GPUs saved, %"}
OJPP = SETTINGS[BAR_SETTING]
UNBALANCED = Ojpp(compute_requirement="zero", theta_diff=100.0)
POLICIES: Mapping[str, Policy] = {
    "best_fit": BestFit(compute_requirement="zero"),
    "i_greedy": IGreedy(compute_requirement="zero"),
    "b_greedy": BGreedy(compute_requirement="zero"),
    "c_greedy": CGreedy(compute_requirement="zero"),
    "ojpp_greedy": OjppGreedy(compute_requirement="zero"),
    "ojpp": OJPP,
    "ojpp_one_plan": Ojpp(compute_requirement="zero", looks_max=1),
    "ojpp_as_printed": Ojpp(compute_requirement="zero", looks_max=0),
    "ojpp_without_balance": Ojpp(compute_requirement="zero", theta_diff=100.0),
}
KINDS = ("mixed", "c_high", "i_high", "average")
PREDICTION_ERROR_RATIO = 0.07
INSTANTS = 2_000
"""At which it is drawn whether peaks coincide."""


class Placed:
    """What becomes of one workload in one placement.

    Attributes:
        slowdowns: Of each job.
        saved_percent: GPUs saved.
        performance_percent: Mean over jobs of time alone / time shared.
    """

    def __init__(self, workload: Workload, placement: Placement) -> None:
        if len(placement) < len(workload.types):
            raise AssertionError("a job was left out although there is a GPU for every worker")
        self.slowdowns = slowdowns_of(workload, placement)
        self.saved_percent = 100 * gpus_saved_ratio(workload, placement)
        self.performance_percent = 100 * performance_ratio(self.slowdowns)
        self.gpus = len({gpu for gpus in placement.values() for gpu in gpus})

    @property
    def slowdown_percent(self) -> float:
        """Mean slowdown of the jobs."""
        return 100 * fmean(self.slowdowns.values())


class Outcome(Placed):
    """What becomes of one workload under one policy, which may assume other slowdowns than the true ones."""

    def __init__(self, workload: Workload, policy: Policy, *, assumed: Workload | None = None) -> None:
        super().__init__(
            workload, placement_of(workload.instance, policy.decide((assumed or workload).instance.view()))
        )


def frontier(seeds: int) -> list[Row]:
    """Table 5 and the bar: six settings on the mixed workloads, under the matrix of the bar and the lonely one."""
    rows = []
    for lonely in (False, True):
        workloads = [draw_workload("mixed", seed, lonely=lonely) for seed in range(seeds)]
        label = "resnet alone" if lonely else "mixed"
        for setting, policy in SETTINGS.items():
            rows += _frontier_rows(f"{label}, {setting}", setting, workloads, policy)
            _say(rows[-2:])
    return rows


def _frontier_rows(label: str, setting: str, workloads: Sequence[Workload], policy: Ojpp) -> list[Row]:
    """Return the paper's performance and saving next to ours, those of the paper's plan, and those of fewest GPUs."""
    found: dict[str, list[Placed]] = {
        "ours": [Outcome(one, policy) for one in workloads],
        "as_printed": [Outcome(one, replace(policy, looks_max=0)) for one in workloads],
        "fewest_gpus": [_fewest(one, policy) for one in workloads],
    }
    rows = {
        "performance": [[one.performance_percent for one in each] for each in found.values()],
        "gpus_saved": [[one.saved_percent for one in each] for each in found.values()],
    }
    least = {"performance": PERFORMANCE_MIN_PERCENT, "gpus_saved": SAVED_MIN_PERCENT}
    printed = {quantity: _printed("Table 5", setting, quantity, "ojpp") for quantity in rows}
    made = []
    for quantity, (ours, as_printed, fewest) in rows.items():
        row = as_row("Table 5", f"{label}: {QUANTITIES[quantity]}", printed[quantity], ours)
        row |= {"as_printed": round(fmean(as_printed), 2), "fewest_gpus": round(fmean(fewest), 2)}
        made.append(row | _held(row, least[quantity]) if label == f"mixed, {BAR_SETTING}" else row)
    return made


def _fewest(workload: Workload, policy: Ojpp) -> Placed:
    """Place on as few GPUs as possible under the limits of a policy."""
    limits = {"tau_max": policy.tau_max, "theta_max": policy.theta_max, "theta_diff": policy.theta_diff}
    return Placed(workload, placement_on_fewest(workload, **limits))


def policies(seeds: int) -> list[Row]:
    """Figs. 5 and 8: every policy on the four workloads."""
    rows, everywhere = [], []
    for kind in KINDS:
        workloads = [draw_workload(kind, seed) for seed in range(seeds)]
        found = {name: [Outcome(one, policy) for one in workloads] for name, policy in POLICIES.items()}
        for name, outcomes in found.items():
            slowdowns = [one.slowdown_percent for one in outcomes]
            rows += [
                as_row("Fig. 5", f"{kind}, {name}: mean slowdown, %", None, slowdowns),
                as_row(
                    "Fig. 5", f"{kind}, {name}: performance, %", None, [one.performance_percent for one in outcomes]
                ),
                as_row("Fig. 8", f"{kind}, {name}: GPUs saved, %", None, [one.saved_percent for one in outcomes]),
            ]
        everywhere.append([one.slowdown_percent for one in found["best_fit"]])
        slowdowns_by = {name: [one.slowdown_percent for one in outcomes] for name, outcomes in found.items()}
        gpus_by = {name: [float(one.gpus) for one in outcomes] for name, outcomes in found.items()}
        rows.append(as_order_row("Fig. 5", f"{kind}: mean slowdown", _order("Fig. 5"), slowdowns_by))
        rows.append(as_order_row("Fig. 8", f"{kind}: GPUs", _order("Fig. 8"), gpus_by))
        if kind == "mixed":
            extra = [100 * (own / packed - 1) for own, packed in zip(gpus_by["ojpp"], gpus_by["best_fit"], strict=True)]
            paper = _printed("5.3.1", "mixed", "extra_gpus", "ojpp")
            rows.append(as_row("5.3.1", "mixed: GPUs of ojpp beyond best_fit, %", paper, extra))
        _say(rows[-3:])
    paper = _printed("5.3.1", "mean of the four workloads", "slowdown", "best_fit")
    means = [fmean(one) for one in zip(*everywhere, strict=True)]
    return [*rows, as_row("5.3.1", "four workloads, best_fit: mean slowdown, %", paper, means)]


def types(seeds: int) -> list[Row]:
    """Fig. 7: the slowdown of each type in the mixed workload."""
    workloads = [draw_workload("mixed", seed) for seed in range(seeds)]
    rows, resnet = [], {}
    for name, policy in POLICIES.items():
        by_type: dict[str, list[float]] = {}
        for workload in workloads:
            for job, slowdown in Outcome(workload, policy).slowdowns.items():
                by_type.setdefault(workload.types[job], []).append(100 * slowdown)
        rows += [
            as_row("Fig. 7", f"mixed, {name}, {one}: slowdown, %", None, values)
            for one, values in sorted(by_type.items())
        ]
        resnet[name] = by_type.get("resnet", [0.0])
    return [*rows, as_order_row("Fig. 7", "mixed, resnet: slowdown", _order("Fig. 7"), resnet)]


def balance(seeds: int) -> list[Row]:
    """Fig. 9: OJPP with and without the limit on balance, by the largest number of workers.

    Jobs of equal width are placed together as if each were one worker, so that widths have to differ.
    """
    rows = []
    for workers_max in range(1, 11):
        workloads = [draw_workload("mixed", seed, workers_max=workers_max) for seed in range(seeds)]
        values = {
            name: [Outcome(one, policy).slowdown_percent for one in workloads]
            for name, policy in (("ojpp", OJPP), ("ojpp_without_balance", UNBALANCED))
        }
        setting = f"mixed, 1 to {workers_max} workers"
        rows += [as_row("Fig. 9", f"{setting}, {name}: mean slowdown, %", None, each) for name, each in values.items()]
        rows.append(as_order_row("Fig. 9", f"{setting}: mean slowdown", _order("Fig. 9"), values))
    return rows


def predicted(seeds: int) -> list[Row]:
    """Fig. 11: placed by a matrix whose numbers are wrong by 7 % on average, run under the true one."""
    rows = []
    for name in ("best_fit", "i_greedy", "b_greedy", "c_greedy", "ojpp"):
        drops = []
        for seed in range(seeds):
            true = draw_workload("mixed", seed)
            wrong = Outcome(true, POLICIES[name], assumed=_misjudged(true, seed))
            right = Outcome(true, POLICIES[name])
            drops.append(100 * (1 - wrong.performance_percent / right.performance_percent))
        paper = _printed("5.3.3", "predicted matrix, mean error 7 %", "performance_lost", "ojpp")
        rows.append(as_row("Fig. 11", f"mixed, {name}: performance lost, %", paper if name == "ojpp" else None, drops))
    return rows


def _misjudged(workload: Workload, seed: int) -> Workload:
    """Return the workload of an owner whose slowed-down times are wrong by 7 % on average, of random sign."""
    generator = random.Random(f"errors {seed}")
    # The mean of |error| of a normal error is its deviation times sqrt(2 / pi).
    deviation = PREDICTION_ERROR_RATIO / 0.7979
    matrix = {
        pair: max((1 + slowdown) * (1 + generator.gauss(0.0, deviation)) - 1, 0.0)
        for pair, slowdown in workload.matrix.items()
    }
    return workload.predicting(matrix)


def fluctuation(seeds: int) -> list[Row]:
    """Fig. 10: a short violation moves no job, a lasting rise does, and interference is low again."""
    workloads = [draw_fluctuation(seed) for seed in range(seeds)]
    seen = {name: [watch(one, name) for one in workloads] for name in ("ojpp", "ojpap")}
    moved = list(zip(workloads, seen["ojpap"], strict=True))
    cost = _printed("5.3.2", "average", "migration_cost", "ojpap")
    early = _printed("Fig. 10", "before the rise", "moves", "ojpap")
    limit = OJPP.theta_max
    rows = [
        as_row(
            "Fig. 10",
            "before the rise, minutes with a GPU above the limit",
            None,
            [one.minutes_above(limit, from_ms=0, until_ms=load.rise_at_ms) for load, one in moved],
        ),
        as_row(
            "Fig. 10", "before the rise, moves", early, [one.moves(until_ms=load.rise_at_ms) for load, one in moved]
        ),
        as_row("Fig. 10", "after the rise, moves", None, [one.moves(from_ms=load.rise_at_ms) for load, one in moved]),
        as_row("5.3.2", "cost of moving, % of a moved job's time", cost, [one.cost_percent for _, one in moved]),
    ]
    above, slow = {}, {}
    for name, found in seen.items():
        after = [
            float(one.minutes_above(limit, from_ms=load.rise_at_ms)) for load, one in zip(workloads, found, strict=True)
        ]
        above[name], slow[name] = after, [one.slowdown_percent for one in found]
        rows.append(as_row("Fig. 10", f"after the rise, {name}: minutes with a GPU above the limit", None, after))
        rows.append(as_row("Fig. 10", f"{name}: mean slowdown, %", None, slow[name]))
        known = [one.known_slowdown_percent for one in found]
        rows.append(as_row("Fig. 10", f"{name}: mean slowdown of all but the latecomers, %", None, known))
    rows.append(as_order_row("Fig. 10", "after the rise: minutes above the limit", _order("Fig. 10"), above))
    rows.append(as_order_row("Fig. 10", "mean slowdown", _order("Fig. 10"), slow))
    _say(rows)
    return rows


def measured(seeds: int) -> list[Row]:
    """Not in the paper: jobs of our own measurements (datasets/cpu_standin), whatever comes out."""
    workloads = [measured_workload(seed) for seed in range(seeds)]
    rows = []
    for setting, policy in SETTINGS.items():
        found = [Outcome(one, policy) for one in workloads]
        saved, performance = [one.saved_percent for one in found], [one.performance_percent for one in found]
        rows += [
            as_row("none", f"measured matrix, {setting}: performance, %", None, performance),
            as_row("none", f"measured matrix, {setting}: GPUs saved, %", None, saved),
        ]
    for name, one_policy in POLICIES.items():
        found = [Outcome(one, one_policy) for one in workloads]
        saved, performance = [one.saved_percent for one in found], [one.performance_percent for one in found]
        rows += [
            as_row("none", f"measured matrix, {name}: performance, %", None, performance),
            as_row("none", f"measured matrix, {name}: GPUs saved, %", None, saved),
        ]
    return rows


def triples(seeds: int) -> list[Row]:
    """Fig. 8 and Table 5 with peaks only (Eq. 2) beside the triples (Eq. 3-5), and how often peaks then coincide.

    Peaks only: every worker holds its peak all the time. `opportunistic_memory`: Eq. 5 where all peaks do not fit at
    once. Coinciding peaks are drawn: at each of 2,000 instants every
    worker is at its peak with probability p, independently; a shared GPU collides where two are or more.
    """
    rows = []
    for kind in KINDS:
        workloads = [draw_workload(kind, seed) for seed in range(seeds)]
        saved = [
            [one.saved_percent for one in (Outcome(load, OJPP) for load in loads)]
            for loads in (workloads, [at_their_peaks(load) for load in workloads])
        ]
        row = as_row("Fig. 8", f"{kind}, ojpp with triples: GPUs saved, %", None, saved[0])
        rows += [row | {"peaks_only": round(fmean(saved[1]), 2)}]
    mixed = [draw_workload("mixed", seed) for seed in range(seeds)]
    for setting, policy in SETTINGS.items():
        with_triples = [placement_of(one.instance, policy.decide(one.instance.view())) for one in mixed]
        collided = [
            collisions(load, placement, seed)
            for seed, (load, placement) in enumerate(zip(mixed, with_triples, strict=True))
        ]
        saved_percent = [100 * gpus_saved_ratio(load, one) for load, one in zip(mixed, with_triples, strict=True)]
        peaks = [Outcome(at_their_peaks(one), policy).saved_percent for one in mixed]
        ours = [Outcome(one, replace(policy, opportunistic_memory=True)).saved_percent for one in mixed]
        printed = _printed("Table 5", setting, "gpus_saved", "ojpp")
        row = as_row("Table 5", f"mixed, {setting}, triples: GPUs saved, %", printed, saved_percent)
        means = [100 * fmean(one) for one in collided if one]
        worst = max((100 * max(one) for one in collided if one), default=0.0)
        collision = as_row("Eq. 5", f"mixed, {setting}: shared time with coinciding peaks, %", None, means)
        rows += [
            row | {"peaks_only": round(fmean(peaks), 2), "opportunistic_memory": round(fmean(ours), 2)},
            collision | {"tau_percent": 100 * (policy.tau_max or 0.0), "worst_gpu": round(worst, 2)},
        ]
        _say(rows[-2:])
    return rows


def at_their_peaks(workload: Workload) -> Workload:
    """Return the same jobs, each of which holds its peak all the time."""
    jobs = [replace(one, gamma=one.gamma + one.delta, delta=0.0, p=0.0) for one in workload.instance.jobs]
    return workload_of(jobs, workload.types, workload.matrix)


def collisions(workload: Workload, placement: Placement, seed: int) -> list[float]:
    """Return the share of drawn instants at which peaks coincide, of each GPU that is shared."""
    generator, shares = random.Random(f"peaks {seed}"), []
    on_gpu: dict[str, list[float]] = {}
    for name, gpu_ids in placement.items():
        for gpu_id in gpu_ids:
            on_gpu.setdefault(gpu_id, []).append(workload.instance.named(name).p)
    for probabilities in on_gpu.values():
        if len(probabilities) > 1:
            drawn = (sum(generator.random() < p for p in probabilities) for _ in range(INSTANTS))
            shares.append(sum(count > 1 for count in drawn) / INSTANTS)
    return shares


PARTS: Mapping[str, Callable[[int], list[Row]]] = {
    "frontier": frontier,
    "policies": policies,
    "types": types,
    "balance": balance,
    "predicted": predicted,
    "fluctuation": fluctuation,
    "measured": measured,
    "triples": triples,
}


def main(seeds: int = 20, parts: Sequence[str] = tuple(PARTS)) -> dict[str, object]:
    """Run the named parts."""
    return {"paper": "ojpp", "seeds": seeds, "rows": [row for part in parts for row in PARTS[part](seeds)]}


def _targets(place: str) -> list[Target]:
    return [target for target in read_targets("ojpp") if target.place == place]


def _printed(place: str, setting: str, quantity: str, policy: str) -> float:
    (target,) = (one for one in _targets(place) if (one.setting, one.quantity) == (setting, quantity))
    value = target.values[policy]
    return value if isinstance(value, float) else fmean(value)


def _order(place: str) -> Sequence[str]:
    (target,) = (one for one in _targets(place) if one.order)
    return target.order


def _held(row: Row, least: float) -> Row:
    return {"bar": least, "is_held": float(str(row["ours"])) >= least}


def _say(rows: Sequence[Row]) -> None:
    for row in rows:
        sys.stderr.write(f"{row['place']} {row['setting']} {row['ours']} (paper {row['paper']})\n")


if __name__ == "__main__":
    print_parts(__doc__, PARTS, main)
