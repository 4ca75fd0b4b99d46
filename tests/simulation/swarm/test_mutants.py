"""The swarm finds every mutant: a rule that nothing guards may as well not exist."""

from __future__ import annotations

import sys

import pytest

from tests.simulation.swarm.mutants import MUTANTS
from tests.simulation.swarm.world import run_seed

SEEDS_MAX = 2_000
FIRST_SEEDS = {
    "stale_fence_accepted": 124,
    "early_loss": 3,
    "sleep_counts_nowhere": 87,
    "standstill_lets_run": 5,
    "standstill_never_ends": 127,
    "checkpoint_of_another_lineage": 1,
    "starts_right_after_a_restore": 60,
    "forged_checkpoint_accepted": 215,
    "double_count_of_a_gpu": 2,
    "replay_without_a_record": 1,
    "incarnation_dropped": 21,
    "late_hello_believed": 511_188,
    "lease_renewed_by_a_dead_session": 2,
    "rank_end_ignored": 27,
    "silent_ranks_unnoticed": 71,
    "ended_part_unnoticed": 71,
    "lost_part_ends_no_other": 9,
    "gang_free_with_its_first_end": 3,
}
"""Where the search begins, to save time; 0 = at the beginning."""
SLOWLY_FOUND = (
    "gang_free_with_its_first_end", "double_count_of_a_gpu", "lease_renewed_by_a_dead_session",
    "lost_part_ends_no_other", "early_loss", "ended_part_unnoticed", "replay_without_a_record",
)  # fmt: skip
"""What does not end is found after ten simulated minutes, two thirds of the time of all mutants: in `make test-all`."""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.endurance] if name in SLOWLY_FOUND else []) for name in MUTANTS]
)
def test_a_product_without_one_of_its_rules_is_found_out(name: str) -> None:
    first = FIRST_SEEDS.get(name, 0)
    with MUTANTS[name]():
        found = next((seed for seed in range(first, first + SEEDS_MAX) if run_seed(seed).violations), None)
    assert found is not None, f"{name} survives {SEEDS_MAX} seeds"
    sys.stdout.write(f"{name}: found by seed {found}\n")
