"""A node whose disk is full is given no job, and is given some again once there is room, without flickering."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotenant_agent.storage.state_disk import FULL_BYTES, ROOMY_BYTES, StateDisk, free_bytes
from tests.support.small_disks import small_disk


class Disk:
    """So much is left of it."""

    def __init__(self, left_bytes: int) -> None:
        self.left_bytes = left_bytes

    def measure(self, folder: Path) -> int:
        if self.left_bytes < 0:
            raise OSError(5, "Input/output error")
        return self.left_bytes


def test_a_full_disk_is_said_once_in_the_log_and_as_long_as_it_lasts_to_the_scheduler(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    disk = Disk(FULL_BYTES)
    watched = StateDisk(tmp_path, disk.measure)
    found = []
    for disk.left_bytes in (FULL_BYTES, FULL_BYTES - 1, 0, FULL_BYTES + 1, ROOMY_BYTES, FULL_BYTES):
        found.append(watched.fault())
    assert [bool(fault) for fault in found] == [False, True, True, True, False, False]
    assert str(tmp_path) in found[1]
    assert "make room" in found[1]
    assert [record.message for record in caplog.records] == ["state_disk_full", "state_disk_has_room"]


def test_a_disk_that_does_not_answer_is_no_place_to_start_a_job(tmp_path: Path) -> None:
    assert "Input/output error" in StateDisk(tmp_path, Disk(-1).measure).fault()


def test_a_disk_that_may_only_be_read_is_no_place_to_start_a_job(tmp_path: Path) -> None:
    with small_disk(tmp_path, "ro,size=8m") as mount:
        assert "Read-only file system" in StateDisk(mount).fault()


def test_the_room_of_a_real_folder_is_read(tmp_path: Path) -> None:
    assert free_bytes(tmp_path) > 0
