"""Who asks for decisions on the same cluster again and again: nodes travel once, and what is decided stays the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import grpc
import pytest

from cotenant.client import ChannelOptions, SchedulerClient, open_channel
from cotenant.client_errors import NotFeasibleError
from cotenant.engines.bridge import Bridge
from cotenant.engines.device_rules import DeviceRule
from cotenant.engines.kubernetes.adapter import KubernetesEngine
from cotenant.engines.kubernetes.extender import READING_MS, Extender
from cotenant.engines.slurm.adapter import SlurmEngine
from cotenant.v1 import scheduling_pb2
from scheduler_service.grpc_api.snapshots.decide import decide
from scheduler_service.grpc_api.snapshots.snapshot_bases import BASES_MAX
from tests.support.fake_kubernetes import FakeKubernetes, node_row, pod_row, reached, served
from tests.support.fake_slurm import FakeSlurm
from tests.support.live_scheduler import running_scheduler
from tests.support.random_snapshots import SnapshotMaker
from tests.support.simulated_engine import GIB, SimulatedEngine

WISHES = "memory=20GiB utilization=0.3 slowdown=0.1 max_slowdown=0.5"
DEVICES = [DeviceRule(nodes="*", device="NVIDIA A10", memory_bytes=24 * GIB)]
ROUNDS = 4
Ask = Callable[[scheduling_pb2.DecideRequest], scheduling_pb2.DecideResponse]
Round = Callable[[int], object]


class Sent(grpc.UnaryUnaryClientInterceptor):
    """Notes what travels."""

    def __init__(self) -> None:
        self.snapshots: list[scheduling_pb2.Snapshot] = []

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        self.snapshots.append(request.snapshot)
        return continuation(details, request)


class Caller:
    """A client, what it sent, and what it was asked and answered."""

    def __init__(self, address: str) -> None:
        self.sent = Sent()
        channel = grpc.intercept_channel(open_channel(ChannelOptions(address=address)), self.sent)
        self.client = SchedulerClient(channel, address=address)
        self.answers: list[tuple[scheduling_pb2.DecideRequest, scheduling_pb2.DecideResponse]] = []

    def ask(self, request: scheduling_pb2.DecideRequest) -> scheduling_pb2.DecideResponse:
        before = request.SerializeToString(deterministic=True)
        answer = self.client.decide(request)
        assert request.SerializeToString(deterministic=True) == before
        self.answers.append((request, answer))
        return answer

    def expect_answers_as_to_whole_snapshots(self) -> None:
        assert self.answers
        for request, answer in self.answers:
            expected = asyncio.run(decide(request, predictor=None, seconds_left=60))
            assert list(answer.decisions) == list(expected.decisions)
            assert list(answer.warnings) == list(expected.warnings)
            assert answer.base_token == ""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_scheduler(tmp_path_factory.mktemp("state")) as served_at:
        yield served_at


@pytest.fixture
def caller(address: str) -> Caller:
    return Caller(address)


@contextmanager
def python(ask: Ask) -> Iterator[Round]:
    def run(number: int) -> None:
        snapshot = SnapshotMaker(5).make()
        snapshot.now_ms += number
        ask(scheduling_pb2.DecideRequest(policy="horus", snapshot=snapshot))

    yield run


@contextmanager
def simulated(ask: Ask) -> Iterator[Round]:
    engine = SimulatedEngine(nodes=2)
    for number in range(6):
        engine.submit(str(number), f"cotenant {WISHES}")
    yield lambda number: Bridge(engine, ask, policy="horus", places=True).run_round(now_ms=1_000 + number)


@contextmanager
def slurm(ask: Ask) -> Iterator[Round]:
    commands = FakeSlurm()
    for number in range(6):
        commands.submit(str(number), f"cotenant {WISHES}")
    # As they are once all that the jobs use counts as used, whoever is running by then.
    for node in commands.nodes:
        node |= {"alloc_cpus": 0, "alloc_memory": 0}
    engine = SlurmEngine(commands, DEVICES)
    yield lambda number: Bridge(engine, ask, policy="horus", places=True).run_round(now_ms=1_000 + number)


@contextmanager
def kubernetes(ask: Ask) -> Iterator[Round]:
    cluster = FakeKubernetes()
    for name in ("n1", "n2"):
        cluster.add(node_row(name))
    for number in range(6):
        cluster.add(pod_row(str(number), WISHES))
    with served(cluster) as served_at, closing(reached(served_at)) as api:
        engine = KubernetesEngine(api, DEVICES)
        yield lambda number: Bridge(engine, ask, policy="horus", places=True).run_round(now_ms=1_000 + number)


@contextmanager
def extender(ask: Ask) -> Iterator[Round]:
    cluster = FakeKubernetes()
    for name in ("n1", "n2"):
        cluster.add(node_row(name))
    pods = [cluster.add(pod_row(str(number), WISHES, scheduler="default-scheduler")) for number in range(ROUNDS)]
    with served(cluster) as served_at, closing(reached(served_at)) as api:
        now_ms = 1_000
        engine = KubernetesEngine(api, DEVICES)
        answers = Extender(engine.read, ask, policy="horus", now_ms=lambda: now_ms, tell=pytest.fail)

        def run(number: int) -> None:
            nonlocal now_ms
            now_ms = 1_000 + 2 * READING_MS * number
            answers.filter({"Pod": pods[number], "Nodes": None, "NodeNames": ["n1", "n2"]})

        yield run


@pytest.mark.parametrize("make", [python, simulated, slurm, kubernetes, extender], ids=lambda make: str(make.__name__))
def test_nodes_travel_twice_and_every_answer_is_that_to_the_whole_snapshot(caller: Caller, make: Any) -> None:
    with make(caller.ask) as run_round:
        for number in range(ROUNDS):
            run_round(number)
    with_nodes = [bool(snapshot.nodes) for snapshot in caller.sent.snapshots]
    assert len(with_nodes) >= ROUNDS
    assert with_nodes == [True, True, *[False] * (len(with_nodes) - 2)]
    caller.expect_answers_as_to_whole_snapshots()


def test_a_scheduler_that_has_lost_the_nodes_is_sent_them_again_unseen_by_the_caller(caller: Caller) -> None:
    with python(caller.ask) as run_round:
        for number in range(3):
            run_round(number)
        displace_all(caller.client)
        del caller.sent.snapshots[:]
        run_round(3)
        run_round(4)
    assert [bool(snapshot.nodes) for snapshot in caller.sent.snapshots] == [False, True, False]
    caller.expect_answers_as_to_whole_snapshots()


def test_a_node_that_changed_is_never_decided_on_as_it_was(caller: Caller) -> None:
    for number in range(6):
        snapshot = two_nodes()
        snapshot.nodes[number % 2].schedulable = number < 3
        answer = caller.ask(scheduling_pb2.DecideRequest(policy="fifo", snapshot=snapshot))
        [start] = [one.start for one in answer.decisions if one.HasField("start")]
        expected = "n0.0" if number < 3 else f"n{(number + 1) % 2}.0"
        assert start.assignments[0].gpu_id == expected
    caller.expect_answers_as_to_whole_snapshots()


def test_what_changes_from_call_to_call_is_not_kept_at_all(caller: Caller) -> None:
    first = two_nodes()
    first.nodes[0].cpu_cores = 77
    kept = scheduling_pb2.DecideRequest(policy="fifo", snapshot=first, keep_base=True)
    token = caller.client.decide(kept).base_token
    for number in range(2 * BASES_MAX):
        snapshot = two_nodes()
        snapshot.nodes[0].cpu_cores = number
        caller.ask(scheduling_pb2.DecideRequest(policy="fifo", snapshot=snapshot))
    on_top = scheduling_pb2.Snapshot(base_token=token, pending=first.pending)
    assert caller.client.decide(scheduling_pb2.DecideRequest(policy="fifo", snapshot=on_top)).decisions


def test_a_caller_that_keeps_nodes_itself_is_let_do_so(caller: Caller) -> None:
    request = scheduling_pb2.DecideRequest(policy="fifo", snapshot=two_nodes(), keep_base=True)
    token = caller.client.decide(request).base_token
    assert len(token) == 64
    displace_all(caller.client)
    on_top = scheduling_pb2.Snapshot(base_token=token, pending=request.snapshot.pending)
    with pytest.raises(NotFeasibleError, match="send the snapshot as a whole"):
        caller.client.decide(scheduling_pb2.DecideRequest(policy="fifo", snapshot=on_top))


def two_nodes() -> scheduling_pb2.Snapshot:
    snapshot = scheduling_pb2.Snapshot(now_ms=1_000)
    for number in range(2):
        node = snapshot.nodes.add(node_id=f"n{number}", schedulable=True)
        node.gpus.add(gpu_id=f"n{number}.0", device="A100", memory_bytes=2**34, healthy=True)
    snapshot.pending.add().job.job_id = "j0"
    return snapshot


def displace_all(client: SchedulerClient) -> None:
    """Let other callers keep so many bases that none of before is left."""
    for number in range(BASES_MAX):
        other = scheduling_pb2.Snapshot()
        other.nodes.add(node_id=f"other-{number}")
        client.decide(scheduling_pb2.DecideRequest(policy="fifo", snapshot=other, keep_base=True))
