"""Two controllers of one cluster: one gives orders, the other waits, and takes over when the first is gone."""

from __future__ import annotations

import pytest

from cotenant.engines.errors import EngineDeniedError, EngineUnreachableError
from cotenant.engines.kubernetes.adapter import KubernetesEngine
from cotenant.engines.kubernetes.api import ServedApi
from cotenant.engines.kubernetes.lease import DURATION_MS, RENEWED_MS, ControllerLease
from cotenant.engines.placement_notes import placed_note
from cotenant.engines.records import Placement
from tests.support.fake_kubernetes import FakeKubernetes, pod_row

LEASES = "/apis/coordination.k8s.io/v1/namespaces/cotenant/leases"


class Clock:
    """Milliseconds that a test moves on."""

    def __init__(self) -> None:
        self.at_ms = 1_000_000

    def __call__(self) -> int:
        return self.at_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def first(api: ServedApi, clock: Clock) -> ControllerLease:
    return ControllerLease(api, "first", now_ms=clock, steady_ms=clock)


@pytest.fixture
def second(api: ServedApi, clock: Clock) -> ControllerLease:
    return ControllerLease(api, "second", now_ms=clock, steady_ms=clock)


def holder(cluster: FakeKubernetes) -> str:
    return str(cluster.objects[f"{LEASES}/cotenant-engine"]["spec"]["holderIdentity"])


def test_a_second_controller_gives_no_order_while_the_first_renews_its_lease(
    cluster: FakeKubernetes, api: ServedApi, first: ControllerLease, second: ControllerLease, clock: Clock
) -> None:
    cluster.add(pod_row("a", ""))
    placement = Placement(job_id="team/a", node_id="n1", gpu_id="n1/g0", slots=1, note=placed_note("n1/g0", 1))
    waiting = KubernetesEngine(api, [], keep_lease=second.keep)
    for _ in range(5):
        first.keep()
        with pytest.raises(EngineUnreachableError, match="the controller first places pods"):
            waiting.place(placement)
        clock.at_ms += RENEWED_MS
    assert "cotenant.io/note" not in cluster.pod("team/a")["metadata"]["annotations"]
    assert holder(cluster) == "first"


def test_it_takes_over_when_the_first_was_killed_and_that_one_then_waits(
    cluster: FakeKubernetes, first: ControllerLease, second: ControllerLease, clock: Clock
) -> None:
    first.keep()
    with pytest.raises(EngineUnreachableError):
        second.keep()
    clock.at_ms += DURATION_MS
    second.keep()
    assert holder(cluster) == "second"
    # It was only stopped for a while.
    with pytest.raises(EngineUnreachableError, match="the controller second"):
        first.keep()


def test_it_takes_over_at_once_when_the_first_has_ended(
    cluster: FakeKubernetes, first: ControllerLease, second: ControllerLease
) -> None:
    first.keep()
    first.give_up()
    second.keep()
    # Of a lease that was lost nothing is given up.
    first.give_up()
    assert holder(cluster) == "second"


def test_a_lease_is_renewed_seldom(cluster: FakeKubernetes, first: ControllerLease, clock: Clock) -> None:
    for _ in range(10):
        first.keep()
        clock.at_ms += 1_000
    assert [method for method, _ in cluster.requests] == ["GET", "POST", "GET", "PUT"]


@pytest.mark.parametrize("status", [403, 404])
def test_without_the_right_or_the_namespace_it_says_what_to_apply(
    cluster: FakeKubernetes, first: ControllerLease, status: int
) -> None:
    cluster.refused[f".* {LEASES}.*"] = (status, "no")
    with pytest.raises(EngineUnreachableError) as caught:
        first.keep()
    assert "rbac.yaml" in caught.value.remedy
    assert isinstance(caught.value, EngineDeniedError) is (status == 403)
    first.give_up()
