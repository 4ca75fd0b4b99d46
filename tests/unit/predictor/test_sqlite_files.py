"""Every SQLite file of the predictor is refused in one way when it is none, or cannot be opened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from predictor_service.errors import StoreFormatError, StoreFullError
from predictor_service.outcome_journal import OutcomeJournal
from predictor_service.profile_store.store import ProfileStore
from predictor_service.registry.version_history import VersionHistory

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
