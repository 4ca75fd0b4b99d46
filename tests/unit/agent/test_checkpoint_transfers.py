"""What an agent does with transfers that break, are refused or never come; the scheduler is the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from cotenant.v1 import node_agent_pb2 as messages
from cotenant_agent.checkpointing import checkpoint_transfers
from cotenant_agent.checkpointing.checkpoint_pieces import NO_ROOM, read_pieces
from cotenant_agent.checkpointing.checkpoint_transfers import CheckpointTransfers
from cotenant_agent.checkpointing.checkpoints import Checkpoint
from cotenant_agent.cluster_membership import ClusterMembership
from cotenant_agent.errors import CommandRefusedError
from cotenant_agent.records import AttemptKey, GangPart, GrantedCheckpoint, LaunchRequest
from tests.unit.agent.test_checkpoints import write_checkpoint

MIB = 1 << 20
KEY = AttemptKey(job_id="job-1", attempt=9, fence=9)


def broken(code: grpc.StatusCode, details: str = "away") -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


class Scheduler:
    """Answers each fetch with the next of its answers: pieces, or an error behind some of them."""

    def __init__(self, *answers: Iterable[messages.CheckpointPiece | Exception]) -> None:
        self.answers = list(answers)
        self.asked: list[messages.FetchCheckpointRequest] = []
        self.sent: list[messages.SendCheckpointPieceRequest] = []
        self.wants = 1_000

    async def FetchCheckpoint(  # noqa: N802
        self, request: messages.FetchCheckpointRequest
    ) -> AsyncIterator[messages.FetchCheckpointResponse]:
        self.asked.append(request)
        for piece in self.answers.pop(0):
            if isinstance(piece, Exception):
                raise piece
            yield messages.FetchCheckpointResponse(piece=piece)

    async def SendCheckpointPiece(  # noqa: N802
        self, request: messages.SendCheckpointPieceRequest, timeout: float
    ) -> messages.SendCheckpointPieceResponse:
        assert timeout > 0
        self.sent.append(request)
        return messages.SendCheckpointPieceResponse(is_over=len(self.sent) >= self.wants)


def transfers_of(root: Path, scheduler: Scheduler, limit_bytes: int = MIB) -> CheckpointTransfers:
    found = CheckpointTransfers(
        node_id="here", root=root / "here", membership=ClusterMembership(), limit_bytes=limit_bytes
    )
    found.begin(scheduler, "secret")  # type: ignore[arg-type]
    return found


def granted(*fences: int, node_id: str = "there") -> LaunchRequest:
    some = tuple(GrantedCheckpoint(incarnation_id="", fence=fence, node_id=node_id) for fence in fences)
    return LaunchRequest(key=KEY, command=("x",), granted=some, steps_done=7)


def pieces_of(root: Path, fence: int) -> list[messages.CheckpointPiece]:
    return list(read_pieces(write_checkpoint(root / "there" / "job-1", fence), MIB))


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_transfers, "_RETRY_PAUSES_S", (0.0, 0.0))
    monkeypatch.setattr(checkpoint_transfers, "_BUSY_PAUSE_S", 0.0)


def found_by(root: Path, scheduler: Scheduler, request: LaunchRequest) -> Checkpoint | None:
    return asyncio.run(transfers_of(root, scheduler).find_resumable(request))[0]


def test_the_owner_reads_what_was_fetched_and_what_was_not(tmp_path: Path) -> None:
    missing = [broken(grpc.StatusCode.FAILED_PRECONDITION, "node there cannot send it")]
    scheduler = Scheduler(missing, pieces_of(tmp_path, 2))
    _, notes = asyncio.run(transfers_of(tmp_path, scheduler).find_resumable(granted(3, 2)))
    assert notes == (
        "no checkpoint was fetched from node there: node there cannot send it",
        "the checkpoint of step 7 was fetched from node there",
    )


def test_the_newest_checkpoint_is_fetched_from_its_node_by_the_secret_of_the_stream(tmp_path: Path) -> None:
    scheduler = Scheduler(pieces_of(tmp_path, 3))
    write_checkpoint(tmp_path / "here" / "job-1", 2)
    found = found_by(tmp_path, scheduler, granted(3, 2))
    assert found is not None
    assert found.directory == tmp_path / "here" / "job-1" / "3"
    [asked] = scheduler.asked
    assert (asked.node_id, asked.session_secret, asked.checkpoint.fence) == ("here", "secret", 3)


def test_what_lies_here_is_not_fetched(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "here" / "job-1", 3)
    scheduler = Scheduler()
    found = found_by(tmp_path, scheduler, granted(3))
    assert found is not None
    assert scheduler.asked == []


def test_a_killed_sender_is_asked_again_from_the_beginning(tmp_path: Path) -> None:
    pieces = pieces_of(tmp_path, 3)
    away = broken(grpc.StatusCode.UNAVAILABLE)
    found = found_by(tmp_path, Scheduler([*pieces[:2], away], [away], pieces), granted(3))
    assert found is not None
    assert not list((tmp_path / "here" / ".incoming" / "of-here").iterdir())


def test_what_an_agent_was_killed_over_is_gone_at_the_next_start_and_nothing_else(tmp_path: Path) -> None:
    """A node may be called `..`."""
    half, kept = (tmp_path / "here" / ".incoming" / name / "file" for name in ("of-..", "of-other"))
    checkpoint = write_checkpoint(tmp_path / "here" / "job-1", 3)
    for path in (half, kept):
        path.mkdir(parents=True)
    CheckpointTransfers(node_id="..", root=tmp_path / "here", membership=ClusterMembership(), limit_bytes=MIB)
    assert (half.exists(), kept.exists(), checkpoint.exists()) == (False, True, True)


def test_a_sender_that_stays_away_costs_the_steps_since_the_checkpoint_before(tmp_path: Path) -> None:
    away = [broken(grpc.StatusCode.UNAVAILABLE)]
    scheduler = Scheduler(away, away, away, pieces_of(tmp_path, 2))
    found = found_by(tmp_path, scheduler, granted(3, 2))
    assert found is not None
    assert (found.directory.name, len(scheduler.asked)) == ("2", 4)


def test_a_node_without_the_checkpoint_is_asked_once_and_an_older_scheduler_too(tmp_path: Path) -> None:
    missing, unknown = ([broken(code)] for code in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNIMPLEMENTED))
    scheduler = Scheduler(missing, unknown)
    assert found_by(tmp_path, scheduler, granted(3, 2)) is None
    assert len(scheduler.asked) == 2


def test_a_busy_scheduler_is_waited_for_longer_than_a_broken_one(tmp_path: Path) -> None:
    busy = [broken(grpc.StatusCode.RESOURCE_EXHAUSTED)]
    scheduler = Scheduler(*[busy] * 20, pieces_of(tmp_path, 3))
    assert found_by(tmp_path, scheduler, granted(3)) is not None


def test_changed_bytes_are_fetched_again_and_then_given_up(tmp_path: Path) -> None:
    changed = [*pieces_of(tmp_path, 3)[:-1], messages.CheckpointPiece(contents=b"Weights")]
    scheduler = Scheduler(changed, changed, changed)
    assert found_by(tmp_path, scheduler, granted(3)) is None
    assert len(scheduler.asked) == 3
    assert not (tmp_path / "here" / "job-1").exists()


def test_a_launch_is_refused_where_this_node_cannot_take_its_checkpoint(tmp_path: Path) -> None:
    """Begun without it the job would lose its steps, and on another node it would not."""
    scheduler = Scheduler(pieces_of(tmp_path, 3))
    with pytest.raises(CommandRefusedError) as refused:
        asyncio.run(transfers_of(tmp_path, scheduler, limit_bytes=3).find_resumable(granted(3)))
    assert refused.value.code == NO_ROOM


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda one: one, True),
        (lambda one: LaunchRequest(key=KEY, command=("x",), granted=one.granted), False),
        (lambda _: granted(3, node_id="here"), False),
        (lambda _: granted(3, node_id=""), False),
        (
            lambda one: LaunchRequest(
                key=KEY, command=("x",), granted=one.granted, steps_done=7,
                gang_part=GangPart(world_size=2, group_rank=0, nodes=2, master_address="a", master_port=1),
            ),
            True,
        ),
    ],
)  # fmt: skip
def test_only_a_checkpoint_that_may_lie_elsewhere_is_worth_asking_for(
    tmp_path: Path, change: Callable[[LaunchRequest], LaunchRequest], expected: bool
) -> None:
    request = change(granted(3))
    assert transfers_of(tmp_path, Scheduler()).may_fetch(request) is expected
    assert not transfers_of(tmp_path, Scheduler(), limit_bytes=0).may_fetch(request)


def part_of(request: LaunchRequest, resumed: GrantedCheckpoint | None) -> LaunchRequest:
    """The same for a later part of a gang, which goes on from what the first one has chosen."""
    part = GangPart(world_size=2, group_rank=1, nodes=2, master_address="a", master_port=1, resumed=resumed)
    return replace(request, gang_part=part)


def test_a_later_part_of_a_gang_takes_what_the_first_has_chosen_from_there_and_no_newer_one(tmp_path: Path) -> None:
    scheduler = Scheduler(pieces_of(tmp_path, 2))
    write_checkpoint(tmp_path / "here" / "job-1", 3)
    chosen = GrantedCheckpoint(incarnation_id="", fence=2, node_id="first")
    request = part_of(granted(3, 2), chosen)
    assert transfers_of(tmp_path, scheduler).may_fetch(request)
    found = found_by(tmp_path, scheduler, request)
    assert found is not None
    assert found.directory.name == "2"
    assert [(one.checkpoint.fence, one.checkpoint.node_id) for one in scheduler.asked] == [(2, "first")]


def test_a_later_part_begins_from_nothing_where_the_first_does(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "here" / "job-1", 3)
    request = part_of(granted(3), None)
    assert transfers_of(tmp_path, Scheduler()).may_fetch(request)
    assert found_by(tmp_path, Scheduler(), request) is None


def test_a_later_part_that_cannot_have_the_checkpoint_of_the_first_is_refused(tmp_path: Path) -> None:
    """Begun from another step its ranks would train something else than the first one's."""
    scheduler = Scheduler(*[[broken(grpc.StatusCode.UNAVAILABLE)]] * 3)
    chosen = GrantedCheckpoint(incarnation_id="", fence=2, node_id="first")
    with pytest.raises(CommandRefusedError, match="from node first: away") as refused:
        found_by(tmp_path, scheduler, part_of(granted(2), chosen))
    assert refused.value.code == NO_ROOM


def sent_by(root: Path, scheduler: Scheduler, **changes: Any) -> list[messages.SendCheckpointPieceRequest]:
    one = messages.GrantedCheckpoint(fence=3)
    order = messages.SendCheckpoint(**{"transfer_id": "t", "job_id": "job-1", "checkpoint": one, **changes})

    async def main() -> None:
        transfers = transfers_of(root, scheduler)
        transfers.send(order)
        await asyncio.gather(*transfers.tasks)

    asyncio.run(main())
    return scheduler.sent


def test_a_checkpoint_is_sent_piece_by_piece_and_then_its_end(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "here" / "job-1", 3)
    sent = sent_by(tmp_path, Scheduler())
    assert [one.piece for one in sent[:-1]] == list(read_pieces(directory, MIB))
    assert (sent[-1].HasField("piece"), sent[-1].error, {one.transfer_id for one in sent}) == (False, "", {"t"})


def test_a_sender_stops_when_nobody_waits_for_more(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "here" / "job-1", 3)
    scheduler = Scheduler()
    scheduler.wants = 1
    assert len(sent_by(tmp_path, scheduler)) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"checkpoint": messages.GrantedCheckpoint(fence=4)},
        {"checkpoint": messages.GrantedCheckpoint(fence=3, incarnation_id="d" * 32)},
        {"job_id": "../job-1"},
        {"job_id": ""},
    ],
)
def test_what_is_not_here_or_of_another_cluster_is_told_and_not_sent(tmp_path: Path, changes: dict[str, Any]) -> None:
    write_checkpoint(tmp_path / "here" / "job-1", 3)
    [told] = sent_by(tmp_path, Scheduler(), **changes)
    assert not told.HasField("piece")
    assert told.error
