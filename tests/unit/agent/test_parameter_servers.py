"""Parameter servers beside the ranks of a gang: what they are started with, and whose end is whose."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cotenant.v1 import node_agent_pb2 as messages
from cotenant.v1 import scheduling_pb2
from cotenant_agent.attempts.attempt import Attempt
from cotenant_agent.errors import CommandRefusedError
from cotenant_agent.keeper.rank_ends import RankEnds
from cotenant_agent.progress_reading.log_reading import find_rank_log
from cotenant_agent.protocol import launch_from_message
from cotenant_agent.ranks.rank_times import RankTimes
from cotenant_agent.records import GangPart, ServerGroup
from cotenant_agent.storage.state_directory import StateDirectory
from tests.unit.agent.test_rank_plan import launch, launcher_of, spec_of

FIRST_PART: dict[str, Any] = {"world_size": 2, "nodes": 2, "master_address": "10.0.0.1"}
FAILED, LEFT, KILLED = 3 << 8, 85 << 8, int(signal.SIGKILL)
TOLD = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "ROLE_NAME",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "COTENANT_ROLE",
    "COTENANT_SERVERS",
)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[StateDirectory]:
    found = StateDirectory(tmp_path)
    yield found
    found.close()


def launched(directory: StateDirectory, **group: Any) -> Attempt:
    return launch(launcher_of(directory), servers=ServerGroup(**{"count": 1, **group}))


def order(**fields: object) -> messages.LaunchJob:
    spec = scheduling_pb2.JobSpec(
        command=["python"],
        ranks=2,
        cpu_cores=2,
        host_memory_bytes=100,
        servers=scheduling_pb2.ParameterServers(count=1, cpu_cores=1.5, host_memory_bytes=10, blocks={"weight": 8}),
    )
    assignments = [scheduling_pb2.Assignment(gpu_id=f"gpu-{rank}", rank=rank) for rank in range(2)]
    found = messages.LaunchJob(
        key=messages.AttemptKey(job_id="gang", attempt=1, fence=1), spec=spec, assignments=assignments, servers=2
    )
    found.MergeFrom(messages.LaunchJob(**fields))  # type: ignore[arg-type]
    return found


def test_servers_are_the_last_ranks_of_one_world_and_every_process_knows_its_role(directory: StateDirectory) -> None:
    processes = spec_of(launched(directory))["ranks"]
    assert [[one["environment"][name] for name in TOLD] for one in processes] == [
        ["0", "0", "3", "worker", "0", "2", "worker", "1"],
        ["1", "1", "3", "worker", "1", "2", "worker", "1"],
        ["2", "2", "3", "server", "0", "1", "server", "1"],
    ]
    assert len({(one["environment"]["MASTER_ADDR"], one["environment"]["MASTER_PORT"]) for one in processes}) == 1


def test_the_servers_of_a_part_are_numbered_over_all_nodes_behind_all_ranks(directory: StateDirectory) -> None:
    """The second of two nodes, with ranks 2 and 3 of four and the last two of three servers."""
    (directory.checkpoints / "gang" / "1").mkdir(parents=True)
    part = GangPart(world_size=4, group_rank=1, nodes=2, master_address="10.0.0.1", master_port=20_007)
    attempt = launch(
        launcher_of(directory, gangs_by_transfer=True), rank=2, gang_part=part,
        servers=ServerGroup(count=3, part=range(1, 3)),
    )  # fmt: skip
    spec = spec_of(attempt)
    told = (*TOLD, "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_PORT")
    common = ["4", "1", "2", "20007"]
    assert [[one["environment"][name] for name in told] for one in spec["ranks"]] == [
        ["2", "0", "7", "worker", "2", "4", "worker", "3", *common],
        ["3", "1", "7", "worker", "3", "4", "worker", "3", *common],
        ["5", "2", "7", "server", "1", "3", "server", "3", *common],
        ["6", "3", "7", "server", "2", "3", "server", "3", *common],
    ]
    assert spec["environment"]["COTENANT_CHECKPOINT_PART"] == "2,3,5,6"
    assert find_rank_log(attempt.directory, 0, 2) == "out.server-2.log"
    with pytest.raises(CommandRefusedError, match="the parameter servers 1 to 2 on this node, not server 0"):
        find_rank_log(attempt.directory, 0, 0)
    assert (spec["other_parts"], spec["world_size"]) == (1, 7)


def test_a_server_sees_no_device_and_runs_its_own_command_where_it_has_one(directory: StateDirectory) -> None:
    worker, *_, server = spec_of(launched(directory, command=(sys.executable, "serve", "{sub_batch}")))["ranks"]
    assert (server["environment"]["CUDA_VISIBLE_DEVICES"], server["argv"]) == ("", [sys.executable, "serve", "0"])
    assert "argv" not in worker
    assert "CUDA_VISIBLE_DEVICES" not in worker["environment"]


def test_a_command_of_servers_that_the_node_does_not_allow_is_refused(directory: StateDirectory) -> None:
    with pytest.raises(CommandRefusedError, match="elsewhere"):
        launched(directory, command=("/elsewhere/python",))


def test_the_assignment_of_blocks_is_a_file_that_every_process_finds(directory: StateDirectory) -> None:
    blocks = {"wide": 1_000, "narrow": 400, "bias": 10}
    attempt = launched(directory, count=2, blocks=blocks)
    found = json.loads(Path(spec_of(attempt)["environment"]["COTENANT_PARAMETER_ASSIGNMENT"]).read_text())
    assert {name: sum(part["parameters"] for part in parts) for name, parts in found["blocks"].items()} == blocks
    held = [sum(part["parameters"] for parts in found["blocks"].values() for part in parts if part["server"] == one)
            for one in range(2)]  # fmt: skip
    assert (found["servers"], max(held) - min(held) < 300) == (2, True)


def test_without_blocks_no_assignment_is_promised(directory: StateDirectory) -> None:
    attempt = launched(directory)
    assert "COTENANT_PARAMETER_ASSIGNMENT" not in spec_of(attempt)["environment"]
    assert not [*attempt.run_directory.glob("*.json")]


def test_each_server_has_a_log_of_its_own(directory: StateDirectory) -> None:
    attempt = launched(directory, count=2)
    names = [find_rank_log(attempt.directory, 0), *(find_rank_log(attempt.directory, 0, one) for one in (0, 1))]
    assert names == ["out.log", "out.server-0.log", "out.server-1.log"]
    with pytest.raises(CommandRefusedError, match="the parameter servers 0 to 1 on this node, not server 2"):
        find_rank_log(attempt.directory, 0, 2)


def test_a_gang_without_servers_says_so(directory: StateDirectory) -> None:
    attempt = launch(launcher_of(directory))
    with pytest.raises(CommandRefusedError, match="has no parameter servers"):
        find_rank_log(attempt.directory, 0, 0)
    assert not {"COTENANT_ROLE", "ROLE_NAME"} & spec_of(attempt)["ranks"][0]["environment"].keys()


def test_an_order_names_how_many_there_are_and_the_limits_are_those_of_all_processes() -> None:
    request = launch_from_message(order())
    assert request.servers == ServerGroup(count=2, blocks={"weight": 8})
    assert (request.cpu_cores, request.host_memory_bytes) == (5.0, 120)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"spec": scheduling_pb2.JobSpec(servers=scheduling_pb2.ParameterServers(cpu_cores=0.0))}, 5.0),
        ({"servers": -1}, None),
        ({"servers": 65}, None),
        ({"gang_part": messages.GangPart(**FIRST_PART)}, 2.0),
        ({"gang_part": messages.GangPart(**FIRST_PART, servers=1)}, 3.5),
        ({"gang_part": messages.GangPart(**FIRST_PART, first_server=2, servers=1)}, None),
        ({"gang_part": messages.GangPart(**FIRST_PART, first_server=-1, servers=1)}, None),
        ({"gang_part": messages.GangPart(**FIRST_PART, servers=-1)}, None),
    ],
)
def test_an_order_that_cannot_be_carried_out_here_is_refused(fields: dict[str, object], expected: float | None) -> None:
    if expected is not None:
        assert launch_from_message(order(**fields)).cpu_cores == expected
        return
    with pytest.raises(CommandRefusedError, match="parameter servers"):
        launch_from_message(order(**fields))


def ends_of(*statuses: tuple[int, int], blamed_after: int = 99) -> RankEnds:
    """Two workers and one server."""
    ends = RankEnds(3, 1)
    for number, (rank, status) in enumerate(statuses):
        if number == blamed_after:
            ends.blame()
        ends.note(rank, status, 1_000 * (rank + 1))
    return ends


def test_servers_are_told_to_end_when_all_workers_are_done_and_it_is_a_success_however_they_end() -> None:
    done = ends_of((0, 0), (1, 0))
    assert (done.peers_grace_ms(30_000), done.are_complete) == (5_000, False)
    done.note(2, KILLED, 9_000)
    assert (done.return_code(was_stopped=False), done.failed_rank, done.max_resident_bytes) == (0, None, 2_000)


def test_a_server_that_dies_ends_the_gang_and_its_end_counts() -> None:
    ends = ends_of((2, FAILED))
    assert (ends.peers_grace_ms(30_000), ends.failed_rank, ends.is_a_server_lost) == (5_000, 2, True)
    asked = ends_of((2, FAILED), (0, 0), (1, 0), blamed_after=1)
    assert (asked.return_code(was_stopped=False), asked.failed_rank) == (3, 2)


def test_a_server_whose_connections_the_workers_broke_by_ending_is_no_failure() -> None:
    ends = ends_of((2, FAILED), (0, 0), (1, 0))
    assert (ends.return_code(was_stopped=False), ends.failed_rank) == (0, None)


def test_a_gang_that_leaves_with_a_checkpoint_does_so_with_its_servers() -> None:
    ends = ends_of((0, LEFT), (2, LEFT), (1, LEFT))
    assert (ends.return_code(was_stopped=True), ends.are_complete) == (85, True)


def write_times(folder: Path, rank: int, content: object) -> None:
    (folder / f"rank_times.{rank}.json").write_text(content if isinstance(content, str) else json.dumps(content))


def test_what_ranks_say_of_their_own_time_is_told_per_step_since_the_last_look(tmp_path: Path) -> None:
    times = RankTimes(tmp_path, (0, 1))
    write_times(tmp_path, 0, {"steps": 10, "own_ns": 500_000_000})
    write_times(tmp_path, 7, {"steps": 10, "own_ns": 500_000_000})
    assert times.read() == ((0, 50.0),)
    assert times.read() == ()
    write_times(tmp_path, 0, {"steps": 12, "own_ns": 700_000_000})
    write_times(tmp_path, 1, {"steps": 1, "own_ns": 3_000_000})
    assert times.read() == ((0, 100.0), (1, 3.0))


@pytest.mark.parametrize(
    "content",
    ["", "[]", "nul", {"steps": -1, "own_ns": 5}, {"steps": "3", "own_ns": 5}, {"steps": 3, "own_ns": 1 << 70},
     {"steps": 3, "own_ns": 0}, {"steps": True, "own_ns": 5}, "[" * 5_000],
)  # fmt: skip
def test_nonsense_of_a_rank_is_no_time(tmp_path: Path, content: object) -> None:
    write_times(tmp_path, 0, content)
    assert RankTimes(tmp_path, (0,)).read() == ()
