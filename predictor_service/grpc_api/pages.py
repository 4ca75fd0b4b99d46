"""Lists in pages: the token is the last place of the page before, so that it survives what is added meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from predictor_service.errors import invalid_field

PAGE_SIZE_DEFAULT: Final = 50
PAGE_SIZE_MAX: Final = 1_000

Row = TypeVar("Row")


def cut_page(
    rows: Iterable[Row], place_of: Callable[[Row], str], page_size: int, page_token: str
) -> tuple[list[Row], str]:
    """Returns one page, and the token of the next one; empty when there is none.

    Args:
        rows: Of the whole list, in any order.
        place_of: Different for every row; the list is sorted by it.
        page_size: Rows wanted; 0 = `PAGE_SIZE_DEFAULT`.
        page_token: Of the page before; empty = the first page.

    Raises:
        InvalidRequestError: The page size is outside its range.
    """
    if not 0 <= page_size <= PAGE_SIZE_MAX:
        raise invalid_field("page_size", f"it is {page_size}", f"use 0 (= {PAGE_SIZE_DEFAULT}) to {PAGE_SIZE_MAX}")
    left = sorted(((place, row) for row in rows if (place := place_of(row)) > page_token), key=lambda item: item[0])
    page = left[: page_size or PAGE_SIZE_DEFAULT]
    return [row for _, row in page], page[-1][0] if len(page) < len(left) else ""
