"""Orders about pods that somebody else changes in the same instant."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from cotenant.engines.errors import EngineRefusedError
from cotenant.engines.kubernetes.adapter import KubernetesEngine
from cotenant.engines.placement_notes import placed_note
from cotenant.engines.records import Placement
from tests.support.fake_kubernetes import Document, FakeKubernetes, node_row, pod_row, reached, served

POD = "/api/v1/namespaces/team/pods/a"
PLACEMENT = Placement(job_id="team/a", node_id="n1", gpu_id="n1/g1", slots=25, note=placed_note("n1/g1", 25))


class Contested(FakeKubernetes):
    """Lets somebody else act right after the pod was looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.others: Callable[[], object] = lambda: None

    def answer(self, method: str, target: str, body: Document) -> tuple[int, Document]:
        found = super().answer(method, target, body)
        if (method, target) == ("GET", POD):
            found = (found[0], {**found[1], "metadata": dict(found[1]["metadata"])})
            self.others()
        return found

    def annotate(self, **notes: str) -> None:
        """Write annotations as somebody else."""
        named = {f"cotenant.io/{name}": value for name, value in notes.items()}
        super().answer("PATCH", f"{POD}/status", {"metadata": {"annotations": named}})


@pytest.fixture
def cluster() -> Contested:
    made = Contested()
    made.add(node_row("n1"))
    made.add(pod_row("a", ""))
    return made


@pytest.fixture
def engine(cluster: Contested) -> Iterator[KubernetesEngine]:
    with served(cluster) as address, closing(reached(address)) as api:
        yield KubernetesEngine(api, [])


@pytest.mark.parametrize("order", [lambda engine: engine.place(PLACEMENT), lambda engine: engine.hold("team/a")])
def test_a_pod_that_was_changed_since_it_was_looked_at_is_left_as_it_is(
    cluster: Contested, engine: KubernetesEngine, order: Callable[[KubernetesEngine], None]
) -> None:
    cluster.others = lambda: cluster.annotate(note="cotenant placed n2/g0 1: by another")
    with pytest.raises(EngineRefusedError, match="has been modified"):
        order(engine)
    assert cluster.pod("team/a")["metadata"]["annotations"]["cotenant.io/note"].startswith("cotenant placed n2/g0")


def test_a_pod_is_bound_with_the_gpu_of_that_node_whoever_notes_another_one_meanwhile(
    cluster: Contested, engine: KubernetesEngine
) -> None:
    engine.place(PLACEMENT)
    cluster.others = lambda: cluster.annotate(note="cotenant placed n2/g0 1: by another", gpu="g0")
    engine.release("team/a")
    pod = cluster.pod("team/a")
    assert pod["spec"]["nodeName"] == "n1"
    assert pod["metadata"]["annotations"]["cotenant.io/gpu"] == "g1"
    assert pod["metadata"]["annotations"]["cotenant.io/note"].startswith("cotenant placed n1/g1")


def test_a_pod_of_the_same_name_that_came_meanwhile_is_not_ended(cluster: Contested, engine: KubernetesEngine) -> None:
    cluster.others = lambda: cluster.add(pod_row("a", ""))
    with pytest.raises(EngineRefusedError):
        engine.stop("team/a", grace_s=1)
    assert POD in cluster.objects


def test_the_grace_is_bounded(cluster: Contested, engine: KubernetesEngine) -> None:
    sent: list[Document] = []
    before = cluster.answer

    def listen(method: str, target: str, body: Document) -> tuple[int, Document]:
        sent.append(body)
        return before(method, target, body)

    cluster.answer = listen  # type: ignore[method-assign]
    for grace_s in (-5, 10**9):
        engine.stop("team/a", grace_s=grace_s)
        cluster.add(pod_row("a", ""))
    assert [body["gracePeriodSeconds"] for body in sent if body] == [1, 86_400]
