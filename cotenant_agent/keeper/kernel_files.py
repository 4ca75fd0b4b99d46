"""Writes to files of the kernel, where a missing file is a missing ability; like the shim, standard library only."""

from __future__ import annotations

import os


def try_write(path: str | os.PathLike[str], text: str) -> bool:
    """Write to a file that exists, never create one; whether the kernel took it."""
    try:
        descriptor = os.open(path, os.O_WRONLY)
    except OSError:
        return False
    try:
        os.write(descriptor, text.encode())
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
