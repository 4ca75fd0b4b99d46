"""A shim lets a job stand still: everything of it, for so long, and never when it is to end."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from cotenant_agent.keeper.job_pausing import PAUSED_MS_MAX, JobPauser
from cotenant_agent.keeper.job_processes import JobProcesses


class FakeJob:
    """Processes that stand still when they are told to, unless they wait for a device."""

    def __init__(self) -> None:
        self.is_held = False
        self.is_stuck = False
        self.frozen_files: tuple[str, ...] = ()

    def hold(self, frozen_files: tuple[str, ...]) -> bool:
        self.frozen_files = frozen_files
        self.is_held = not self.is_stuck
        return self.is_held

    def let_go(self) -> None:
        self.is_held = False


class PauserBench:
    """A pauser over fakes, and the records that it leaves."""

    def __init__(self, freeze_file: str = "") -> None:
        self.job = FakeJob()
        self.records: list[dict[str, object]] = []
        self.is_disk_full = False
        self.pauser = JobPauser(cast(JobProcesses, self.job), freeze_file, self._remember)

    def _remember(self, record: dict[str, object]) -> None:
        if self.is_disk_full:
            raise OSError(errno.ENOSPC, "no space left")
        self.records.append(record)

    def holds(self) -> bool:
        return self.job.is_held

    def look(self, now_ms: int, until_ms: object = None) -> dict[str, Any]:
        self.pauser.look(None if until_ms is None else {"until_boot_ms": until_ms}, now_ms)
        return self.records[-1] if self.records else {}


@pytest.fixture
def bench() -> PauserBench:
    return PauserBench()


def test_an_order_holds_the_job_and_its_end_lets_it_go(bench: PauserBench) -> None:
    assert bench.look(1_000, 9_000)["since_boot_ms"] == 1_000
    assert bench.holds()
    record = bench.look(4_500)
    assert not bench.holds()
    assert (record["since_boot_ms"], record["paused_ms"], record["changes"]) == (0, 3_500, 2)


def test_the_deadline_ends_a_pause_although_the_order_still_lies_there(bench: PauserBench) -> None:
    bench.look(1_000, 9_000)
    bench.look(8_999, 9_000)
    assert bench.holds()
    assert bench.look(9_000, 9_000)["paused_ms"] == 8_000
    assert not bench.holds()
    bench.look(9_100, 9_000)
    assert not bench.holds()


def test_no_order_pauses_for_longer_than_a_minute(bench: PauserBench) -> None:
    bench.look(1_000, 10**12)
    bench.look(1_000 + PAUSED_MS_MAX, 10**12)
    assert not bench.holds()


def test_an_order_that_is_over_or_makes_no_sense_pauses_nobody(bench: PauserBench) -> None:
    nonsense: tuple[object, ...] = (0, -5, 999, "soon", None, [], 1.5e9)
    for until_ms in nonsense:
        bench.look(1_000, until_ms)
        assert not bench.holds()
    assert bench.records == []


def test_a_job_that_does_not_stand_still_goes_on_and_the_same_order_is_not_tried_again(bench: PauserBench) -> None:
    bench.job.is_stuck = True
    for now_ms in range(1_000, 5_900, 100):
        bench.look(now_ms, 60_000)
    assert bench.records == []
    record = bench.look(6_000, 60_000)
    assert "did not all stand still" in record["failure"]
    assert (record["since_boot_ms"], record["changes"], record["failed_until_boot_ms"]) == (0, 0, 60_000)
    bench.job.is_stuck = False
    bench.look(6_100, 60_000)
    assert not bench.holds()
    assert bench.look(6_200, 61_000)["since_boot_ms"] == 6_200


def test_a_full_disk_pauses_nobody_and_says_so_as_soon_as_it_can(bench: PauserBench) -> None:
    bench.is_disk_full = True
    bench.look(1_000, 9_000)
    assert not bench.holds()
    bench.is_disk_full = False
    record = bench.look(1_100, 9_000)
    assert not bench.holds()
    assert "takes no record" in record["failure"]


def test_the_end_of_a_pause_is_written_when_the_disk_takes_it(bench: PauserBench) -> None:
    bench.look(1_000, 9_000)
    bench.is_disk_full = True
    assert bench.look(3_000)["since_boot_ms"] == 1_000
    assert not bench.holds()
    bench.is_disk_full = False
    assert (bench.look(3_100)["since_boot_ms"], bench.records[-1]["paused_ms"]) == (0, 2_000)


@pytest.fixture(params=["version_1", "version_2"])
def group(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Files of one group as each version of the kernel shows them."""
    if request.param == "version_1":
        (tmp_path / "freezer.state").write_text("THAWED")
        yield tmp_path / "freezer.state"
    else:
        (tmp_path / "cgroup.events").write_text("populated 1\nfrozen 0\n")
        (tmp_path / "cgroup.freeze").write_text("0")
        yield tmp_path / "cgroup.freeze"


def test_a_group_is_frozen_in_the_words_of_its_version_and_counts_when_the_kernel_says_so(group: Path) -> None:
    bench = PauserBench(str(group))
    words = {"freezer.state": ("FREEZING", "FROZEN", "THAWED"), "cgroup.freeze": ("1", "1", "0")}[group.name]
    if group.name == "freezer.state":
        group.unlink()
        group.symlink_to("/dev/null")  # takes the word, and never says that it is done
    bench.look(1_000, 9_000)
    assert bench.records == []
    assert bench.job.frozen_files == (str(group.parent / "cgroup.procs"),)
    if group.name == "freezer.state":
        group.unlink()
        group.write_text("THAWED")
    else:
        assert group.read_text() == words[0]
        (group.parent / "cgroup.events").write_text("populated 1\nfrozen 1\n")
    assert bench.look(1_100, 9_000)["since_boot_ms"] == 1_000
    assert group.read_text() == words[1]
    bench.look(2_000)
    assert group.read_text() == words[2]


def test_a_group_that_does_not_thaw_is_thawed_until_it_does(group: Path) -> None:
    (group.parent / "cgroup.events").write_text("frozen 1\n")
    bench = PauserBench(str(group))
    bench.look(1_000, 9_000)
    group.rename(group.with_name("away"))
    group.mkdir()  # what cannot be written to
    bench.look(2_000)
    group.rmdir()
    group.with_name("away").rename(group)
    assert group.read_text() in ("1", "FROZEN")
    bench.look(2_100)
    assert group.read_text() in ("0", "THAWED")


def test_without_a_usable_group_the_whole_job_is_held_by_signals(tmp_path: Path) -> None:
    for path in ("", str(tmp_path / "cgroup.freeze"), str(tmp_path / "some other file")):
        bench = PauserBench(path)
        bench.look(1_000, 9_000)
        assert bench.holds()
        assert bench.job.frozen_files == ()


def test_the_record_is_plain_json(bench: PauserBench) -> None:
    assert json.loads(json.dumps(bench.look(1_000, 9_000)))["changes"] == 1
