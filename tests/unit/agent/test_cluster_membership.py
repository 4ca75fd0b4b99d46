"""Which scheduler a node obeys, and whose checkpoint its jobs go on from."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cotenant.v1 import node_agent_pb2 as messages
from cotenant.v1 import scheduling_pb2
from cotenant_agent import cluster_membership
from cotenant_agent.attempts.attempt import Attempt
from cotenant_agent.attempts.refused_launches import RefusedLaunches
from cotenant_agent.checkpointing.checkpoints import newest_resumable
from cotenant_agent.cluster_membership import ClusterMembership
from cotenant_agent.conversation import Conversation
from cotenant_agent.devices.measurement_windows import MeasurementWindowRecorder
from cotenant_agent.errors import ClusterRefusedError, OperatorError
from cotenant_agent.metrics import AgentMetrics
from cotenant_agent.protocol import position_to_message
from cotenant_agent.records import AttemptKey, GrantedCheckpoint, LogPosition
from cotenant_agent.storage.state_directory import LOCK_NAME, AttemptDirectory, checkpoint_directory

OWN, CHILD, STRANGER = (letter * 32 for letter in "abc")
SEEN = LogPosition(incarnation_id=OWN, generation=3, start_id="three", sequence=70, seal=b"sealed")


def joined(path: Path, position: LogPosition = SEEN) -> ClusterMembership:
    membership = ClusterMembership(path / "cluster.json")
    membership.join(position, (), is_free=False)
    return membership


def test_what_was_seen_survives_the_agent(tmp_path: Path) -> None:
    first = joined(tmp_path)
    again = ClusterMembership(tmp_path / "cluster.json")
    assert (again.seen, again.installation_id) == (SEEN, first.installation_id)


def test_a_folder_keeps_its_own_id_from_the_first_start_on(tmp_path: Path) -> None:
    ids = {ClusterMembership(tmp_path / "cluster.json").installation_id for _ in range(3)}
    assert len(ids) == 1


def held(folder: Path) -> Path:
    """A state directory that an agent has held once."""
    folder.mkdir()
    (folder / LOCK_NAME).touch()
    return folder


def test_a_copied_folder_gets_an_id_of_its_own_and_the_first_one_keeps_its_own(tmp_path: Path) -> None:
    """A copy that cannot be told from its original would be believed about what the original runs."""
    first = joined(held(tmp_path / "first"))
    shutil.copytree(tmp_path / "first", tmp_path / "copy")
    copy = ClusterMembership(tmp_path / "copy" / "cluster.json")
    assert copy.installation_id != first.installation_id
    assert copy.seen == SEEN
    assert ClusterMembership(tmp_path / "copy" / "cluster.json").installation_id == copy.installation_id
    assert ClusterMembership(tmp_path / "first" / "cluster.json").installation_id == first.installation_id


def test_a_folder_that_an_older_agent_left_keeps_its_id(tmp_path: Path) -> None:
    first = joined(held(tmp_path / "first"))
    path = tmp_path / "first" / "cluster.json"
    record = json.loads(path.read_text())
    del record["folder"]
    path.write_text(json.dumps(record))
    assert ClusterMembership(path).installation_id == first.installation_id
    assert json.loads(path.read_text())["folder"]


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        ({"generation": 2, "start_id": "two", "sequence": 900}, "start 2"),
        ({"start_id": "fork"}, "another copy"),
        ({"sequence": 69}, "69 events"),
        ({"generation": 4, "start_id": "four", "sequence": 69}, "69 events"),
    ],
)
def test_a_scheduler_that_is_behind_what_was_seen_is_not_obeyed(
    tmp_path: Path, change: dict[str, Any], finding: str
) -> None:
    joined(tmp_path)
    again = ClusterMembership(tmp_path / "cluster.json")
    with pytest.raises(ClusterRefusedError, match=finding):
        again.join(replace(SEEN, **change), (), is_free=True)
    assert again.seen == SEEN


def test_a_later_start_is_followed_and_stored_at_once(tmp_path: Path) -> None:
    later = replace(SEEN, generation=4, start_id="four", sequence=70)
    joined(tmp_path).join(later, (), is_free=False)
    assert ClusterMembership(tmp_path / "cluster.json").seen == later


def test_another_cluster_is_refused_with_the_remedy(tmp_path: Path) -> None:
    membership = joined(tmp_path)
    with pytest.raises(ClusterRefusedError, match="leave-cluster"):
        membership.join(LogPosition(incarnation_id=STRANGER), (), is_free=False)
    with pytest.raises(ClusterRefusedError, match="older version"):
        membership.join(None, (), is_free=True)
    assert membership.seen == SEEN


def test_a_node_with_nothing_to_lose_changes_and_still_knows_where_it_was(tmp_path: Path) -> None:
    membership = joined(tmp_path)
    stranger = LogPosition(incarnation_id=STRANGER, generation=1, start_id="one")
    membership.join(stranger, (), is_free=True)
    again = ClusterMembership(tmp_path / "cluster.json")
    assert (again.seen, again.lineage) == (stranger, (STRANGER,))
    with pytest.raises(ClusterRefusedError, match="start 2"):
        again.join(replace(SEEN, generation=2), (), is_free=True)
    again.join(SEEN, (), is_free=True)


def test_a_restored_cluster_is_followed_with_the_attempts_of_its_parent(tmp_path: Path) -> None:
    membership = joined(tmp_path)
    membership.join(LogPosition(incarnation_id=CHILD, generation=1, start_id="x"), (OWN,), is_free=False)
    again = ClusterMembership(tmp_path / "cluster.json")
    attempts = [AttemptKey(job_id="job-1", attempt=1, fence=1, incarnation_id=one) for one in (CHILD, OWN, STRANGER)]
    assert [again.holds(one) for one in attempts] == [True, True, False]


def test_after_leaving_any_scheduler_may_be_joined_and_hears_nothing_of_the_former_attempts(tmp_path: Path) -> None:
    membership = joined(tmp_path)
    membership.leave()
    membership.join(LogPosition(incarnation_id=STRANGER, generation=1), (), is_free=False)
    former = AttemptKey(job_id="job-1", attempt=1, fence=1, incarnation_id=OWN)
    assert not membership.holds(former)
    assert not membership.holds(replace(former, incarnation_id=""))


def test_what_an_older_agent_left_belongs_to_the_first_cluster_that_is_named(tmp_path: Path) -> None:
    legacy = AttemptKey(job_id="job-1", attempt=1, fence=1)
    assert ClusterMembership(tmp_path / "none.json").holds(legacy)
    membership = joined(tmp_path)
    assert membership.holds(legacy)
    membership.join(LogPosition(incarnation_id=STRANGER), (), is_free=True)
    assert not membership.holds(legacy)


def test_sequences_are_written_seldom_and_before_an_order(tmp_path: Path) -> None:
    membership = joined(tmp_path)
    path, before = tmp_path / "cluster.json", (tmp_path / "cluster.json").read_text()
    for sequence in range(71, 500):
        membership.advance(replace(SEEN, sequence=sequence))
    assert path.read_text() == before
    membership.take_order(replace(SEEN, sequence=400))
    membership.store()
    assert json.loads(path.read_text())["seen"]["sequence"] == 499


def refuse_to_write(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_costs_no_job_its_lease_and_starts_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    membership = joined(tmp_path)
    monkeypatch.setattr(cluster_membership, "write_json", refuse_to_write)
    later = replace(SEEN, generation=4, start_id="four")
    membership.join(later, (), is_free=False)
    assert membership.seen == later
    with pytest.raises(OSError, match="No space"):
        membership.store()
    with pytest.raises(OSError, match="No space"):
        membership.join(LogPosition(incarnation_id=CHILD), (OWN,), is_free=False)
    assert membership.seen == later


@pytest.mark.parametrize("content", ["", "{", "[]", '"x"'])
def test_a_damaged_memory_is_no_empty_one(tmp_path: Path, content: str) -> None:
    (tmp_path / "cluster.json").write_text(content)
    with pytest.raises(OperatorError, match="damaged"):
        ClusterMembership(tmp_path / "cluster.json")


@pytest.mark.parametrize("name", ["../../etc", "a" * 31, "A" * 32, "/" * 32, ""])
def test_only_an_id_of_an_incarnation_becomes_a_directory(tmp_path: Path, name: str) -> None:
    membership = ClusterMembership(tmp_path / "cluster.json")
    position = LogPosition(incarnation_id=name or OWN)
    with pytest.raises(ClusterRefusedError):
        membership.join(position, () if name else ("..",), is_free=True)


def write_checkpoint(root: Path, cluster: str, **named: object) -> Path:
    """A whole checkpoint of job-2, fence 2."""
    directory = checkpoint_directory(root, "job-2", 2, cluster)
    directory.mkdir(parents=True)
    (directory / "step-150.pt").write_text("weights")
    digest = hashlib.sha256(b"weights").hexdigest()
    manifest = {"step": 150, "fence": 2, "files": ["step-150.pt"], "bytes": 7, "sha256": digest, **named}
    (directory / "cotenant_checkpoint.json").write_text(json.dumps(manifest))
    return directory


GRANTED = tuple(GrantedCheckpoint(incarnation_id=one, fence=2) for one in (OWN, STRANGER, ""))


def resumed(membership: ClusterMembership, root: Path) -> Path | None:
    found = newest_resumable(membership.checkpoint_directories(root, "job-2", GRANTED))
    return None if found is None else found.directory


def test_the_checkpoint_of_another_clusters_job_of_the_same_name_is_not_resumed(tmp_path: Path) -> None:
    """Attack 1 A: a new job-2 resumed the old one's checkpoint and was finished without a step of its own."""
    write_checkpoint(tmp_path, STRANGER)
    assert resumed(joined(tmp_path), tmp_path) is None
    own = write_checkpoint(tmp_path, OWN)
    assert resumed(ClusterMembership(tmp_path / "cluster.json"), tmp_path) == own


def test_a_checkpoint_of_an_older_agent_is_resumed_by_the_cluster_that_it_served_only(tmp_path: Path) -> None:
    old = write_checkpoint(tmp_path, "")
    membership = joined(tmp_path)
    assert resumed(membership, tmp_path) == old
    membership.join(LogPosition(incarnation_id=STRANGER), (), is_free=True)
    assert resumed(membership, tmp_path) is None


@pytest.mark.parametrize(
    "named", [{"incarnation_id": STRANGER}, {"job_id": "job-3"}, {"incarnation_id": OWN, "job_id": "job-3"}]
)
def test_a_manifest_that_names_another_origin_is_not_resumed(tmp_path: Path, named: dict[str, str]) -> None:
    write_checkpoint(tmp_path, OWN, **named)
    assert resumed(joined(tmp_path), tmp_path) is None


def test_a_checkpoint_ties_its_node_to_the_cluster(tmp_path: Path) -> None:
    membership = joined(tmp_path)
    assert not membership.has_checkpoints(tmp_path)
    write_checkpoint(tmp_path, STRANGER)
    assert not membership.has_checkpoints(tmp_path)
    write_checkpoint(tmp_path, OWN)
    assert membership.has_checkpoints(tmp_path)


class Table:
    """Attempts of an agent that launches nothing."""

    def __init__(self, root: Path, *attempts: object) -> None:
        self.refused_launches = RefusedLaunches()
        self.directory = SimpleNamespace(checkpoints=root)
        self.launched: list[AttemptKey] = []
        self.stopped: list[AttemptKey] = []
        self._attempts = attempts

    def __iter__(self) -> Any:
        return iter(self._attempts)

    def launch(self, request: Any, *_: object) -> object:
        self.launched.append(request.key)
        return SimpleNamespace(end=None)

    def stop(self, key: AttemptKey, cause: str, grace_ms: int) -> None:
        self.stopped.append(key)


class Stream:
    """A scheduler that says what it was told to."""

    def __init__(self, *said: messages.ConnectResponse) -> None:
        self._said = said

    def Connect(self, heard: AsyncIterator[messages.ConnectRequest]) -> Stream:  # noqa: N802
        self._heard = heard
        return self

    def cancel(self) -> None:
        pass

    async def __aiter__(self) -> AsyncIterator[messages.ConnectResponse]:
        assert (await anext(self._heard)).HasField("hello")
        for message in self._said:
            yield message
        await asyncio.sleep(0.2)


async def nothing_to_end() -> None: ...


def converse(membership: ClusterMembership, table: Table, *said: messages.ConnectResponse) -> None:
    conversation = Conversation(
        table=cast("Any", table),
        read_gpus=lambda: (),
        windows=MeasurementWindowRecorder(campaign="", devices={}, make_id=str),
        hello=messages.Hello,
        on_welcome=lambda _: None,
        make_way=nothing_to_end,
        metrics=AgentMetrics(),
        membership=membership,
    )
    asyncio.run(asyncio.wait_for(conversation.hold(cast("Any", Stream(*said))), timeout=90))


def welcome(position: LogPosition) -> messages.ConnectResponse:
    said = messages.Welcome(heartbeat_ms=50, lease_ms=20_000, position=position_to_message(position))
    return messages.ConnectResponse(welcome=said)


def launch_by(incarnation_id: str, position: LogPosition = SEEN) -> messages.ConnectResponse:
    key = messages.AttemptKey(job_id="job-2", attempt=1, fence=2, incarnation_id=incarnation_id)
    order = messages.LaunchJob(key=key, spec=scheduling_pb2.JobSpec(), position=position_to_message(position))
    return messages.ConnectResponse(launch_job=order)


def test_a_strangers_orders_are_not_carried_out(tmp_path: Path) -> None:
    """Attack 1 C, on the node's side: whatever the scheduler thinks, nothing here ends for it."""
    table = Table(tmp_path, SimpleNamespace(key=AttemptKey(job_id="job-1", attempt=1, fence=1), end=None))
    stop = messages.StopJob(key=messages.AttemptKey(job_id="job-1", attempt=1, fence=1))
    stranger = LogPosition(incarnation_id=STRANGER, generation=1, start_id="one")
    with pytest.raises(ClusterRefusedError):
        converse(joined(tmp_path), table, welcome(stranger), messages.ConnectResponse(stop_job=stop))
    assert table.stopped == []


def test_orders_before_the_welcome_are_not_carried_out(tmp_path: Path) -> None:
    table = Table(tmp_path)
    converse(joined(tmp_path), table, launch_by(OWN), welcome(SEEN))
    assert table.launched == []


def test_an_order_is_carried_out_once_its_place_in_the_log_is_on_the_disk(tmp_path: Path) -> None:
    table, later = Table(tmp_path), replace(SEEN, sequence=75)
    converse(joined(tmp_path), table, welcome(SEEN), launch_by(OWN, later))
    assert [one.incarnation_id for one in table.launched] == [OWN]
    assert ClusterMembership(tmp_path / "cluster.json").seen == later


def test_a_repeated_order_for_what_runs_here_is_no_refusal_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Swarm seed 102709: the refusal read as the attempt's end, and the job ran beside its next attempt."""
    directory = AttemptDirectory(tmp_path / "jobs" / "job-2.1")
    directory.path.mkdir(parents=True)
    directory.state.write_text("{}")
    spec: dict[str, object] = {"job_id": "job-2", "attempt": 1, "fence": 2, "incarnation_id": OWN, "gpu_ids": ["gpu-0"]}
    begun = Attempt(directory, spec, tmp_path, tmp_path)
    begun.announced = True
    refused: list[AttemptKey] = []
    table, membership = Table(tmp_path, begun), joined(tmp_path)
    monkeypatch.setattr(cluster_membership, "write_json", refuse_to_write)
    monkeypatch.setattr(Conversation, "_refuse", lambda self, key, *_: refused.append(key))
    converse(membership, table, welcome(SEEN), launch_by(OWN, replace(SEEN, sequence=75)))
    assert (begun.announced, table.launched, refused) == (False, [], [])


def test_an_order_about_another_clusters_attempt_is_refused(tmp_path: Path) -> None:
    table = Table(tmp_path)
    converse(joined(tmp_path), table, welcome(SEEN), launch_by(STRANGER))
    assert table.launched == []
