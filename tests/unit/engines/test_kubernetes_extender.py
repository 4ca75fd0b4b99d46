"""The extender: which nodes kube-scheduler is told to leave out and to prefer, and that nothing hangs on it."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from cotenant.engines.errors import EngineUnreachableError
from cotenant.engines.kubernetes.adapter import KubernetesEngine
from cotenant.engines.kubernetes.extender import ASSUMED_MS, READING_MS, Extender
from cotenant.engines.kubernetes.extender_server import BODY_BYTES_MAX, ExtenderServer
from cotenant.engines.records import EngineState
from cotenant.errors import InputError, ProgramError
from cotenant.v1 import scheduling_pb2
from scheduler_service.grpc_api.snapshots.decide import decide
from tests.support.fake_kubernetes import FakeKubernetes, node_row, pod_row, reached, served

LIGHT = "memory=6GiB utilization=0.3 slowdown=0.1 max_slowdown=0.5"
HEAVY = "memory=6GiB utilization=0.9 slowdown=0.9 max_slowdown=0.1"
GPU_LABELS = {
    "nvidia.com/gpu.count": "1",
    "nvidia.com/gpu.replicas": "4",
    "nvidia.com/gpu.product": "NVIDIA-A10-SHARED",
    "nvidia.com/gpu.memory": str(24 * 1024),
}


class Cluster:
    """Two nodes with one time-sliced GPU each, and an extender that reads them over HTTP."""

    def __init__(self, stored: FakeKubernetes, engine: KubernetesEngine) -> None:
        self.stored = stored
        self.at_ms = 1_000
        self.is_away = False
        self.told: list[str] = []
        self._engine = engine
        self.extender = Extender(
            self.read, self.decide, policy="horus", now_ms=lambda: self.at_ms, tell=self.told.append
        )

    def read(self) -> EngineState:
        if self.is_away:
            raise EngineUnreachableError("the API server is away")
        return self._engine.read()

    def decide(self, request: scheduling_pb2.DecideRequest) -> scheduling_pb2.DecideResponse:
        return asyncio.run(decide(request, predictor=None, seconds_left=60))

    def submit(self, name: str, wishes: str | None) -> dict[str, Any]:
        return self.stored.add(pod_row(name, wishes, scheduler="default-scheduler", gpus=1))

    def bind(self, name: str, node: str) -> None:
        body = {"metadata": {}, "target": {"name": node}}
        self.stored.answer("POST", f"/api/v1/namespaces/team/pods/{name}/binding", body)

    def ask(self, pod: dict[str, Any], *names: str) -> tuple[list[str], dict[str, str], dict[str, int]]:
        arguments = {"Pod": pod, "Nodes": None, "NodeNames": [*names] or ["n1", "n2"]}
        found, scores = self.extender.filter(arguments), self.extender.prioritize(arguments)
        return found["NodeNames"], found["FailedNodes"], {row["Host"]: row["Score"] for row in scores}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    stored = FakeKubernetes()
    for name in ("n1", "n2"):
        row = node_row(name, uuids="")
        row["metadata"]["labels"] = dict(GPU_LABELS)
        row["status"]["allocatable"] = {**row["status"]["allocatable"], "nvidia.com/gpu": "4"}
        stored.add(row)
    with served(stored) as address, closing(reached(address)) as api:
        yield Cluster(stored, KubernetesEngine(api, []))


def test_a_node_where_the_jobs_do_not_go_together_is_left_out_and_said_why(cluster: Cluster) -> None:
    cluster.submit("a", HEAVY)
    cluster.bind("a", "n1")
    kept, failed, scores = cluster.ask(cluster.submit("b", HEAVY))
    assert kept == ["n2"]
    assert failed["n1"].startswith("cotenant: ")
    assert scores["n2"] == 10


def test_a_node_where_they_go_together_stays_and_another_one_scores_best(cluster: Cluster) -> None:
    cluster.submit("a", LIGHT)
    cluster.bind("a", "n1")
    kept, failed, scores = cluster.ask(cluster.submit("b", LIGHT))
    assert (kept, failed) == (["n1", "n2"], {})
    assert sorted(scores.values()) == [5, 10]


def test_pods_asked_about_before_one_is_bound_are_not_sent_to_the_same_gpu(cluster: Cluster) -> None:
    """kube-scheduler binds in the background while it asks about the next pod."""
    first, second, third = (cluster.submit(name, HEAVY) for name in ("a", "b", "c"))
    best = cluster.ask(first)[2]
    assert sorted(best.values()) == [5, 10]
    taken = max(best, key=lambda name: best[name])
    assert cluster.ask(second)[0] == [name for name in ("n1", "n2") if name != taken]
    assert cluster.ask(third)[0] == []
    # Nobody bound them: after a while they are taken for what they are, waiting.
    cluster.at_ms += ASSUMED_MS + 1
    assert len(cluster.ask(third)[0]) == 2


def test_a_pod_that_was_bound_elsewhere_counts_where_it_is(cluster: Cluster) -> None:
    first, second = cluster.submit("a", HEAVY), cluster.submit("b", HEAVY)
    scores = cluster.ask(first)[2]
    other = min(scores, key=lambda name: scores[name])
    cluster.bind("a", other)
    cluster.at_ms += READING_MS
    assert cluster.ask(second)[0] == [name for name in ("n1", "n2") if name != other]


def test_pods_that_are_asked_about_at_once_cost_one_reading(cluster: Cluster) -> None:
    pods = [cluster.submit(f"p{number}", LIGHT) for number in range(4)]
    for pod in pods:
        cluster.ask(pod)
    assert cluster.stored.requests.count(("GET", "/api/v1/pods")) == 1
    # One that came later is not in it.
    assert cluster.ask(cluster.submit("late", HEAVY))[0] == []
    assert cluster.stored.requests.count(("GET", "/api/v1/pods")) == 2


def test_a_pod_with_several_gpus_is_taken_to_hold_all_of_them(cluster: Cluster) -> None:
    row = node_row("wide", uuids="")
    row["metadata"]["labels"] = {**GPU_LABELS, "nvidia.com/gpu.count": "3", "nvidia.com/gpu.replicas": "1"}
    row["status"]["allocatable"] = {**row["status"]["allocatable"], "nvidia.com/gpu": "3"}
    cluster.stored.add(row)
    first, second = (cluster.stored.add(pod_row(n, HEAVY, scheduler="default-scheduler", gpus=2)) for n in "ab")
    assert cluster.ask(first, "wide")[2] == {"wide": 10}
    assert cluster.ask(second, "wide")[0] == []


def test_a_node_about_which_nothing_could_be_decided_stays(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def decide_nothing(_request: scheduling_pb2.DecideRequest) -> scheduling_pb2.DecideResponse:
        return scheduling_pb2.DecideResponse()

    monkeypatch.setattr(cluster.extender, "_decide", decide_nothing)
    assert cluster.ask(cluster.submit("a", HEAVY)) == (["n1", "n2"], {}, {"n1": 0, "n2": 0})


def test_pods_that_did_not_opt_in_and_nodes_without_gpus_pass(cluster: Cluster) -> None:
    assert cluster.ask(cluster.submit("a", None)) == (["n1", "n2"], {}, {"n1": 0, "n2": 0})
    assert cluster.ask(cluster.submit("b", LIGHT), "n1", "cpu-only")[0] == ["n1", "cpu-only"]


def test_an_engine_or_scheduler_that_is_away_leaves_every_node(cluster: Cluster) -> None:
    cluster.is_away = True
    assert cluster.ask(cluster.submit("a", HEAVY)) == (["n1", "n2"], {}, {"n1": 0, "n2": 0})
    assert cluster.told == ["warning: the API server is away; pod team/a is placed as without cotenant"]


def test_whole_node_objects_are_answered_with_those_that_are_kept(cluster: Cluster) -> None:
    cluster.submit("a", HEAVY)
    cluster.bind("a", "n1")
    nodes = [row for row in cluster.stored.objects.values() if row["kind"] == "Node"]
    found = cluster.extender.filter({"pod": cluster.submit("b", HEAVY), "nodes": {"items": nodes}})
    assert [row["metadata"]["name"] for row in found["Nodes"]["items"]] == ["n2"]


@pytest.mark.parametrize("odd", [{}, {"Pod": 3}, {"Pod": {"metadata": {"annotations": {"cotenant.io/job": 5}}}}])
def test_odd_arguments_are_answered_with_all_their_nodes(cluster: Cluster, odd: dict[str, Any]) -> None:
    assert cluster.extender.filter({**odd, "NodeNames": ["n1", 7, None]})["NodeNames"] == ["n1"]
    assert cluster.extender.prioritize(odd) == []


@pytest.fixture
def server(cluster: Cluster) -> Iterator[ExtenderServer]:
    made = ExtenderServer("127.0.0.1:0", cluster.extender)
    yield made
    made.stop()


def post(server: ExtenderServer, path: str, body: bytes, **headers: str) -> tuple[int, Any]:
    with closing(http.client.HTTPConnection(server.address, timeout=90)) as connection:
        connection.request("POST", path, body=body, headers=headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())


def test_it_is_asked_over_http(server: ExtenderServer, cluster: Cluster) -> None:
    arguments = json.dumps({"Pod": cluster.submit("a", LIGHT), "NodeNames": ["n1", "n2"]}).encode()
    status, found = post(server, "/filter", arguments)
    assert (status, found["NodeNames"]) == (200, ["n1", "n2"])
    status, scores = post(server, "/prioritize", arguments)
    assert (status, sorted(row["Score"] for row in scores)) == (200, [5, 10])


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/filter", b"", 400),
        ("/filter", b"[]", 400),
        ("/filter", b"[" * 100_000, 400),
        ("/prioritize", b"\xff", 400),
        ("/else", b"{}", 404),
    ],
)
def test_what_is_no_question_gets_an_answer_and_no_crash(
    server: ExtenderServer, path: str, body: bytes, status: int
) -> None:
    assert post(server, path, body)[0] == status


def test_a_body_without_end_is_not_read(server: ExtenderServer) -> None:
    with closing(http.client.HTTPConnection(server.address, timeout=90)) as connection:
        connection.putrequest("POST", "/filter")
        connection.putheader("Content-Length", str(BODY_BYTES_MAX + 1))
        connection.endheaders()
        assert connection.getresponse().status == 413


def test_it_listens_to_this_machine_only_unless_told_otherwise(server: ExtenderServer, cluster: Cluster) -> None:
    with pytest.raises(InputError, match="plain HTTP"):
        ExtenderServer("0.0.0.0:0", cluster.extender)
    with pytest.raises(ProgramError, match="another program"):
        ExtenderServer(server.address, cluster.extender)


def test_a_caller_that_no_longer_waits_is_no_news(
    server: ExtenderServer, cluster: Cluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    has_hung_up, has_answered = threading.Event(), threading.Event()

    def answer_late(_arguments: object) -> list[str]:
        has_hung_up.wait(90)
        return ["x" * 2**22]

    monkeypatch.setattr(cluster.extender, "prioritize", answer_late)
    end = server._server.shutdown_request

    def end_and_tell(request: Any) -> None:
        end(request)
        has_answered.set()

    monkeypatch.setattr(server._server, "shutdown_request", end_and_tell)
    with closing(http.client.HTTPConnection(server.address, timeout=90)) as connection:
        connection.request("POST", "/prioritize", body=b"{}")
    has_hung_up.set()
    assert has_answered.wait(90)
    assert capfd.readouterr().err == ""
