"""Pages of files that a process has mapped and read, so that a process forked from it can hold them as well.

A fork copies what a process wrote. Code and constants of libraries are left to be found again, so a forked process
holds less than one that did the same from its start, until it reads them.
"""

from __future__ import annotations

import ctypes
import io
import mmap
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

_MAPS: Final = Path("/proc/self/maps")
_PAGEMAP: Final = Path("/proc/self/pagemap")
_ENTRY_BYTES: Final = 8
_PIECE_PAGES: Final = 512
_PRESENT: Final = 1 << 63
"""Of a page's entry in pagemap (proc(5)): it is in memory and mapped here."""


def present_pages() -> list[range]:
    """Return the addresses of the readable pages of files that this process holds now, one range per run of pages.

    It reads piece by piece: larger pieces would leave holes in the heap, which forked processes would count as theirs.

    Raises:
        OSError: The kernel does not tell.
    """
    found: list[range] = []
    with _PAGEMAP.open("rb", buffering=0) as pagemap:
        for begin, end in _file_mappings():
            for piece in range(begin, end, _PIECE_PAGES * mmap.PAGESIZE):
                for address in _present_in(pagemap, piece, min(end, piece + _PIECE_PAGES * mmap.PAGESIZE)):
                    if found and found[-1].stop == address:
                        found[-1] = range(found[-1].start, address + mmap.PAGESIZE, mmap.PAGESIZE)
                    else:
                        found.append(range(address, address + mmap.PAGESIZE, mmap.PAGESIZE))
    return found


def read_pages(runs: Iterable[range]) -> None:
    """Read a byte of every page, so that this process holds it.

    Args:
        runs: Of pages that are mapped here, as `present_pages` gave them before a fork.
    """
    for addresses in runs:
        for address in addresses:
            ctypes.string_at(address, 1)


def _present_in(pagemap: io.FileIO, begin: int, end: int) -> Iterator[int]:
    """Addresses of the pages between two addresses that this process holds."""
    pagemap.seek(begin // mmap.PAGESIZE * _ENTRY_BYTES)
    entries = array("Q", pagemap.read((end - begin) // mmap.PAGESIZE * _ENTRY_BYTES))
    return (begin + place * mmap.PAGESIZE for place, entry in enumerate(entries) if entry & _PRESENT)


def _file_mappings() -> Iterator[tuple[int, int]]:
    """Begin and end of each readable mapping of a file."""
    with _MAPS.open(encoding="utf-8") as lines:
        for line in lines:
            span, permissions, _, _, inode = line.split(maxsplit=5)[:5]
            if inode != "0" and permissions.startswith("r"):
                begin, end = (int(address, 16) for address in span.split("-"))
                yield begin, end
