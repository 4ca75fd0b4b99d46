"""`python -m cotenant_simulator.pollux_rules WORKLOAD PROFILES POLICY [CLUSTER]`: one run, as JSON on stdout."""

from __future__ import annotations

import sys
from json import dumps
from pathlib import Path

from cotenant_simulator.pollux_rules.errors import PolluxRulesError
from cotenant_simulator.pollux_rules.simulation import POLICIES, run_pollux_rules


def main(arguments: list[str]) -> int:
    """Run one workload; return 0, 1 when it cannot be run, or 2 for wrong arguments."""
    if len(arguments) not in (3, 4):
        sys.stderr.write(
            "usage: python -m cotenant_simulator.pollux_rules WORKLOAD PROFILES POLICY [CLUSTER]; "
            f"POLICY is one of {', '.join(POLICIES)}, CLUSTER is NODESxGPUS (16x4)\n"
        )
        return 2
    workload, profiles, policy, *cluster = arguments
    try:
        found = run_pollux_rules(Path(workload), Path(profiles), policy, *cluster)
    except PolluxRulesError as problem:
        sys.stderr.write(f"{problem}\n")
        return 1
    sys.stdout.write(dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
