"""Every policy orders what it ordered before, on workloads that the repository holds.

In every run each policy meets the mixed workload, and every third one of the others too, which take turns from policy
to policy; in `make test-all` each meets all.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from scheduler_service.policy_registry import POLICIES
from tests.goldens.policy_orders import orders_digest
from tests.goldens.write_goldens import GOLDENS
from tests.support.cases import for_each

ORDERS: dict[str, dict[str, Any]] = json.loads((GOLDENS / "policy_orders.json").read_text())
MET_BY_ALL = "mixed_on_8"
OTHERS = sorted(ORDERS.keys() - {MET_BY_ALL})
NAMES = sorted(ORDERS[MET_BY_ALL])
IN_EVERY_RUN = [
    *((MET_BY_ALL, policy) for policy in NAMES),
    *((OTHERS[place % len(OTHERS)], policy) for place, policy in enumerate(NAMES[::3])),
]
LEFT = [(workload, policy) for policy in NAMES for workload in OTHERS if (workload, policy) not in IN_EVERY_RUN]


@pytest.mark.parametrize(("workload", "policy"), IN_EVERY_RUN)
def test_a_policy_orders_what_it_ordered(workload: str, policy: str) -> None:
    assert orders_digest(workload, policy) == ORDERS[workload][policy]


@pytest.mark.endurance
@for_each("workload, policy", LEFT)
def test_a_policy_orders_what_it_ordered_on_the_other_workloads_too(workload: str, policy: str) -> None:
    assert orders_digest(workload, policy) == ORDERS[workload][policy]


def test_no_policy_has_left() -> None:
    assert ORDERS["mixed_on_8"].keys() <= POLICIES.keys()


def test_the_workloads_tell_most_policies_apart() -> None:
    digests = {policy: tuple(ORDERS[name][policy]["digest"] for name in ORDERS) for policy in ORDERS["mixed_on_8"]}
    assert len(set(digests.values())) >= len(digests) - 4, digests
