"""Lists that a service gives page by page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

LIST_PAGE_SIZE = 500
LIST_PAGE_LIMIT = 10_000
Item = TypeVar("Item")


def read_pages(read_page: Callable[[str], tuple[Sequence[Item], str]]) -> list[Item]:
    """Returns the items of all pages, of `LIST_PAGE_LIMIT` at most.

    Args:
        read_page: Takes a page's token ("" = the first page), returns its items and the next one ("" = none follows).
    """
    items: list[Item] = []
    token = ""
    for _ in range(LIST_PAGE_LIMIT):
        page, token = read_page(token)
        items.extend(page)
        if not token:
            break
    return items
