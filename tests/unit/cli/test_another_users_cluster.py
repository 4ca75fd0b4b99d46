"""On a shared machine the usual ports may be those of another user's `cotenant up`."""

from __future__ import annotations

import pytest
from google.rpc import code_pb2  # type: ignore[import-untyped]

from cotenant import client_errors
from tests.support.cli_cluster import CommandLine
from tests.support.fake_services import FakeScheduler


@pytest.mark.parametrize("is_here", [True, False])
def test_a_service_here_that_knows_nobody_of_this_account_may_be_another_users_and_none_elsewhere(
    is_here: bool, cotenant: CommandLine, scheduler: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_here:
        monkeypatch.setattr(client_errors, "_LOOPBACK", ("192.0.2.",))
    said, remedy = "this service answers callers that it knows only", "show a token (--token-file)"
    scheduler.refusals["ListJobs"] = (code_pb2.UNAUTHENTICATED, said, "UNIDENTIFIED_CALLER", remedy)
    outcome = cotenant("ps")
    told = " ".join(outcome.err.split())
    assert f"{said} [UNIDENTIFIED_CALLER]" in told
    more = f"{remedy}; if your `cotenant up` has a --state-dir, set COTENANT_STATE_DIR to it; if it is another user's"
    assert (more in told, "cotenant up" in told) == (is_here, is_here)
