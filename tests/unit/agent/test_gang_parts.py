"""The part of a gang that one node runs: whom its ranks are told of, and that it sees the checkpoints of the others."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from cotenant.v1 import node_agent_pb2 as messages
from cotenant.v1 import scheduling_pb2
from cotenant_agent.attempts.pause_orders import longest_pause_ms, pause_obstacle
from cotenant_agent.attempts.stop_orders import note_ended_parts
from cotenant_agent.checkpointing.checkpoints import Checkpoint
from cotenant_agent.checkpointing.shared_storage import (
    GANG_FILE,
    STORAGE_FILE,
    check_owner,
    find_resumable,
    leave_choice,
    read_storage_id,
)
from cotenant_agent.errors import CommandRefusedError, OperatorError
from cotenant_agent.progress_reading.log_reading import find_rank_log
from cotenant_agent.protocol import launch_from_message, status_to_message
from cotenant_agent.ranks.rendezvous_addresses import find_interface, find_own_address, is_host
from cotenant_agent.records import GangPart, GrantedCheckpoint, LaunchRequest
from cotenant_agent.settings import AgentSettings
from cotenant_agent.storage.state_directory import StateDirectory
from cotenant_agent.wiring import build_agent
from tests.support.cases import for_each
from tests.unit.agent.test_checkpoints import write_checkpoint
from tests.unit.agent.test_rank_plan import GPUS, launch, launcher_of, spec_of

FIRST = GangPart(world_size=3, group_rank=0, nodes=2, master_address="10.0.0.1")
SECOND = replace(FIRST, group_rank=1, master_port=20_007)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[StateDirectory]:
    found = StateDirectory(tmp_path / "state")
    yield found
    found.close()


def order(*ranks: int, part: dict[str, object] | None = None, **spec: object) -> messages.LaunchJob:
    said = {"world_size": 3, "group_rank": 1, "nodes": 2, "master_address": "10.0.0.1", "master_port": 20_007}
    return messages.LaunchJob(
        key=messages.AttemptKey(job_id="gang", attempt=1, fence=1),
        spec=scheduling_pb2.JobSpec(command=["python"], ranks=3, **spec),  # type: ignore[arg-type]
        assignments=[scheduling_pb2.Assignment(gpu_id=f"gpu-{rank}", rank=rank) for rank in ranks],
        gang_part=messages.GangPart(**{**said, **(part or {})}),  # type: ignore[arg-type]
    )


def test_ranks_are_told_of_all_nodes_and_of_the_first_ones_port(directory: StateDirectory) -> None:
    (directory.checkpoints / "gang" / "1").mkdir(parents=True)
    attempt = launch(launcher_of(directory, find_interface=lambda: "eth7"), rank=1, gang_part=SECOND)
    spec = spec_of(attempt)
    told = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
    assert [[rank["environment"][name] for name in told] for rank in spec["ranks"]] == [
        ["1", "0", "3", "2", "1", "10.0.0.1", "20007"],
        ["2", "1", "3", "2", "1", "10.0.0.1", "20007"],
    ]
    assert {spec["environment"][name] for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")} == {"eth7"}
    # The port is the first node's to tell.
    assert attempt.rendezvous_port == 0


def test_the_first_part_says_its_port_and_where_it_goes_on(directory: StateDirectory) -> None:
    attempt = launch(launcher_of(directory), gang_part=FIRST)
    assert attempt.rendezvous_port in range(20_000, 30_000)
    assert status_to_message(attempt).rendezvous_port == attempt.rendezvous_port
    assert (attempt.checkpoint_directory / GANG_FILE).exists()
    assert "GLOO_SOCKET_IFNAME" not in spec_of(attempt)["environment"]


def test_a_part_whose_checkpoints_are_fetched_has_a_folder_of_its_own_and_the_first_says_which_one_it_was(
    directory: StateDirectory, tmp_path: Path
) -> None:
    launcher = launcher_of(directory, gangs_by_transfer=True)
    chosen = Checkpoint(directory=write_checkpoint(tmp_path / "fetched" / "job", 7), step=7, written_ns=0)
    first = launch(launcher, gang_part=FIRST, resume=chosen)
    assert (status_to_message(first).resumed_fence, launch(launcher, "afresh", gang_part=FIRST).resumed_fence) == (7, 0)
    second = launch(launcher, "other", rank=1, gang_part=SECOND, resume=chosen)
    assert second.checkpoint_directory.is_dir()
    assert not (first.checkpoint_directory / GANG_FILE).exists()
    # All go on from the first one's choice: what another part says does not count.
    assert second.resumed_fence == 0


def test_a_part_is_paused_as_any_other_job_for_less_than_half_of_what_a_collective_waits(
    directory: StateDirectory,
) -> None:
    part = launch(launcher_of(directory), gang_part=FIRST, collective_timeout_ms=20_000)
    assert pause_obstacle(part, 60_000) == ""
    assert longest_pause_ms(part, 60_000) == 9_999


def test_a_shim_is_told_how_many_parts_have_ended_elsewhere_when_that_is_news(directory: StateDirectory) -> None:
    parts = [launch(launcher_of(directory), name, gang_part=FIRST) for name in ("one", "other")]
    told = {parts[0].key: 1}
    note_ended_parts(parts, told)
    assert [part.read(part.directory.ended_parts) for part in parts] == [{"parts": 1}, None]
    parts[0].directory.ended_parts.write_text('{"parts": 1, "is": "as it was"}')
    note_ended_parts(parts, told)
    assert "is" in (parts[0].read(parts[0].directory.ended_parts) or {})
    note_ended_parts(parts, {parts[0].key: 2, parts[1].key: -1})
    assert [part.read(part.directory.ended_parts) for part in parts] == [{"parts": 2}, None]


def test_a_part_has_its_share_of_what_the_job_asks_of_hosts() -> None:
    request = launch_from_message(order(1, 2, host_memory_bytes=10, cpu_cores=3.0))
    assert (request.host_memory_bytes, request.cpu_cores, request.rank) == (7, 2.0, 1)
    assert request.gang_part == SECOND


@for_each(
    ("ranks", "part"),
    [
        ((1, 3), {}), ((), {}), ((2, 3), {}), ((0,), {}), ((1,), {"master_port": 0}), ((1,), {"master_port": 65_536}),
        ((1,), {"group_rank": 2}), ((1,), {"group_rank": -1}), ((1,), {"master_address": ""}),
        ((1,), {"master_address": "a b"}), ((1,), {"master_address": "0.0.0.0"}),
        ((0,), {"group_rank": 0}), ((1,), {"group_rank": 0, "master_port": 0}),
    ],
)  # fmt: skip
def test_a_part_that_cannot_be_one_is_refused(ranks: tuple[int, ...], part: dict[str, object]) -> None:
    with pytest.raises(CommandRefusedError, match="INVALID_GANG"):
        launch_from_message(order(*ranks, part=part))


def test_another_node_must_see_what_the_first_one_wrote(tmp_path: Path) -> None:
    with pytest.raises(CommandRefusedError, match=r"does not see.*--checkpoint-dir"):
        find_resumable(SECOND, tmp_path / "job" / "2", ())
    assert find_resumable(FIRST, tmp_path / "job" / "2", ()) is None


def test_an_order_says_which_checkpoint_the_first_node_goes_on_from_and_where_it_lies() -> None:
    resumed = {"incarnation_id": "c0", "fence": 4, "node_id": "n0"}
    said = launch_from_message(order(1, 2, part={"resumed": messages.GrantedCheckpoint(**resumed)})).gang_part  # type: ignore[arg-type]
    assert said == replace(SECOND, resumed=GrantedCheckpoint(incarnation_id="c0", fence=4, node_id="n0"))


def test_all_parts_go_on_from_the_checkpoint_that_the_first_one_has_chosen(tmp_path: Path) -> None:
    """Of a newer one that only this node sees they do not: it was not whole when the others looked."""
    older, newer, own = write_checkpoint(tmp_path / "job", 3), write_checkpoint(tmp_path / "job", 4), tmp_path / "job/5"
    own.mkdir()
    leave_choice(own, Checkpoint(directory=older, step=7, written_ns=0))
    found = find_resumable(SECOND, own, (newer, older))
    assert found is not None
    assert found.directory == older
    leave_choice(own, None)
    assert find_resumable(SECOND, own, (newer, older)) is None


@pytest.mark.parametrize("resume", ["x/job/9", "../../etc", "job/3/"])
def test_a_choice_that_was_not_granted_is_not_followed(tmp_path: Path, resume: str) -> None:
    granted = write_checkpoint(tmp_path / "job", 3)
    own = tmp_path / "job" / "5"
    own.mkdir()
    (own / GANG_FILE).write_text(f'{{"resume": "{resume}"}}')
    with pytest.raises(CommandRefusedError, match="sees no whole checkpoint"):
        find_resumable(SECOND, own, (granted,))


def test_ranks_that_may_not_write_there_are_refused_before_they_begin(
    directory: StateDirectory, tmp_path: Path
) -> None:
    check_owner(tmp_path, None)
    with pytest.raises(CommandRefusedError, match="the same --job-user"):
        check_owner(tmp_path, os.geteuid() + 1)
    with pytest.raises(CommandRefusedError, match="CHECKPOINTS_NOT_SHARED"):
        launch(launcher_of(directory), rank=1, gang_part=SECOND)
    assert list(directory.attempts()) == []


def test_a_shared_folder_has_one_name_for_all_agents(tmp_path: Path) -> None:
    first = read_storage_id(tmp_path)
    assert read_storage_id(tmp_path) == first
    assert [path.name for path in tmp_path.iterdir()] == [STORAGE_FILE]
    other = tmp_path / "other"
    other.mkdir()
    assert read_storage_id(other) != first
    (other / STORAGE_FILE).write_text('{"storage_id": "../x"}')
    with pytest.raises(OperatorError, match="remove it"):
        read_storage_id(other)
    with pytest.raises(OperatorError, match="--checkpoint-dir"):
        read_storage_id(tmp_path / "absent")


@for_each(
    ("text", "expected"),
    [("10.0.0.1", True), ("node-7.lan", True), ("fe80::1", True), ("10.0.0.1:7000", False), ("0.0.0.0", False),
     ("::", False), ("", False), ("a b", False), ("x" * 254, False)],
)  # fmt: skip
def test_an_address_is_one_of_a_machine(text: str, expected: bool) -> None:
    assert is_host(text) is expected


def test_a_node_finds_the_address_from_which_it_dials() -> None:
    assert find_own_address("127.0.0.1:7071") == "127.0.0.1"
    assert find_own_address("unix:/run/scheduler.sock") == "127.0.0.1"
    assert find_own_address("no address") == ""
    assert find_interface("127.0.0.1") == "lo"
    assert find_interface("203.0.113.7") == ""
    assert find_interface("\x00.example") == ""


def test_an_agent_that_spans_no_nodes_waits_for_no_name_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(*_: object, **__: object) -> NoReturn:
        raise AssertionError("a name was looked up, which takes as long as the name server likes")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(socket, "gethostbyname", look_up)
    settings = AgentSettings(
        scheduler="scheduler.example:7071",
        node_id="n1",
        state_dir=str(tmp_path),
        standin_cores=(0,),
        cgroups=False,
        calibrate=False,
    )
    with build_agent(settings):
        pass


def test_an_order_without_a_part_is_for_the_whole_job() -> None:
    message = order(0, 1)
    message.ClearField("gang_part")
    request = launch_from_message(message)
    assert (request.gang_part, request.chooses_port) == (None, True)
    assert isinstance(request, LaunchRequest)
    assert len(request.gpu_ids) == len(GPUS)


def test_torchrun_as_the_command_is_told_of_the_other_nodes(directory: StateDirectory) -> None:
    (directory.checkpoints / "gang" / "1").mkdir(parents=True)
    attempt = launch(launcher_of(directory), has_ranks=False, rank=1, gang_part=SECOND)
    environment = spec_of(attempt)["environment"]
    told = ("NNODES", "NODE_RANK", "NPROC_PER_NODE", "MASTER_ADDR", "MASTER_PORT")
    assert [environment[f"PET_{name}"] for name in told] == ["2", "1", "2", "10.0.0.1", "20007"]
    assert "RANK" not in environment
    # What its two ranks print is in one log.
    assert {find_rank_log(attempt.directory, rank) for rank in (1, 2)} == {"out.log"}
    with pytest.raises(CommandRefusedError, match="the ranks 1 to 2"):
        find_rank_log(attempt.directory, 0)
