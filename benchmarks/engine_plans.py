"""Plans against the ledger of a simulated engine: seeds in which anything was given twice, over-packed or changed.

python -m benchmarks.engine_plans [--seeds 10000]
"""

from __future__ import annotations

import argparse
import json

from tests.support.engine_stories import EngineStory


def main(seeds: int = 10_000) -> dict[str, object]:
    """Return what was placed, and what went wrong by seed."""
    faulty, placed = dict[int, list[str]](), 0
    for seed in range(seeds):
        story = EngineStory(seed)
        faults = story.tell()
        if faults:
            faulty[seed] = faults[:5]
        placed += sum(order.startswith("place ") for order in story.engine.orders)
    return {"seeds": seeds, "jobs_placed": placed, "seeds_with_faults": faulty}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=10_000)
    print(json.dumps(main(parser.parse_args().seeds), indent=2))
