"""Text files of profiles and tables, plain or gzip; no more is unpacked than a plain one may have."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

SUFFIX = ".gz"
TEXT_BYTES_MAX = 1 << 30


class TextError(ValueError):
    """The file is no text, damaged, or unpacks to too much; the message states which."""


@contextmanager
def open_to_read(path: Path) -> Iterator[TextIO]:
    """Opens a file; a byte order mark, which spreadsheets write, is no part of the text.

    Raises:
        TextError: While it is read: not UTF-8, not gzip although its name ends so, or larger than `TEXT_BYTES_MAX`.
        OSError: It cannot be opened.
    """
    try:
        if path.suffix == SUFFIX:
            yield io.TextIOWrapper(io.BytesIO(_read_bytes(path, TEXT_BYTES_MAX)), encoding="utf-8-sig", newline="")
        else:
            with path.open(newline="", encoding="utf-8-sig") as file:
                yield file
    except UnicodeDecodeError as error:
        raise TextError(f"is not UTF-8: {error}") from error


def read_text(path: Path, *, bytes_max: int) -> str:
    """Reads a whole file, plain or gzip, without its byte order mark.

    Args:
        path: Compressed where its name ends so.
        bytes_max: Most bytes of the text.

    Raises:
        TextError: Not UTF-8, not gzip although its name ends so, or larger.
        OSError: It cannot be read.
    """
    try:
        return _read_bytes(path, bytes_max).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TextError(f"is not UTF-8: {error}") from error


@contextmanager
def open_to_write(path: Path, *, is_packed: bool) -> Iterator[TextIO]:
    """Creates a file, by gzip where asked; then it carries neither name nor time, so that equal text is equal bytes."""
    if not is_packed:
        with path.open("w", newline="", encoding="utf-8") as file:
            yield file
        return
    with path.open("wb") as raw, gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed:
        text = io.TextIOWrapper(packed, encoding="utf-8", newline="")
        yield text
        text.flush()


def _read_bytes(path: Path, bytes_max: int) -> bytes:
    is_packed = path.suffix == SUFFIX
    try:
        with gzip.open(path) if is_packed else path.open("rb") as file:
            content = file.read(bytes_max + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise TextError(f"is not a whole gzip file: {error}") from error
    if len(content) > bytes_max:
        raise TextError(f"{'unpacks to' if is_packed else 'has'} more than {bytes_max:,} bytes")
    return content
