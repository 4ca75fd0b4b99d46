"""What the processes of a gang are started with, and where they meet."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from cotenant_agent.attempts.attempt import Attempt
from cotenant_agent.attempts.launching import JobRules, Launcher
from cotenant_agent.checkpointing.checkpoints import Checkpoint
from cotenant_agent.devices.gpu_inventory import GpuInventory
from cotenant_agent.devices.import_baseline import NO_BASELINE
from cotenant_agent.devices.standin_inventory import StandinInventory
from cotenant_agent.errors import CommandRefusedError
from cotenant_agent.isolation.allow_list import AllowList
from cotenant_agent.isolation.cgroups import ControlGroups
from cotenant_agent.leases import Lease
from cotenant_agent.progress_reading.log_reading import find_rank_log
from cotenant_agent.ranks.rendezvous_ports import choose_port
from cotenant_agent.records import AttemptKey, LaunchRequest
from cotenant_agent.storage.state_directory import StateDirectory
from tests.support.fake_devices import FakeInventory, FakeProcesses

GPUS = ("gpu-0", "gpu-1")
TOLD = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "COTENANT_RANK", "COTENANT_WORLD_SIZE")


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[StateDirectory]:
    found = StateDirectory(tmp_path)
    yield found
    found.close()


def launcher_of(directory: StateDirectory, inventory: GpuInventory | None = None, **rules: Any) -> Launcher:
    return Launcher(
        directory=directory,
        processes=FakeProcesses(),
        inventory=inventory or FakeInventory(GPUS),
        groups=ControlGroups(),
        allow_list=AllowList(executables=(sys.executable,), directories=(), environment=("*",)),
        rules=JobRules(**rules),
    )


def launch(
    launcher: Launcher,
    job_id: str = "gang",
    live: Sequence[Attempt] = (),
    resume: Checkpoint | None = None,
    **fields: Any,
) -> Attempt:
    request = LaunchRequest(
        key=AttemptKey(job_id=job_id, attempt=1, fence=1),
        command=(sys.executable,),
        **{"gpu_ids": GPUS, "has_ranks": True, **fields},
    )
    return launcher.launch(request, resume, live, Lease(1_000, 1_000))


def spec_of(attempt: Attempt) -> dict[str, Any]:
    return dict(json.loads(attempt.directory.spec.read_text()))


def test_each_rank_is_told_who_it_is_and_where_rank_0_listens(directory: StateDirectory) -> None:
    attempt = launch(launcher_of(directory))
    ranks = [rank["environment"] for rank in spec_of(attempt)["ranks"]]
    assert [[rank[name] for name in TOLD] for rank in ranks] == [
        ["0", "0", "2", "2", "127.0.0.1", "0", "2"],
        ["1", "1", "2", "2", "127.0.0.1", "1", "2"],
    ]
    assert {rank["MASTER_PORT"] for rank in ranks} == {str(attempt.rendezvous_port)}
    assert attempt.ranks == (0, 1)


def test_a_job_without_ranks_is_one_process_that_knows_of_no_others(directory: StateDirectory) -> None:
    """A script that would train twice is not even told that it could."""
    spec = spec_of(launch(launcher_of(directory), has_ranks=False))
    assert (spec["ranks"], spec["environment"]["COTENANT_WORLD_SIZE"]) == ([], "1")
    assert not {"RANK", "WORLD_SIZE", "MASTER_PORT"} & spec["environment"].keys()


def test_a_gang_of_one_runs_like_any_other(directory: StateDirectory) -> None:
    [rank] = spec_of(launch(launcher_of(directory), gpu_ids=GPUS[:1]))["ranks"]
    assert (rank["environment"]["WORLD_SIZE"], rank["log"]) == ("1", "out.log")


def test_ranks_on_stand_in_devices_have_a_core_each(directory: StateDirectory) -> None:
    core = min(os.sched_getaffinity(0))
    inventory = StandinInventory(
        node_id="n", cores=[core, core], memory_bytes=1_000, baseline=NO_BASELINE, processes=FakeProcesses()
    )
    spec = spec_of(launch(launcher_of(directory, inventory), gpu_ids=("standin-n-0", "standin-n-1")))
    assert [(rank["cpu_cores"], rank["environment"]["OMP_NUM_THREADS"]) for rank in spec["ranks"]] == [
        ([core], "1")
    ] * 2


def test_every_rank_sees_all_devices_of_the_gang(directory: StateDirectory) -> None:
    """As under torchrun: LOCAL_RANK chooses one of them."""
    spec = spec_of(launch(launcher_of(directory, StandinInventory(
        node_id="n", cores=[0, 0], memory_bytes=1_000, baseline=NO_BASELINE, processes=FakeProcesses()
    )), gpu_ids=("standin-n-0", "standin-n-1")))  # fmt: skip
    assert all("CUDA_VISIBLE_DEVICES" not in rank["environment"] for rank in spec["ranks"])
    assert "CUDA_VISIBLE_DEVICES" in spec["environment"]


def test_values_of_the_node_win_over_the_jobs_and_that_is_said_in_the_log(directory: StateDirectory) -> None:
    own = {"RANK": "7", "MASTER_ADDR": "example.org", "GLOO_SOCKET_IFNAME": "eth7"}
    attempt = launch(launcher_of(directory), environment=own)
    assert spec_of(attempt)["ranks"][1]["environment"]["RANK"] == "1"
    assert spec_of(attempt)["environment"]["GLOO_SOCKET_IFNAME"] == "eth7"
    assert attempt.directory.log.read_text().startswith("cotenant: this node sets MASTER_ADDR, RANK;")


def test_two_gangs_of_a_node_never_meet(directory: StateDirectory) -> None:
    """Also where neither has opened its port yet, and both names lead to the same one."""
    launcher = launcher_of(directory)
    first = launch(launcher, "first")
    assert choose_port(first.key.directory_name, {first.rendezvous_port}) != first.rendezvous_port
    # An agent that takes over knows which are taken.
    again = Attempt(first.directory, spec_of(first), directory.checkpoints, directory.run)
    assert again.rendezvous_port == first.rendezvous_port


def test_a_port_at_which_somebody_listens_is_left_out() -> None:
    with socket.socket() as listener:
        wanted = choose_port("gang.1", ())
        listener.bind(("127.0.0.1", wanted))
        listener.listen()
        assert choose_port("gang.1", ()) != wanted


def test_launchers_as_commands_meet_at_ports_of_their_own(directory: StateDirectory) -> None:
    """Torchrun takes the same port for every job otherwise, so that the second one on a node cannot start."""
    launcher = launcher_of(directory)
    attempts = [launch(launcher, name, has_ranks=False, gpu_ids=GPUS[:1]) for name in ("one", "two")]
    ports = {spec_of(attempt)["environment"]["PET_MASTER_PORT"] for attempt in attempts}
    assert ports == {str(attempt.rendezvous_port) for attempt in attempts}
    assert len(ports) == 2
    chosen = launch(launcher, "three", has_ranks=False, environment={"PET_MASTER_PORT": "29500"})
    assert spec_of(chosen)["environment"]["PET_MASTER_PORT"] == "29500"


@pytest.mark.parametrize(("limit", "expected"), [(8 << 20, 4 << 20), (1 << 20, 1 << 20), (4_096, 4_096)])
def test_the_logs_of_a_gang_take_no_more_room_than_those_of_a_job(
    directory: StateDirectory, limit: int, expected: int
) -> None:
    assert spec_of(launch(launcher_of(directory, log_limit_bytes=limit)))["log_limit_bytes"] == expected


def test_the_log_of_each_rank_is_found_and_of_no_other(directory: StateDirectory) -> None:
    launcher = launcher_of(directory)
    gang, single = launch(launcher).directory, launch(launcher, "single", has_ranks=False).directory
    assert [find_rank_log(gang, rank) for rank in (0, 1)] == ["out.log", "out.rank-1.log"]
    assert find_rank_log(single, 0) == "out.log"
    with pytest.raises(CommandRefusedError, match="the ranks 0 to 1"):
        find_rank_log(gang, 2)
    with pytest.raises(CommandRefusedError, match="one process"):
        find_rank_log(single, 1)
