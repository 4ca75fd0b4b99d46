"""One figure from many seeds: its mean with a 95 % interval, and the row that stands next to the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from benchmarks.papers.targets import Value
from cotenant_simulator.comparison import intervals

Row = dict[str, object]


def interval_of(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the mean of independent values (Student's t); of one value, the value itself."""
    found = intervals.interval_of(values)
    if found is None or found.low is None or found.high is None:
        return fmean(values), fmean(values)
    return found.low, found.high


def means_of(values: Sequence[float], runs: int) -> list[float]:
    """Return the mean of every so many values after one another: what a paper has that repeats so often.

    Args:
        values: One per seed.
        runs: Repetitions. A rest is left out; of fewer values there is one mean.
    """
    firsts = range(0, max(len(values) - runs, 0) + 1, runs)
    return [fmean(values[first : first + runs]) for first in firsts]


def as_row(place: str, setting: str, paper: Value | None, values: Sequence[float]) -> Row:
    """Return the paper's figure next to ours.

    Args:
        place: Section, table or figure.
        setting: What was run.
        paper: The figure printed there; of a range the ratio is to its middle; None = it prints none.
        values: Ours, one per seed, in the paper's unit.
    """
    ours = fmean(values)
    middle = fmean(paper) if isinstance(paper, tuple) else paper
    return {
        "place": place,
        "setting": setting,
        "paper": paper,
        "ours": round(ours, 4),
        "ratio": round(ours / middle, 3) if middle else None,
        "interval": [round(end, 4) for end in interval_of(values)],
        "seeds": len(values),
    }


def as_order_row(place: str, setting: str, paper: Sequence[str], values: Mapping[str, Sequence[float]]) -> Row:
    """Return the paper's order next to ours, least first; the ratio is the share of its pairs that we order alike.

    Policies that were not run are left out of both orders.
    """
    means = {policy: fmean(values[policy]) for policy in paper if policy in values}
    printed = list(means)
    pairs = [(first, later) for number, first in enumerate(printed) for later in printed[number + 1 :]]
    alike = sum(means[first] <= means[later] for first, later in pairs)
    return {
        "place": place,
        "setting": setting,
        "paper": printed,
        "ours": sorted(printed, key=lambda policy: means[policy]),
        "ratio": round(alike / len(pairs), 3) if pairs else None,
        "interval": {policy: [round(end, 4) for end in interval_of(values[policy])] for policy in printed},
        "seeds": min(len(values[policy]) for policy in printed),
    }
