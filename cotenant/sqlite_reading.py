"""SQLite files that are only read, by whom and wherever they were written."""

from __future__ import annotations

from pathlib import Path


def reading_uri(path: Path) -> str:
    """Returns how `sqlite3.connect(..., uri=True)` reads a file; one without a writer is not given files next to it.

    Args:
        path: The database.
    """
    options = "mode=ro&immutable=1" if _is_still(path) else "mode=ro"
    return f"{path.absolute().as_uri()}?{options}"


def _is_still(path: Path) -> bool:
    """Whether no program writes: the last one that closes the file empties the write-ahead log, or removes it."""
    try:
        return path.with_name(f"{path.name}-wal").stat().st_size == 0
    except FileNotFoundError:
        return True
