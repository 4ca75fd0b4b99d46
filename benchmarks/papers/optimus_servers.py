"""Figs. 11 and 13 to 18 of the Optimus paper with parameter servers, a network and its own rounds of 20 minutes.

    python -m benchmarks.papers.optimus_servers [--seeds 20] [--parts comparison errors modes arrivals allocation
                                                 placement stragglers]

Prints JSON. Nine jobs of workloads/optimus_servers.toml on 60 containers of 13 nodes. Numbers and places are those of
our policy's functions; every part runs twice, with a link for every container and with links that the containers of a
node share. What Fig. 11 hangs on: optimus_causes.py; Figs. 2, 9, 19 and 20: optimus_parameters.py; under the live
engine's rules: optimus.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from benchmarks.papers.command import print_parts
from benchmarks.papers.seeds import Row, as_order_row, as_row
from benchmarks.papers.server_beliefs import Beliefs
from benchmarks.papers.server_jobs import MODES, ServerJob, draw_jobs
from benchmarks.papers.server_rounds import Outcome, World, run
from benchmarks.papers.server_schemes import PAIRED, scheme
from benchmarks.papers.targets import Value, find_order, find_values

PAPER = "optimus"
OTHERS = ("drf", "tetris")
NAMES = (PAPER, *OTHERS)
LINKS = {"own links": False, "shared links": True}
QUANTITIES = {"jct": "jct_h", "makespan": "makespan_h"}
ERRORS = (0.06, 0.15, 0.30, 0.45)
FITTED = "optimus, speeds fitted"
Found = Mapping[str, Sequence[Outcome]]


def comparison(seeds: int) -> list[Row]:
    """Figs. 11 and 13: whole schedulers; the time on changes; how many tasks, and how busy."""
    workloads, rows = [draw_jobs(seed) for seed in range(seeds)], []
    for label, worlds in worlds_of(seeds):
        found = sweep({name: (name, name) for name in NAMES}, workloads, worlds, f"Fig. 11 {label}")
        rows += _ratios("Fig. 11", label, found, find_values(PAPER, "Fig. 11", "jct"))
        overhead = find_values(PAPER, "6.2", "overhead")[PAPER]
        for name in NAMES:
            values = [one.overhead_percent for one in found[name]]
            rows.append(
                as_row("6.2", f"{label}: {name}: time on changes, %", overhead if name == PAPER else None, values)
            )
        for quantity, field in (("tasks", "tasks"), ("cpu_utilization", "busy_ratio")):
            printed = find_order(PAPER, "Fig. 13", quantity)
            rows.append(as_order_row("Fig. 13", f"{label}: {quantity}", printed, _values(found, field)))
        fitted = [replace(world, beliefs=Beliefs(fits_speeds=True)) for world in worlds]
        found = {**found, **sweep({FITTED: (PAPER, PAPER)}, workloads, fitted, f"Fig. 11 {label}")}
        found |= sweep({PAIRED: (PAIRED, PAPER)}, workloads, worlds, f"Fig. 11 {label}")
        for quantity, field in QUANTITIES.items():
            for name in (FITTED, PAIRED):
                ratios = over(found, "drf", name, field)
                rows.append(as_row("Fig. 11", f"{label}: {quantity} of drf over {name}", None, ratios))
    return rows


def errors(seeds: int) -> list[Row]:
    """Fig. 14: assumed convergence and speeds wrong by E either way, one after the other and together."""
    workloads, rows = [draw_jobs(seed) for seed in range(seeds)], []
    for label, worlds in worlds_of(seeds):
        kinds = {f"convergence {error}": Beliefs(steps_error_ratio=error) for error in ERRORS}
        kinds |= {f"speed {error}, by job": Beliefs(speed_error_ratio=error) for error in ERRORS}
        kinds |= {f"speed {error}, by pair": Beliefs(speed_error_ratio=error, errs_by_pair=True) for error in ERRORS}
        together = "convergence 0.15 and speed 0.06"
        for how, by_pair in (("by job", False), ("by pair", True)):
            kinds[f"{together}, {how}"] = Beliefs(steps_error_ratio=0.15, speed_error_ratio=0.06, errs_by_pair=by_pair)
        found = sweep({PAPER: (PAPER, PAPER)}, workloads, worlds, f"Fig. 14 {label}")
        for name, beliefs in kinds.items():
            wrong = [replace(world, beliefs=beliefs) for world in worlds]
            found |= sweep({name: (PAPER, PAPER)}, workloads, wrong, f"Fig. 14 {label}")
            for quantity, field in QUANTITIES.items():
                printed = find_values(PAPER, "Fig. 14", f"{quantity}_loss")[PAPER] if together in name else None
                losses = [100 * (ratio - 1) for ratio in over(found, name, PAPER, field)]
                rows.append(as_row("Fig. 14", f"{label}: {name}: {quantity} lost, %", printed, losses))
        order = find_order(PAPER, "Fig. 14", "loss")
        for how in ("by job", "by pair"):
            values = {
                "convergence": over(found, "convergence 0.15", PAPER, "jct_h"),
                "speed": over(found, f"speed 0.15, {how}", PAPER, "jct_h"),
            }
            rows.append(as_order_row("Fig. 14", f"{label}: jct at errors of 15 %, speed {how}", order, values))
    return rows


def modes(seeds: int) -> list[Row]:
    """Fig. 15: all jobs trained one way; the paper gains more where all are synchronous."""
    rows = []
    for label, worlds in worlds_of(seeds):
        gains: dict[str, dict[str, list[float]]] = {name: {} for name in QUANTITIES}
        for mode in MODES:
            workloads = [draw_jobs(seed, mode=mode) for seed in range(seeds)]
            found = sweep({name: (name, name) for name in NAMES}, workloads, worlds, f"Fig. 15 {label} {mode}")
            rows += _ratios("Fig. 15", f"{label}, {mode}", found, {})
            for quantity, field in QUANTITIES.items():
                gains[quantity][mode] = over(found, "drf", PAPER, field)
        printed = find_order(PAPER, "Fig. 15", "drf over optimus")
        for quantity, values in gains.items():
            rows.append(as_order_row("Fig. 15", f"{label}: {quantity} of drf over optimus", printed, values))
    return rows


def arrivals(seeds: int) -> list[Row]:
    """Fig. 16: Poisson arrivals, three per interval; the paper's second process is not public."""
    workloads, rows = [draw_jobs(seed, arrivals="poisson") for seed in range(seeds)], []
    for label, worlds in worlds_of(seeds):
        found = sweep({name: (name, name) for name in NAMES}, workloads, worlds, f"Fig. 16 {label}")
        rows += _ratios("Fig. 16", f"{label}, poisson", found, {})
    return rows


def allocation(seeds: int) -> list[Row]:
    """Fig. 17: the others' numbers at Optimus' places."""
    return _reductions("Fig. 17", "allocation", {name: (name, PAPER) for name in NAMES}, seeds)


def placement(seeds: int) -> list[Row]:
    """Fig. 18: Optimus' numbers at the others' places."""
    return _reductions("Fig. 18", "placement", {name: (PAPER, name) for name in NAMES}, seeds)


def stragglers(seeds: int) -> list[Row]:
    """Section 5.2, of which the text prints no figure: what stragglers cost, ignored and replaced."""
    workloads, rows = [draw_jobs(seed) for seed in range(seeds)], []
    for label, worlds in worlds_of(seeds):
        found: dict[str, Sequence[Outcome]] = {}
        for how in ("", "ignored", "replaced"):
            reported = [replace(world, straggling=how) for world in worlds]
            found |= sweep({how: (PAPER, PAPER)}, workloads, reported, f"5.2 {label}")
        for how in ("ignored", "replaced"):
            for quantity, field in QUANTITIES.items():
                losses = [100 * (ratio - 1) for ratio in over(found, how, "", field)]
                rows.append(as_row("5.2", f"{label}: stragglers {how}: {quantity} lost, %", None, losses))
    return rows


PARTS: Mapping[str, Callable[[int], list[Row]]] = {
    "comparison": comparison,
    "errors": errors,
    "modes": modes,
    "arrivals": arrivals,
    "allocation": allocation,
    "placement": placement,
    "stragglers": stragglers,
}


def main(seeds: int = 20, parts: Sequence[str] = tuple(PARTS)) -> dict[str, object]:
    """Run the named parts."""
    return {"paper": PAPER, "seeds": seeds, "rows": [row for part in parts for row in PARTS[part](seeds)]}


def worlds_of(seeds: int) -> Iterator[tuple[str, list[World]]]:
    """Yield one world per seed, with own links and with shared ones."""
    for label, shares_links in LINKS.items():
        yield label, [World(seed=seed, shares_links=shares_links) for seed in range(seeds)]


def sweep(
    schemes: Mapping[str, tuple[str, str]],
    workloads: Sequence[Sequence[ServerJob]],
    worlds: Sequence[World],
    label: str,
) -> dict[str, Sequence[Outcome]]:
    """Run every scheduler, a pair of one's numbers and another's places, on every workload."""
    found: dict[str, Sequence[Outcome]] = {}
    for name, (numbers, places) in schemes.items():
        pairs = zip(workloads, worlds, strict=True)
        found[name] = [run(jobs, scheme(numbers, places), world) for jobs, world in pairs]
        sys.stderr.write(f"{label} {name}: {fmean(one.jct_h for one in found[name]):.3f} h\n")
    return found


def _ratios(place: str, label: str, found: Found, printed: Mapping[str, Value]) -> list[Row]:
    """Return the others over Optimus, and the order of all; what is printed of completion times is of makespans too."""
    rows = []
    for quantity, field in QUANTITIES.items():
        for name in OTHERS:
            paper = find_values(PAPER, place, quantity)[name] if name in printed else None
            rows.append(
                as_row(place, f"{label}: {quantity} of {name} over optimus", paper, over(found, name, PAPER, field))
            )
        order = find_order(PAPER, place, "jct and makespan")
        rows.append(as_order_row(place, f"{label}: {quantity}, h", order, _values(found, field)))
    return rows


def _reductions(place: str, part: str, schemes: Mapping[str, tuple[str, str]], seeds: int) -> list[Row]:
    workloads, rows = [draw_jobs(seed) for seed in range(seeds)], []
    for label, worlds in worlds_of(seeds):
        found = sweep(schemes, workloads, worlds, f"{place} {label}")
        for quantity, field in QUANTITIES.items():
            printed = find_values(PAPER, place, f"{quantity}_reduction")
            for name in OTHERS:
                below = [100 * (1 - ratio) for ratio in over(found, PAPER, name, field)]
                row = f"{label}: optimus below {name}: {quantity}, %"
                rows.append(as_row(place, row, printed.get(f"optimus_below_{name}"), below))
                if (name, quantity) == ("drf", "jct"):
                    summary = find_values(PAPER, "6.4", "improvement")[part]
                    rows.append(as_row("6.4", f"{label}: improvement by {part}, %", summary, below))
    return rows


def over(found: Found, name: str, other: str, field: str) -> list[float]:
    """Return one scheduler's figure over another's, by seed."""
    values = _values(found, field)
    return [one / reference for one, reference in zip(values[name], values[other], strict=True)]


def _values(found: Found, field: str) -> dict[str, list[float]]:
    return {name: [float(getattr(one, field)) for one in outcomes] for name, outcomes in found.items()}


if __name__ == "__main__":
    print_parts(__doc__, PARTS, main)
