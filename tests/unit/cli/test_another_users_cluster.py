"""On a shared machine the usual ports may be those of another user's `cotenant up`."""

from __future__ import annotations

from google.rpc import code_pb2  # type: ignore[import-untyped]

from tests.support.cli_cluster import CommandLine
from tests.support.fake_services import FakeScheduler


def test_a_service_here_that_knows_nobody_of_this_account_may_be_another_users(
    cotenant: CommandLine, scheduler: FakeScheduler
) -> None:
    said, remedy = "this service answers callers that it knows only", "show a token (--token-file)"
    scheduler.refusals["ListJobs"] = (code_pb2.UNAUTHENTICATED, said, "UNIDENTIFIED_CALLER", remedy)
    outcome = cotenant("ps")
    told = " ".join(outcome.err.split())
    assert f"{said} [UNIDENTIFIED_CALLER]" in told
    assert f"{remedy}; if your `cotenant up` has a --state-dir, set COTENANT_STATE_DIR to it; if it is another" in told
