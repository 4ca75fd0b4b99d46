"""Pages of lists: a token comes from any client."""

from __future__ import annotations

import base64

import pytest

from scheduler_service.errors import InvalidRequestError
from scheduler_service.grpc_api.pages import page
from tests.support.cases import for_each


def listed(token: str) -> tuple[list[str], str]:
    return page(["job-3", "job-2"], size=1, token=token, place_of=str, is_after=lambda place, last: place < last)


def token_of(place: str) -> str:
    return base64.urlsafe_b64encode(f"1:{place}".encode()).decode()


def test_a_page_ends_where_the_next_one_begins() -> None:
    (first, token), (second, end) = listed(""), listed(token_of("job-3"))
    assert (first, second, token, end) == (["job-3"], ["job-2"], token_of("job-3"), "")


@for_each("token", ["nonsense", "\u00e9", token_of(""), token_of("9" * 5_000), token_of("a b")])
def test_a_token_that_was_never_issued_is_refused(token: str) -> None:
    with pytest.raises(InvalidRequestError, match="page_token"):
        listed(token)
