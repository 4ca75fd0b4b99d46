"""Every policy orders what it ordered before, on workloads that the repository holds."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scheduler_service.policy_registry import POLICIES
from tests.goldens.policy_orders import orders_digest
from tests.goldens.write_goldens import GOLDENS
from tests.support.cases import for_each

ORDERS: dict[str, dict[str, Any]] = json.loads((GOLDENS / "policy_orders.json").read_text())


@for_each("workload", ORDERS)
@pytest.mark.parametrize("policy", ORDERS["mixed_on_8"])
def test_a_policy_orders_what_it_ordered(workload: str, policy: str) -> None:
    assert orders_digest(workload, policy) == ORDERS[workload][policy]


def test_no_policy_has_left() -> None:
    assert ORDERS["mixed_on_8"].keys() <= POLICIES.keys()


def test_the_workloads_tell_most_policies_apart() -> None:
    digests = {policy: tuple(ORDERS[name][policy]["digest"] for name in ORDERS) for policy in ORDERS["mixed_on_8"]}
    assert len(set(digests.values())) >= len(digests) - 4, digests
