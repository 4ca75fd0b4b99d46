"""The store keeps what it accepted, once, whole, within its bounds, and says what it did not accept."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from predictor_service.errors import StoreFormatError, StoreFullError
from predictor_service.profile_store import store as store_module
from predictor_service.profile_store.store import (
    DAY_MS,
    FORMAT_VERSION,
    HOUR_MS,
    KEEPS_NONE,
    ROWS_PER_JOB_HOUR_MAX,
    TOO_MANY,
    ProfileStore,
)
from tests.support.measurement_windows import NOW_MS, job, window


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ProfileStore]:
    with closing(ProfileStore(tmp_path / "profiles.sqlite")) as opened:
        yield opened


def ids(store: ProfileStore) -> list[str]:
    return [item.window.window_id for item in store.read() if item.window is not None]


def test_what_was_added_is_there_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "profiles.sqlite"
    added = window(1, others=(job(2), job(3, optimizer="adam")), quality_flags=("unsteady",), power_watts=61.5)
    with closing(ProfileStore(path)) as store:
        assert store.add([added], NOW_MS).recorded == 1
    with closing(ProfileStore(path)) as store:
        (stored,) = store.read()
    assert stored.window == added
    assert (stored.fault, stored.unknown) == ("", frozenset())


def test_an_id_counts_once_within_a_call_and_across_calls(store: ProfileStore) -> None:
    first = store.add([window(1), window(2), window(1)], NOW_MS)
    again = store.add([window(2), window(3)], NOW_MS)
    assert (first.recorded, first.repeated) == (2, 1)
    assert (again.recorded, again.repeated) == (1, 1)
    assert store.status().windows == 3


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"window_id": "alice"}, "not of its form"),
        ({"campaign": "collected_alice-pc"}, "not of its form"),
        ({"device": ""}, "device type is unknown"),
        ({"steps": 0}, "outside what a window can be"),
        ({"window_ms": 10}, "outside what a window can be"),
        ({"window_ms": 10**15}, "outside what a window can be"),
        ({"steps": 2, "window_ms": 20_000_000}, "a step of more than 3600 s"),
        ({"micro_batch_size": 17}, "micro-batch"),
        ({"utilization_ratio": 70.0}, "outside 0 to 1"),
        ({"utilization_ratio": float("nan")}, "outside 0 to 1"),
        ({"sm_activity_ratio": -0.1}, "outside 0 to 1"),
        ({"memory_peak_bytes": 10**15}, "times the memory"),
        ({"power_watts": float("inf")}, "W"),
        ({"quality_flags": ("alice was here",)}, "quality flag"),
        ({"others": tuple(job(number) for number in range(4))}, "more than 3 co-located jobs"),
        ({"job": job(0, dimension_bindings={"/home/alice/model": 3})}, "dimension binding"),
        ({"job": job(0, dimension_bindings={"tokens": 10**12})}, "dimension binding"),
    ],
)
def test_what_cannot_be_is_refused_with_a_reason_and_counted(
    store: ProfileStore, changes: dict[str, Any], reason: str
) -> None:
    added = store.add([window(1, **changes), window(2)], NOW_MS)
    ((_, found),) = added.refused
    assert reason in found
    assert added.recorded == 1
    assert store.status().refused == {found: 1}


def test_one_job_fills_an_hour_and_no_more(store: ProfileStore) -> None:
    many = [window(number) for number in range(ROWS_PER_JOB_HOUR_MAX + 3)]
    added = store.add(many, NOW_MS)
    assert added.recorded == ROWS_PER_JOB_HOUR_MAX
    assert [reason for _, reason in added.refused] == [TOO_MANY] * 3
    assert store.add([window(900, job=job(9))], NOW_MS).recorded == 1
    assert store.add([window(901)], NOW_MS + HOUR_MS).recorded == 1


def test_the_oldest_leave_when_there_are_too_many(tmp_path: Path) -> None:
    with closing(ProfileStore(tmp_path / "profiles.sqlite", rows_max=3)) as store:
        for number in range(5):
            store.add([window(number)], NOW_MS + number)
        assert ids(store) == [f"{number:032x}" for number in (2, 3, 4)]


def test_nothing_outlives_its_days(tmp_path: Path) -> None:
    with closing(ProfileStore(tmp_path / "profiles.sqlite", days=2)) as store:
        store.add([window(1)], NOW_MS)
        store.add([window(2)], NOW_MS + DAY_MS)
        store.prune(NOW_MS + 2 * DAY_MS + 1)
        assert ids(store) == [f"{2:032x}"]


def test_no_days_means_that_nothing_is_kept(tmp_path: Path) -> None:
    with closing(ProfileStore(tmp_path / "profiles.sqlite", days=0)) as store:
        added = store.add([window(1)], NOW_MS)
        assert added.refused == [(f"{1:032x}", KEEPS_NONE)]
        assert store.status().windows == 0


def test_what_is_forgotten_is_gone_from_the_disk_as_well(tmp_path: Path) -> None:
    path = tmp_path / "profiles.sqlite"
    gone, left = window(1, job=job(1)), window(2, job=job(2))
    with closing(ProfileStore(path)) as store:
        store.add([gone, left], NOW_MS)
        assert store.forget(job_key=gone.job.key) == 1
        on_disk = b"".join(file.read_bytes() for file in tmp_path.iterdir())
        assert gone.job.graph_sha256.encode() not in on_disk
        assert left.job.graph_sha256.encode() in on_disk
        assert store.forget(before_ms=NOW_MS) == 0
        assert store.forget(device="cpu-standin", before_ms=NOW_MS + 1) == 1
        assert store.forget() == 0


def test_a_full_disk_is_a_clear_error_and_what_was_there_stays(store: ProfileStore) -> None:
    store.add([window(1)], NOW_MS)
    (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
    store._connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreFullError, match="full") as caught:
        store.add([window(number, job=job(number)) for number in range(2, 100)], NOW_MS)
    assert caught.value.remedy
    assert ids(store) == [f"{1:032x}"]
    store._connection.execute("PRAGMA max_page_count = 1000000")
    assert store.add([window(2)], NOW_MS).recorded == 1


def test_a_file_of_the_format_before_is_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "profiles.sqlite"
    with closing(ProfileStore(path)) as store:
        store.add([window(1)], NOW_MS)
    with closing(sqlite3.connect(path)) as connection:  # as format 1 left it
        connection.executescript("DROP TABLE refusals; DROP INDEX stretches_by_time; PRAGMA user_version = 1")
    with closing(ProfileStore(path)) as store:
        assert ids(store) == [f"{1:032x}"]
        store.count_refused("a reason")
        assert store.status().refused == {"a reason": 1}
        assert store._connection.execute("PRAGMA user_version").fetchone() == (FORMAT_VERSION,)


def test_a_migration_that_fails_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "profiles.sqlite"
    with closing(ProfileStore(path)) as store:
        store.add([window(1)], NOW_MS)
    broken = (*store_module._MIGRATIONS, "CREATE TABLE half (a); CREATE TABLE stretches (a)")
    with monkeypatch.context() as patch:
        patch.setattr(store_module, "_MIGRATIONS", broken)
        patch.setattr(store_module, "FORMAT_VERSION", len(broken))
        with pytest.raises(StoreFormatError):
            ProfileStore(path)
    with closing(ProfileStore(path)) as store:
        assert ids(store) == [f"{1:032x}"]
        assert not store._connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'half'").fetchall()


def test_a_file_of_a_newer_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "profiles.sqlite"
    with closing(ProfileStore(path)) as store:
        store.add([window(1)], NOW_MS)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {FORMAT_VERSION + 1}")
    with pytest.raises(StoreFormatError, match="newer program") as caught:
        ProfileStore(path)
    assert "move the file away" in caught.value.remedy
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM stretches").fetchone() == (1,)
