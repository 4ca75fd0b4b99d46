"""Pages of lists: a token comes from any client."""

from __future__ import annotations

import base64

import pytest

from cotenant.v1 import scheduling_pb2
from scheduler_service.errors import InvalidRequestError
from scheduler_service.grpc_api import pages
from scheduler_service.grpc_api.pages import cut_to_bytes, page
from tests.support.cases import for_each


def listed(token: str) -> tuple[list[str], str]:
    return page(["job-3", "job-2"], size=1, token=token, place_of=str, is_after=lambda place, last: place < last)


def token_of(place: str) -> str:
    return base64.urlsafe_b64encode(f"1:{place}".encode()).decode()


def test_a_page_ends_where_the_next_one_begins() -> None:
    (first, token), (second, end) = listed(""), listed(token_of("job-3"))
    assert (first, second, token, end) == (["job-3"], ["job-2"], token_of("job-3"), "")


def test_a_page_of_large_messages_is_cut_and_the_next_one_goes_on_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(bytes_max: int) -> tuple[list[str], str]:
        monkeypatch.setattr(pages, "PAGE_BYTES_MAX", bytes_max)
        kept, token = cut_to_bytes(jobs, "", wanted=5, place_of=lambda job: job.job_id)
        return [job.job_id for job in kept], token

    jobs = [scheduling_pb2.Job(job_id=f"job-{number}", exit_detail="x" * 1_000) for number in range(5, 0, -1)]
    assert cut(10_000) == (["job-5", "job-4", "job-3", "job-2", "job-1"], "")
    assert cut(2_500) == (["job-5", "job-4"], token_of("job-4"))
    assert cut(10) == (["job-5"], token_of("job-5"))
    del jobs[2:]
    assert cut(10_000) == (["job-5", "job-4"], token_of("job-4")), "what was not made comes with the next page"


@for_each("token", ["nonsense", "\u00e9", token_of(""), token_of("9" * 5_000), token_of("a b")])
def test_a_token_that_was_never_issued_is_refused(token: str) -> None:
    with pytest.raises(InvalidRequestError, match="page_token"):
        listed(token)
