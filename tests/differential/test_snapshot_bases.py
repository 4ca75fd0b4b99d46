"""Decisions on a snapshot whose nodes and predictions were kept, against those on the whole snapshot: equal."""

from __future__ import annotations

import asyncio

import pytest

from cotenant.v1 import scheduling_pb2
from scheduler_service.errors import UnknownBaseError
from scheduler_service.grpc_api.snapshots import snapshot_jobs
from scheduler_service.grpc_api.snapshots.decide import decide
from scheduler_service.grpc_api.snapshots.snapshot_bases import BASES_MAX, SnapshotBases
from scheduler_service.policy_registry import POLICIES
from tests.support.cases import for_each
from tests.support.random_snapshots import SnapshotMaker, break_somewhere

BASE_FIELDS = ("nodes", "job_predictions", "pair_predictions")


def ask(
    snapshot: scheduling_pb2.Snapshot, policy: str = "horus", *, bases: SnapshotBases | None = None, keep: bool = False
) -> scheduling_pb2.DecideResponse:
    request = scheduling_pb2.DecideRequest(policy=policy, snapshot=snapshot, keep_base=keep)
    return asyncio.run(decide(request, predictor=None, seconds_left=60, bases=bases))


def on_top_of(token: str, snapshot: scheduling_pb2.Snapshot) -> scheduling_pb2.Snapshot:
    """The jobs of a snapshot alone."""
    rest = scheduling_pb2.Snapshot()
    rest.CopyFrom(snapshot)
    for name in BASE_FIELDS:
        rest.ClearField(name)  # type: ignore[arg-type]
    rest.base_token = token
    return rest


def same(one: scheduling_pb2.DecideResponse, other: scheduling_pb2.DecideResponse) -> bool:
    fields = ("decisions", "warnings")
    return all(list(getattr(one, name)) == list(getattr(other, name)) for name in fields)


@for_each("policy", sorted(POLICIES))
def test_jobs_on_top_of_a_kept_base_are_decided_on_as_in_the_whole_snapshot(policy: str) -> None:
    bases = SnapshotBases()
    for seed in range(8):
        whole = SnapshotMaker(seed).make()
        token = ask(whole, policy, bases=bases, keep=True).base_token
        assert token
        rest = on_top_of(token, whole)
        expected = ask(whole, policy)
        assert same(ask(rest, policy, bases=bases), expected), seed
        assert same(ask(rest, policy, bases=bases), expected), f"{seed}: a call changed what is kept"


def test_bad_rows_on_top_of_a_kept_base_cost_what_they_cost_in_the_whole_snapshot() -> None:
    bases, warned = SnapshotBases(), 0
    for seed in range(40):
        whole = SnapshotMaker(seed).make()
        token = ask(whole, bases=bases, keep=True).base_token
        rest = on_top_of(token, whole)
        break_somewhere(rest, seed)
        rest.base_token = token
        for name in BASE_FIELDS:
            rest.ClearField(name)  # type: ignore[arg-type]
        spoiled = scheduling_pb2.Snapshot()
        spoiled.CopyFrom(rest)
        spoiled.ClearField("base_token")
        for name in BASE_FIELDS:
            getattr(spoiled, name).MergeFrom(getattr(whole, name))
        expected = ask(spoiled)
        warned += bool(expected.warnings)
        assert same(ask(rest, bases=bases), expected), seed
    assert warned > 10


def test_changed_and_removed_nodes_are_stated_alone() -> None:
    bases, whole = SnapshotBases(), scheduling_pb2.Snapshot()
    for number in range(3):
        node = whole.nodes.add(node_id=f"n{number}", schedulable=True)
        node.gpus.add(gpu_id=f"n{number}.0", device="A100", memory_bytes=2**34, healthy=True)
    for number in range(3):
        whole.pending.add(submitted_at_ms=number).job.job_id = f"j{number}"
    token = ask(whole, "fifo", bases=bases, keep=True).base_token
    rest = on_top_of(token, whole)
    rest.removed_node_ids.append("n0")
    closed = rest.nodes.add(node_id="n1", schedulable=False)
    closed.gpus.add(gpu_id="n1.0", device="A100", memory_bytes=2**34, healthy=True)
    answer = ask(rest, "fifo", bases=bases, keep=True)
    started = [one.start.assignments[0].gpu_id for one in answer.decisions if one.HasField("start")]
    assert started == ["n2.0"]
    later = ask(on_top_of(answer.base_token, whole), "fifo", bases=bases)
    assert same(later, answer)


def test_what_is_not_kept_is_refused_with_the_remedy() -> None:
    whole = SnapshotMaker(1).make()
    with pytest.raises(UnknownBaseError, match="send the snapshot as a whole"):
        ask(on_top_of("x" * 10_000, whole), bases=SnapshotBases())


def test_only_the_newest_bases_are_kept_and_equal_ones_once() -> None:
    bases, tokens = SnapshotBases(), []
    for number in range(BASES_MAX + 1):
        whole = scheduling_pb2.Snapshot()
        whole.nodes.add(node_id=f"n{number}")
        tokens += [ask(whole, bases=bases, keep=True).base_token for _ in range(2)]
    assert len(set(tokens)) == BASES_MAX + 1
    assert bases.find(tokens[-1]).nodes.gpus == {}
    assert bases.find(tokens[2])
    with pytest.raises(UnknownBaseError):
        bases.find(tokens[0])


def test_a_base_with_a_bad_row_is_not_kept() -> None:
    whole = SnapshotMaker(3).make()
    whole.nodes.add(node_id="odd", cpu_cores=-1)
    answer = ask(whole, bases=SnapshotBases(), keep=True)
    assert not answer.base_token
    assert answer.warnings


def test_nothing_is_kept_unasked() -> None:
    assert not ask(SnapshotMaker(2).make(), bases=SnapshotBases()).base_token


@for_each("policy", sorted(POLICIES), always=8)
def test_whole_snapshots_one_after_the_other_are_decided_on_as_if_nothing_were_kept(policy: str) -> None:
    bases = SnapshotBases()
    for seed in range(3):
        for changed in (*successors(SnapshotMaker(seed).make(), seed), SnapshotMaker(seed + 1).make()):
            assert same(ask(changed, policy, bases=bases), ask(changed, policy)), seed


def successors(snapshot: scheduling_pb2.Snapshot, seed: int) -> list[scheduling_pb2.Snapshot]:
    """A snapshot, the same again, then with one thing changed after the other, spoiled in between."""
    found = [snapshot, snapshot]
    for change in (go_on, close_a_gpu, predict_otherwise, ask_for_less, lambda one: break_somewhere(one, seed), go_on):
        after = scheduling_pb2.Snapshot()
        after.CopyFrom(snapshot)
        change(after)
        found += [after, snapshot]
    return found


def go_on(snapshot: scheduling_pb2.Snapshot) -> None:
    snapshot.now_ms += 60_000
    for row in snapshot.running:
        row.steps_done += 1


def close_a_gpu(snapshot: scheduling_pb2.Snapshot) -> None:
    for node in snapshot.nodes[:1]:
        for gpu in node.gpus[:1]:
            gpu.healthy = not gpu.healthy


def predict_otherwise(snapshot: scheduling_pb2.Snapshot) -> None:
    for row in snapshot.pair_predictions:
        row.slowdown_ratio = 0.9 - row.slowdown_ratio / 2
    for known in snapshot.job_predictions:
        known.utilization_ratio = 1.0 - known.utilization_ratio / 2


def ask_for_less(snapshot: scheduling_pb2.Snapshot) -> None:
    for job in (*(row.job for row in snapshot.pending), *(row.job for row in snapshot.running)):
        job.max_slowdown_ratio = 0.01


def test_what_is_changed_in_a_next_snapshot_changes_its_answer() -> None:
    bases, before = SnapshotBases(), scheduling_pb2.Snapshot()
    for number in range(2):
        before.nodes.add(node_id=f"n{number}", schedulable=True).gpus.add(
            gpu_id=f"n{number}.0", device="A100", memory_bytes=2**34, healthy=True
        )
    before.pending.add().job.job_id = "j"
    without_node, wider = scheduling_pb2.Snapshot(), scheduling_pb2.Snapshot()
    without_node.CopyFrom(before)
    without_node.nodes[0].schedulable = False
    wider.CopyFrom(before)
    wider.pending[0].job.gpus = 3
    answers = [ask(one, "fifo", bases=bases).decisions[0] for one in (before, without_node, wider)]
    assert [[part.gpu_id for part in one.start.assignments] for one in answers] == [["n0.0"], ["n1.0"], []]


def test_known_jobs_are_bounded_and_a_forgotten_one_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_jobs, "JOBS_MAX", 3)
    known = snapshot_jobs.KnownJobs()
    rows = [scheduling_pb2.SnapshotJob(job_id=f"j{number}", gpus=1 + number) for number in range(10)]
    long = scheduling_pb2.SnapshotJob(job_id="x" * snapshot_jobs.ROW_BYTES_MAX)
    for _ in range(3):
        read = known.read([*rows, long])
        assert read is not None
        assert [job.request.gpus for job in read] == [*range(1, 11), 1]
        assert known.count <= 2 * 3
    first, second = known.read(rows[-1:]) or [], known.read(rows[-1:]) or []
    assert first[0] is second[0]
    assert known.read([scheduling_pb2.SnapshotJob(job_id="j", gpus=-1), rows[-1]]) is None
