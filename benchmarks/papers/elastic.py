"""Figs. 3, 4, 6 and 8 to 11, Table VIII and Workload Four of the SideCar paper, run again on Pollux' step times.

    python -m benchmarks.papers.elastic [--seeds 20]
        [--parts figure_6 case_study figures_8_to_11 lengths epochs two_kinds growth beginning costs limits]

Prints JSON; needs the public data of COTENANT_SHARED_DATA. Workload: workloads/elastic.toml. The default scheduler
never changes a job; under termination a change costs a full restart, under elastic what SideCar needs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.papers.command import print_parts
from benchmarks.papers.elastic_causes import beginning, costs, growth, limits
from benchmarks.papers.elastic_figures import GAINS, case_study, epochs, figures_8_to_11, lengths, two_kinds
from benchmarks.papers.elastic_runs import COSTS, Curves, draw_workload, read_curves, rows_of, sweep
from benchmarks.papers.seeds import Row

ORDERED = "Figs. 7 and 8"


def figure_6(curves: Curves, seeds: int) -> list[Row]:
    """Fig. 6, Table VIII and the order of Figs. 7 and 8, with both costs of a change."""
    traces = [draw_workload(seed, curves) for seed in range(seeds)]
    return [row for one in COSTS for row in rows_of(sweep(traces, costs=one), f"costs of {one}", [*GAINS, ORDERED])]


PARTS: Mapping[str, Callable[[Curves, int], list[Row]]] = {
    "figure_6": figure_6,
    "case_study": case_study,
    "figures_8_to_11": figures_8_to_11,
    "lengths": lengths,
    "epochs": epochs,
    "two_kinds": two_kinds,
    "growth": growth,
    "beginning": beginning,
    "costs": costs,
    "limits": limits,
}


def main(seeds: int = 20, parts: Sequence[str] = tuple(PARTS)) -> dict[str, object]:
    """Run the named parts."""
    shared = os.environ.get("COTENANT_SHARED_DATA")
    if not shared:
        raise SystemExit("COTENANT_SHARED_DATA is not set; set it to the folder that holds traces/pollux/profiles")
    curves = read_curves(Path(shared) / "traces" / "pollux" / "profiles")
    rows = [row for part in parts for row in PARTS[part](curves, seeds)]
    return {"paper": "sidecar", "seeds": seeds, "rows": rows}


if __name__ == "__main__":
    print_parts(__doc__, PARTS, main)
