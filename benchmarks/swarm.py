"""How many seeds of the swarm simulation pass, how fast, and which faults occurred.

Usage: python -m benchmarks.swarm [SEEDS [FIRST]]      (500 seeds from 0 by default)
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter

from tests.simulation.swarm.faults import SWITCHED_OFF
from tests.simulation.swarm.world import run_seed


def main(seeds: int = 500, first: int = 0) -> dict[str, object]:
    """Run seeds one after the other.

    Args:
        seeds: How many.
        first: The first of them.

    Returns:
        Seeds per CPU second, simulated hours, faults by kind, and the first complaint of every seed that has one.
    """
    struck: Counter[str] = Counter()
    violations: dict[int, str] = {}
    facts = jobs = fetched = gangs_prepared = lent_pauses = 0
    simulated_s = 0.0
    began_s = time.process_time()
    for seed in range(first, first + seeds):
        report = run_seed(seed)
        struck += report.struck
        facts, jobs, simulated_s = facts + report.facts, jobs + report.jobs, simulated_s + report.simulated_s
        fetched += report.fetched
        gangs_prepared += report.gangs_prepared
        lent_pauses += report.lent_pauses
        if report.violations:
            violations[seed] = report.violations[0]
            sys.stderr.write(f"{seed}: {report.violations[0]}\n")
    cpu_s = time.process_time() - began_s
    return {
        "seeds": seeds,
        "first_seed": first,
        "cpu_s": round(cpu_s, 1),
        "seeds_per_cpu_s": round(seeds / cpu_s, 2),
        "simulated_cluster_hours": round(simulated_s / 3600, 2),
        "jobs": jobs,
        "facts": facts,
        "checkpoints_fetched": fetched,
        "gangs_prepared": gangs_prepared,
        "pauses_for_measurements": lent_pauses,
        "faults": dict(struck.most_common()),
        "faults_switched_off": sorted(SWITCHED_OFF),
        "violations": violations,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(*map(int, sys.argv[1:])), indent=2) + "\n")
