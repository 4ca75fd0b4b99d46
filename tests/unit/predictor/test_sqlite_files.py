"""Every SQLite file of the predictor is refused in one way when it is none, or cannot be opened."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from predictor_service.errors import StoreFormatError, StoreFullError
from predictor_service.outcome_journal import OutcomeJournal
from predictor_service.profile_store.store import ProfileStore
from predictor_service.registry.version_history import VersionHistory
from predictor_service.sqlite_files import open_database, open_for_reading

FILES: list[Callable[[Path], object]] = [OutcomeJournal, ProfileStore, VersionHistory]


@pytest.mark.parametrize("opened", FILES)
@pytest.mark.parametrize("content", [b"no database at all, but a text of some length", b"\0" * 5000])
def test_a_file_that_is_no_database_is_refused_with_a_remedy(
    tmp_path: Path, opened: Callable[[Path], object], content: bytes
) -> None:
    path = tmp_path / "file.sqlite"
    path.write_bytes(content)
    with pytest.raises(StoreFormatError, match="move it away"):
        opened(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("opened", FILES)
def test_a_folder_that_takes_no_file_is_named(tmp_path: Path, opened: Callable[[Path], object]) -> None:
    with pytest.raises(StoreFullError, match="absent"):
        opened(tmp_path / "absent" / "file.sqlite")


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_only_the_owner_reads_what_is_asked_and_measured(tmp_path: Path, umask: int) -> None:
    tmp_path.chmod(0o755)
    before = os.umask(umask)
    try:
        (tmp_path / "old.sqlite").touch(mode=0o666)
        for name in ("new.sqlite", "old.sqlite"):
            with closing(open_database(tmp_path / name, schema="CREATE TABLE t (x)")) as connection:
                connection.execute("INSERT INTO t VALUES (1)")
                modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.glob(f"{name}*")}
                assert set(modes) == {name, f"{name}-wal", f"{name}-shm"}
                assert set(modes.values()) == {0o600}
    finally:
        os.umask(before)


def test_a_file_is_read_whose_writer_ends_at_that_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the write-ahead log away between the looks whether there is one, and how long."""
    path = tmp_path / "file.sqlite"
    with closing(open_database(path, schema="CREATE TABLE t (x)")) as connection:
        connection.execute("INSERT INTO t VALUES (1)")
    monkeypatch.setattr(Path, "exists", lambda _: True)
    with closing(open_for_reading(path)) as connection:
        assert connection.execute("SELECT x FROM t").fetchall() == [(1,)]
