"""Text files of profiles, plain or gzip; of a compressed one no more is unpacked than a plain one may have."""

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
            yield io.TextIOWrapper(io.BytesIO(_unpack(path)), encoding="utf-8-sig", newline="")
        else:
            with path.open(newline="", encoding="utf-8-sig") as file:
                yield file
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


def _unpack(path: Path) -> bytes:
    try:
        with gzip.open(path) as file:
            content = file.read(TEXT_BYTES_MAX + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise TextError(f"is not a whole gzip file: {error}") from error
    if len(content) > TEXT_BYTES_MAX:
        raise TextError(f"unpacks to more than {TEXT_BYTES_MAX:,} bytes")
    return content
