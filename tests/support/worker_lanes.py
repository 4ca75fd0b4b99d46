"""Which worker of pytest-xdist runs which file: some workers take files that wait first, the others those that compute.

Tests that start programs wait most of their time. Left to the end, as xdist's own order leaves files of few tests, they
run with the cores idle; begun all at once, they starve each other. So every second worker takes them first, the long
ones before the others, and the rest of the workers compute meanwhile; who has no file of its own kind takes the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pytest
from xdist.remote import Producer
from xdist.scheduler.loadfile import LoadFileScheduling
from xdist.workermanage import WorkerController

WAITING: Final = ("tests/end_to_end/", "tests/unit/agent/")
"""Folders of tests that start programs; those of the first take longer, so that those of the second fill the end."""
LONG_FIRST: Final = (
    "tests/end_to_end/test_demo.py",
    "tests/end_to_end/test_command_line.py",
    "tests/end_to_end/test_pairs_are_learned_live.py",
    "tests/end_to_end/test_killed_programs.py",
    "tests/end_to_end/test_collected_profiles.py",
    "tests/end_to_end/test_examples_train.py",
    "tests/end_to_end/test_gangs_without_shared_storage.py",
    "tests/end_to_end/test_capture.py",
    "tests/end_to_end/test_ojpap_live.py",
    "tests/end_to_end/test_tls_mismatch.py",
    "tests/end_to_end/test_agent_pauses_jobs.py",
    "tests/end_to_end/test_policies_live.py",
    "tests/end_to_end/test_pause_live.py",
    "tests/end_to_end/test_retraining_service.py",
    "tests/end_to_end/test_drained_nodes.py",
    "tests/unit/agent/test_namespaces.py",
    "tests/end_to_end/test_pair_table_survives_kills.py",
    "tests/simulation/swarm/test_swarm.py",
    "tests/goldens/test_policy_orders.py",
    "tests/unit/profiler/test_zoo.py",
    "tests/contracts/test_every_policy.py",
    "tests/unit/table_methods/test_solo_method.py",
    "tests/unit/retraining/test_learning_from_tables.py",
    "tests/simulation/test_random_faults.py",
    "tests/differential/test_sharing_queue.py",
    "tests/unit/fitting/test_one_fit.py",
    "tests/unit/fitting/test_familiar_networks.py",
    "tests/test_repository_rules.py",
    "tests/simulation/test_many_jobs.py",
)
"""A file that takes long is begun early, or it ends alone."""

THOROUGH: Final = frozenset({"endurance", "strangers", "gpu", "compose", "slurm", "kubernetes", "ray"})
"""Marks of tests that `make test` leaves out."""


class LaneScheduling(LoadFileScheduling):
    """Hands out whole files; what is done is forgotten, so that thousands of tests cost no time to look through."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        self._places: dict[str, int] = {}

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        """Forgets a test, and its file with the last one."""
        test = self.registered_collections[node][item_index]
        files = self.assigned_work[node]
        unit = files[self._split_scope(test)]
        del unit[test]
        if not unit:
            del files[self._split_scope(test)]
        self._reschedule(node)

    def _pending_of(self, workload: dict[str, dict[str, bool]]) -> int:
        return sum(map(len, workload.values()))

    def _assign_work_unit(self, node: WorkerController) -> None:
        if not self._places:
            self._places = {test: place for place, test in enumerate(self.collection or ())}
        file = next_file(list(self.workqueue), takes_waiting_first=int(node.gateway.id.removeprefix("gw")) % 2 == 0)
        unit = self.assigned_work[node][file] = self.workqueue.pop(file)
        node.send_runtest_some([self._places[test] for test in unit])


def refuse_alone(items: Iterable[pytest.Item]) -> None:
    """Refuses a test that needs the machine to itself and is part of `make test`, which runs others meanwhile.

    Raises:
        pytest.UsageError: Names the test and the remedy.
    """
    for item in items:
        names = {mark.name for mark in item.iter_markers()}
        if "alone" in names and not names & THOROUGH:
            remedy = f"let it wait for facts, or mark it also as one of {', '.join(sorted(THOROUGH))}"
            raise pytest.UsageError(
                f"{item.nodeid} is marked alone, and `make test` would run others meanwhile: {remedy}"
            )


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
