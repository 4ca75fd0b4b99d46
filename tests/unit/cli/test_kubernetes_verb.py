"""`cotenant engine kubernetes` against an API server in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from cotenant.v1 import scheduling_pb2
from scheduler_service.grpc_api.snapshots.decide import decide
from tests.support.cli_cluster import CommandLine
from tests.support.fake_kubernetes import FakeKubernetes, node_row, pod_row, served
from tests.support.fake_services import FakeScheduler

WISHES = "memory=6GiB utilization=0.3 slowdown=0.1 max_slowdown=0.5"
GPU = ("--gpu", "n*=NVIDIA A10:24GiB")


@pytest.fixture(autouse=True)
def decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the fake scheduler decide as the real one does."""

    def answer(_fake: object, request: scheduling_pb2.DecideRequest, _context: object) -> scheduling_pb2.DecideResponse:
        return asyncio.run(decide(request, predictor=None, seconds_left=60))

    monkeypatch.setattr(FakeScheduler, "Decide", answer)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKubernetes]:
    """Serve two GPUs, with a kubeconfig in KUBECONFIG."""
    made = FakeKubernetes()
    made.add(node_row("n1"))
    with served(made) as address:
        document = {
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": f"http://{address}"}}],
            "users": [],
        }
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(document))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        yield made


def orders(cluster: FakeKubernetes) -> list[str]:
    return [f"{method} {path.rpartition('/')[2]}" for method, path in cluster.requests if method != "GET"]


def test_advice_is_a_note_and_an_event_and_nothing_else(
    cluster: FakeKubernetes, scheduler: FakeScheduler, cotenant: CommandLine
) -> None:
    cluster.add(pod_row("a", WISHES))
    done = cotenant("engine", "kubernetes", "--once", *GPU)
    assert done.code == 0
    assert done.out.startswith("job team/a: cotenant: would start on n1/g0")
    assert orders(cluster) == ["PATCH status", "POST events"]
    assert cluster.pod("team/a")["metadata"]["annotations"]["cotenant.io/note"].startswith("cotenant: would start")
    assert cluster.events[0]["involvedObject"]["name"] == "a"


def test_pods_that_go_together_are_bound_with_their_gpu_and_its_memory(
    cluster: FakeKubernetes, scheduler: FakeScheduler, cotenant: CommandLine
) -> None:
    for name in "abc":
        cluster.add(pod_row(name, WISHES))
    assert cotenant("engine", "kubernetes", "--place", "--once", *GPU).code == 0
    placed = [cluster.pod(f"team/{name}") for name in "abc"]
    assert [pod["spec"]["nodeName"] for pod in placed] == ["n1"] * 3
    found = [pod["metadata"]["annotations"] for pod in placed]
    assert sorted(one["cotenant.io/gpu"] for one in found) in (["g0", "g0", "g1"], ["g0", "g1", "g1"])
    assert {one["cotenant.io/gpu-memory"] for one in found} == {str(6 * 2**30)}
    assert {one["cotenant.io/mps-memory-limit"] for one in found} == {"0=6144M"}


def test_a_right_that_is_missing_is_told_with_where_the_roles_are(
    cluster: FakeKubernetes, scheduler: FakeScheduler, cotenant: CommandLine
) -> None:
    cluster.add(pod_row("a", WISHES))
    cluster.refused["PATCH .*"] = (403, 'pods "a" is forbidden')
    done = cotenant("engine", "kubernetes", "--place", "--once", *GPU)
    assert done.code == 0
    assert 'pods "a" is forbidden' in done.out
    cluster.refused["GET .*"] = (403, "nodes is forbidden")
    done = cotenant("engine", "kubernetes", "--once", *GPU)
    assert done.code != 0
    assert "deploy/kubernetes" in done.err


def test_an_event_that_is_refused_does_not_keep_a_pod_from_its_gpu(
    cluster: FakeKubernetes, scheduler: FakeScheduler, cotenant: CommandLine
) -> None:
    cluster.add(pod_row("a", WISHES))
    cluster.refused["POST .*/events"] = (403, "events is forbidden")
    assert cotenant("engine", "kubernetes", "--place", "--once", *GPU).code == 0
    assert cluster.pod("team/a")["spec"]["nodeName"] == "n1"


@pytest.mark.parametrize(
    ("order", "owner", "said"),
    [
        ("stop", True, "delete Job/train itself"),
        ("requeue", False, "let a Job make it"),
        ("hold", True, ""),
        ("stop", False, ""),
        ("requeue", True, ""),
    ],
)
def test_one_order_is_given_where_the_engine_can_carry_it_out(
    cluster: FakeKubernetes, cotenant: CommandLine, order: str, owner: bool, said: str
) -> None:
    pod = pod_row("a", WISHES)
    if owner:
        pod["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "train", "controller": True}]
    cluster.add(pod)
    done = cotenant("engine", "kubernetes", "--order", order, "team/a", *GPU)
    assert (done.code == 0) is not bool(said)
    assert said in done.err
    assert (done.out == f"job team/a: {order}: done\n") is not bool(said)


@pytest.mark.parametrize("job", ["a", "team/", "/a", "team/a/status", "team/../a", "Team/a", "team/a?x=1"])
def test_what_is_no_pod_is_never_asked_for(cluster: FakeKubernetes, cotenant: CommandLine, job: str) -> None:
    done = cotenant("engine", "kubernetes", "--order", "stop", job, *GPU)
    assert done.code != 0
    assert "write NAMESPACE/NAME" in done.err
    assert cluster.requests == []


def test_without_a_cluster_it_says_which_ways_there_are(
    cotenant: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    done = cotenant("engine", "kubernetes", "--once", *GPU)
    assert done.code == 2
    assert "--kubeconfig" in done.err
