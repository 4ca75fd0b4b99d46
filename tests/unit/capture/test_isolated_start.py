"""The overlay of a capture is laid over folders in which other programs go on working."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cotenant.capture.isolated_start import _Overlays

SYS_ADMIN = 21


def may_mount() -> bool:
    """Whether this process has the power for it, which a capture has in a namespace of its own."""
    powers = Path("/proc/self/status").read_text().partition("CapEff:")[2].split()[0]
    return bool(int(powers, 16) >> SYS_ADMIN & 1)


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_what_is_deleted_between_listing_and_laying_is_left_out(kind: str, tmp_path: Path) -> None:
    if kind == "file" and not may_mount():
        pytest.skip("without the power to mount the kernel refuses before it looks for the file")
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
