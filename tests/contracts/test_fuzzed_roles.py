"""Whatever a role sends to whichever service: a status, no traceback, no flood, and nothing that its table forbids."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.fuzzed_roles import fuzz_role
from cotenant.access import callers
from cotenant.access.roles import Role
from scheduler_service.grpc_api import visibility
from tests.support.fuzzed_roles import SERVICES, check_tally

CALLS = 60


# The predictor's is among its other tests of roles, which have trained one.
@pytest.mark.parametrize("service", sorted(SERVICES.keys() - {"predictor"}))
@pytest.mark.parametrize("role", Role)
def test_random_calls_of_a_role_reach_nothing_that_its_table_forbids(tmp_path: Path, service: str, role: Role) -> None:
    tally = fuzz_role(tmp_path, service, role, calls=CALLS)
    check_tally(tally, calls=CALLS)


def test_a_service_that_does_not_look_at_its_table_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler_service.grpc_api.access_interceptor.check_permitted", lambda *_: None)
    tally = fuzz_role(tmp_path, "scheduler", Role.NODE, calls=CALLS)
    assert tally.forbidden_reached > 0


def test_a_service_that_shows_everybody_everything_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visibility, "may_see", lambda *_: True)
    monkeypatch.setattr("scheduler_service.grpc_api.scheduling_servicer.may_see", lambda *_: True)
    assert fuzz_role(tmp_path, "scheduler", Role.USER, calls=10 * CALLS).leaked > 0


def test_a_service_that_lets_everybody_cancel_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers.Caller, "acts_for_all", property(lambda _: True))
    assert fuzz_role(tmp_path, "scheduler", Role.USER, calls=3 * CALLS).forbidden_changed > 0


def test_a_service_that_fails_inside_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler_service.grpc_api.validation.job_id_violations", lambda _: 1 / 0)
    assert fuzz_role(tmp_path, "scheduler", Role.OPERATOR, calls=CALLS).tracebacks > 0
