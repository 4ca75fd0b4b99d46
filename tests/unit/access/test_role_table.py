"""The table of calls and roles is whole, and says of every call what its page says."""

from __future__ import annotations

import re
from pathlib import Path

from cotenant.access.roles import ROLE_MEANINGS, RPC_ROLES, Role, roles_of
from tests.support.callers import contract_files, served_methods

ROOT = Path(__file__).parents[3]


def test_every_method_of_every_service_is_decided_and_none_that_is_not_served() -> None:
    decided = {f"/{service}/{method}" for service, methods in RPC_ROLES.items() for method in methods}
    assert decided == set(served_methods())


def test_every_file_of_the_contract_is_looked_through() -> None:
    files = {f"cotenant/v1/{path.name}" for path in (ROOT / "protos/cotenant/v1").glob("*.proto")}
    with_services = {name for name in files if "\nservice " in (ROOT / "protos" / name).read_text()}
    assert with_services <= contract_files()


def test_a_method_that_the_table_lacks_is_nobodys() -> None:
    assert roles_of("/cotenant.v1.SchedulingService/NotYetWritten") == frozenset()
    assert roles_of("/another.Service/SubmitJob") == frozenset()
    assert roles_of("SubmitJob") == frozenset()


def test_only_health_is_answered_to_those_whom_nobody_knows() -> None:
    public = {method for method in served_methods() if roles_of(method) is None}
    assert {method.split("/")[1] for method in public} == {"grpc.health.v1.Health"}


def test_what_a_role_must_not_do_stays_so() -> None:
    may = {role: {m for m in served_methods() if (roles := roles_of(m)) is not None and role in roles} for role in Role}
    changing = {
        m for m in served_methods() if m.rpartition("/")[2] in ("SubmitJob", "CancelJob", "SetPolicy", "Connect")
    }
    assert may[Role.VIEWER] & changing == set()
    assert {m for m in may[Role.NODE] if m.startswith("/cotenant")} == {
        f"/cotenant.v1.NodeAgentService/{call}" for call in ("Connect", "FetchCheckpoint", "SendCheckpointPiece")
    }
    reporting = {role for role in Role if any(m.endswith("/RecordOutcomes") for m in may[role])}
    assert reporting == {Role.SCHEDULER, Role.OBSERVER, Role.ENGINE}
    windows = {role for role in Role if any(m.endswith("/RecordMeasurementWindows") for m in may[role])}
    assert windows == {Role.SCHEDULER, Role.OBSERVER}
    assert {role for role in Role if any(m.endswith("/SetPolicy") for m in may[role])} == {Role.OPERATOR}


def test_every_role_is_described() -> None:
    assert set(ROLE_MEANINGS) == set(Role)


def test_the_page_has_this_table() -> None:
    rows = re.findall(r"^\| (\w+) \| (`.+`) \| ([a-z ,]+) \|$", (ROOT / "docs/security.md").read_text(), re.MULTILINE)
    stated = {(service, call): who for service, calls, who in rows for call in re.findall(r"`(\w+)`", calls)}
    words = {None: "everyone who reaches the port", frozenset(Role): "all"}
    assert stated == {
        (service.rpartition(".")[2], method): words.get(roles) or ", ".join(r for r in Role if r in (roles or ()))
        for service, methods in RPC_ROLES.items()
        for method, roles in methods.items()
    }


def test_the_page_describes_every_role() -> None:
    text = (ROOT / "docs/security.md").read_text()
    assert [role for role, meaning in ROLE_MEANINGS.items() if f"| {role} | {meaning} |" not in text] == []
