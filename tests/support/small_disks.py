"""File systems of a few hundred KiB, so that a test sees what becomes of a program when the disk is full."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def small_disk(mount: Path, options: str) -> Iterator[Path]:
    """Mount one; without root's rights the test is left out.

    Args:
        mount: Its folder, which is made where it is missing.
        options: Of the mount, e.g. "size=256k".
    """
    mount.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(mount)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs root")
    try:
        yield mount
    finally:
        subprocess.run(["umount", "--lazy", str(mount)], check=True)


def fill(ballast: Path) -> None:
    """Write a file until the disk takes no more."""
    with ballast.open("wb", buffering=0) as stream, suppress(OSError):
        while stream.write(b"x" * 512):
            pass
