"""The overlay of a capture is laid over folders in which other programs go on working."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cotenant.capture.isolated_start import _Overlays


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_what_is_deleted_between_listing_and_laying_is_left_out(kind: str, tmp_path: Path) -> None:
    place, root = tmp_path / "place", tmp_path / "root"
    (place / "gone").mkdir(parents=True)
    root.mkdir()
    if kind == "file":
        (place / "gone").rmdir()
        (place / "gone").touch()
    with os.scandir(place) as found:
        entry = next(found)
    assert (entry.is_dir(), entry.is_file()) == (kind == "folder", kind == "file")
    (place / "gone").rmdir() if kind == "folder" else (place / "gone").unlink()
    overlays = _Overlays(root, tmp_path / "stage", [f"{place}/other"])
    (root / str(place)[1:]).mkdir(parents=True)
    overlays._lay_entry(entry, Path(f"{root}{entry.path}"))
