"""What pairs lose that take turns, and what pairs lose under MPS, by how much the two jobs want the device.

No set that we know of has the same pairs measured both ways, so that two sets stand next to each other: our own (turns)
and Alnair's (MPS), each pair by the product of both jobs' utilization alone, which is what fair turns would cost it.
The sets differ in more than the way; that is why neither way answers for the other.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from statistics import fmean, median
from typing import Final

from predictor_service.learning.profile_files import read_profiles

_DATASETS: Final = Path(__file__).resolve().parents[1] / "datasets"
SETS: Final = (_DATASETS / "cpu_standin", _DATASETS / "public" / "alnair")
EDGES: Final = (0.3, 0.6, 0.9, 1.0)
"""Largest fair slowdowns of the groups that pairs are told in."""


def measure(folder: Path) -> dict[str, list[tuple[float, float]]]:
    """Returns (fair, measured) slowdowns of the pairs of two different jobs, by the way that they shared the device.

    Args:
        folder: A data set with utilizations alone; a pair counts against the figures of its own campaign.
    """
    profiles = read_profiles(folder)
    wanted = {(row.campaign, row.job_key): row.utilization_ratio for row in profiles.solo if row.status == "ok"}
    found = defaultdict[str, list[tuple[float, float]]](list)
    for row in profiles.pairs:
        keys = (row.victim_job_key, *row.other_job_keys)
        shares = [share for key in dict.fromkeys(keys) if (share := wanted.get((row.campaign, key))) is not None]
        if row.slowdown_ratio is not None and len(keys) == len(shares) == 2:
            found[row.share_mode].append((shares[0] * shares[1], row.slowdown_ratio))
    return dict(found)


def summarise(pairs: list[tuple[float, float]]) -> list[dict[str, float]]:
    """Returns for each group of pairs how many there are, what fair turns would cost them, and what they lost."""
    least, rows = 0.0, []
    for most in EDGES:
        group = [pair for pair in pairs if least <= pair[0] < most or pair[0] == most == EDGES[-1]]
        least = most
        if group:
            fair, lost = zip(*group, strict=True)
            figures = {"fair_ratio": fmean(fair), "mean_ratio": fmean(lost), "median_ratio": median(lost)}
            rows.append({"fair_up_to": most, "pairs": len(group), **{k: round(v, 3) for k, v in figures.items()}})
    return rows


def main() -> None:
    """Prints the groups of every set and way as JSON."""
    found = {f"{folder.name} {way}": summarise(pairs) for folder in SETS for way, pairs in measure(folder).items()}
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
