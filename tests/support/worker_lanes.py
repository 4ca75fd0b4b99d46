"""Which worker runs which file: some workers take files that wait first, the others those that compute.

Tests that start programs wait most of their time. Left to the end they run with the cores idle; begun all at once, they
starve each other. So every second worker takes them first, the long ones before the others, and the rest of the workers
compute meanwhile; who has no file of its own kind takes the other.
"""

from __future__ import annotations

from typing import Final

WAITING: Final = ("tests/end_to_end/", "tests/unit/agent/")
"""Folders of tests that start programs; those of the first take longer, so that those of the second fill the end."""
LONG_FIRST: Final = (
    "tests/end_to_end/test_command_line.py",
    "tests/end_to_end/test_pairs_are_learned_live.py",
    "tests/end_to_end/test_opportunistic_memory_live.py",
    "tests/end_to_end/test_killed_programs.py",
    "tests/end_to_end/test_collected_profiles.py",
    "tests/end_to_end/test_demo.py",
    "tests/end_to_end/test_examples_train.py",
    "tests/end_to_end/test_gangs_without_shared_storage.py",
    "tests/end_to_end/test_capture.py",
    "tests/end_to_end/test_ojpap_live.py",
    "tests/end_to_end/test_tls_mismatch.py",
    "tests/end_to_end/test_agent_pauses_jobs.py",
    "tests/end_to_end/test_policies_live.py",
    "tests/end_to_end/test_pause_live.py",
    "tests/end_to_end/test_retraining_service.py",
    "tests/end_to_end/test_parameter_servers.py",
    "tests/end_to_end/test_prepared_moves.py",
    "tests/end_to_end/test_drained_nodes.py",
    "tests/end_to_end/test_pair_table_survives_kills.py",
    "tests/simulation/swarm/test_swarm.py",
    "tests/goldens/test_policy_orders.py",
    "tests/unit/profiler/test_zoo.py",
    "tests/contracts/test_every_policy.py",
    "tests/unit/learning/test_solo_method.py",
    "tests/simulation/swarm/test_mutants.py",
    "tests/unit/retraining/test_learning_from_tables.py",
    "tests/simulation/test_random_faults.py",
    "tests/differential/test_sharing_queue.py",
    "tests/unit/fitting/test_one_fit.py",
    "tests/unit/fitting/test_familiar_networks.py",
    "tests/test_repository_rules.py",
    "tests/simulation/test_many_jobs.py",
)
"""A file that takes long is begun early, or it ends alone."""


def next_file(files: list[str], *, takes_waiting_first: bool) -> str:
    """Returns which of the files that are left a worker takes.

    Args:
        files: At least one, in the order in which they would be begun.
        takes_waiting_first: Whether the worker is one of those that do.
    """
    own = [file for file in files if file.startswith(WAITING) == takes_waiting_first] or files
    return next((file for file in LONG_FIRST if file in own), min(own, key=_folder_place))


def _folder_place(file: str) -> int:
    return next((place for place, folder in enumerate(WAITING) if file.startswith(folder)), len(WAITING))
