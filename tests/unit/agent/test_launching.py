"""What fits on a device with which jobs: the agent's last look before a start."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pytest

from cotenant_agent.attempts.attempt import Attempt
from cotenant_agent.attempts.launching import JobRules, Launcher
from cotenant_agent.errors import CommandRefusedError
from cotenant_agent.isolation.allow_list import AllowList
from cotenant_agent.isolation.cgroups import ControlGroups
from cotenant_agent.leases import Lease
from cotenant_agent.records import AttemptKey, LaunchRequest
from cotenant_agent.storage.durable_files import ROOM_BYTES, room_of
from cotenant_agent.storage.state_directory import StateDirectory
from tests.support.fake_devices import FakeInventory, FakeProcesses

DEVICE_BYTES = 1 << 30


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    directory = StateDirectory(tmp_path)
    yield Launcher(
        directory=directory,
        processes=FakeProcesses(),
        inventory=FakeInventory(["gpu-0", "gpu-1"], memory_bytes=DEVICE_BYTES),
        groups=ControlGroups(),
        allow_list=AllowList(executables=(sys.executable,), directories=()),
        rules=JobRules(),
    )
    directory.close()


def launch(
    launcher: Launcher,
    job_id: str,
    limit_bytes: int,
    live: Sequence[Attempt] = (),
    *,
    gpu_id: str = "gpu-0",
    limits: Mapping[AttemptKey, int] = MappingProxyType({}),
    held_bytes: int = 0,
) -> Attempt:
    request = LaunchRequest(
        key=AttemptKey(job_id=job_id, attempt=1, fence=1),
        command=(sys.executable,),
        gpu_ids=(gpu_id,),
        memory_limit_bytes=limit_bytes,
        memory_held_bytes=held_bytes,
        co_located_limits=limits,
    )
    return launcher.launch(request, None, live, Lease(1_000, 1_000))


def test_a_job_to_which_the_scheduler_has_given_a_whole_device_is_launched(launcher: Launcher) -> None:
    assert launch(launcher, "whole", DEVICE_BYTES).memory_limit_bytes == DEVICE_BYTES


def test_room_is_kept_for_what_an_attempt_must_be_able_to_say_on_a_full_disk(launcher: Launcher) -> None:
    directory = launch(launcher, "job", DEVICE_BYTES).directory
    for path in (directory.stop, directory.exit):
        assert not path.exists()
        assert room_of(path).stat().st_blocks * 512 >= ROOM_BYTES


def test_reservations_may_fill_a_device_and_not_pass_it(launcher: Launcher) -> None:
    live = [launch(launcher, "first", DEVICE_BYTES - 100)]
    live.append(launch(launcher, "second", 100, live))
    with pytest.raises(CommandRefusedError, match="OVER_CAPACITY"):
        launch(launcher, "third", 1, live)
    launch(launcher, "elsewhere", DEVICE_BYTES, live, gpu_id="gpu-1")


def test_what_is_reserved_for_a_measured_job_makes_room_for_the_next_one(launcher: Launcher) -> None:
    """A job of which nothing was known gets the whole device at its launch, and less once it was measured."""
    whole = launch(launcher, "whole", DEVICE_BYTES)
    second = launch(launcher, "second", 100, [whole], limits={whole.key: DEVICE_BYTES - 100})
    assert (whole.memory_limit_bytes, second.memory_limit_bytes) == (DEVICE_BYTES - 100, 100)
    with pytest.raises(CommandRefusedError, match="OVER_CAPACITY"):
        launch(launcher, "third", 1, [whole, second], limits={whole.key: DEVICE_BYTES, second.key: 0})


def test_jobs_whose_peaks_take_turns_are_promised_one_peak_together(launcher: Launcher) -> None:
    peak, held = DEVICE_BYTES * 6 // 10, DEVICE_BYTES * 3 // 10
    first = launch(launcher, "first", peak, held_bytes=held)
    assert (first.memory_limit_bytes, first.memory_held_bytes) == (peak, held)
    second = launch(launcher, "second", peak, [first], held_bytes=held)
    with pytest.raises(CommandRefusedError, match="OVER_CAPACITY"):
        launch(launcher, "third", peak, [first, second], held_bytes=held)
    with pytest.raises(CommandRefusedError, match="OVER_CAPACITY"):
        launch(launcher, "keeps", DEVICE_BYTES * 2 // 10, [first, second])


def test_a_device_that_is_not_there_takes_no_job(launcher: Launcher) -> None:
    with pytest.raises(CommandRefusedError, match="unknown on this node"):
        launch(launcher, "lost", 1, gpu_id="gpu-7")
