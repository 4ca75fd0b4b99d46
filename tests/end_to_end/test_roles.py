"""The scheduler answers each role what the table allows, and each user about own jobs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from cotenant.access.roles import Role, roles_of
from cotenant.access.tokens import (
    add_token,
    issue_token,
    read_token,
    revoke_tokens,
    token_metadata,
    write_token_list,
)
from cotenant.v1 import scheduling_pb2, scheduling_pb2_grpc
from tests.support.callers import code_of_empty_call, metadata_of, served_methods
from tests.support.grpc_errors import code_of, details_of
from tests.support.loaded_programs import run_program
from tests.support.scheduler_process import SchedulerProcess, job_spec, wait_until

TEAM = {"erin": Role.USER, "frank": Role.USER, "vision": Role.USER}
NAMES = {"alice": Role.USER, "bob": Role.USER, **TEAM, **{f"{role}": role for role in Role}}
SCHEDULER = [
    name for name in served_methods() if "Prediction" not in name and "Model" not in name and "reflection" not in name
]
SECRET = "only-alice-knows"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("roles")
    entries = [issue_token(folder / f"{name}.token", role, name) for name, role in NAMES.items()]
    write_token_list(folder / "callers", entries)
    return folder


@pytest.fixture(scope="module")
def scheduler(folder: Path) -> Iterator[SchedulerProcess]:
    (folder / "private").mkdir(mode=0o700)
    arguments = ["--predictor", "", "--policy", "fifo", "--callers-file", str(folder / "callers")]
    arguments += ["--socket", str(folder / "private" / "s"), "--tenants", str(folder / "tenants.toml")]
    (folder / "tenants.toml").write_text(
        '[tenants.vision]\nusers = ["erin", "frank"]\n[tenants.speech]\nusers = ["frank"]\n'
    )
    with SchedulerProcess(folder, arguments=arguments) as process:
        yield process


@pytest.fixture(scope="module")
def channel(scheduler: SchedulerProcess) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(scheduler.address) as opened:
        yield opened


class Caller:
    """One caller with a token."""

    def __init__(self, channel: grpc.Channel, folder: Path, name: str) -> None:
        self._stub = scheduling_pb2_grpc.SchedulingServiceStub(channel)
        self._metadata = (token_metadata(read_token(folder / f"{name}.token")),)

    def ask(self, method: str, request: Any) -> Any:
        return getattr(self._stub, method)(request, timeout=90, metadata=self._metadata)

    def submit(self, *, request_id: str = "", **fields: Any) -> scheduling_pb2.Job:
        spec = job_spec(environment={"KEY": SECRET}, **fields)
        return self.ask("SubmitJob", scheduling_pb2.SubmitJobRequest(spec=spec, request_id=request_id)).job  # type: ignore[no-any-return]

    def refusal(self, method: str, request: Any) -> tuple[grpc.StatusCode, str]:
        with pytest.raises(grpc.RpcError) as caught:
            list(self.ask(method, request))
        return code_of(caught.value), details_of(caught.value)

    def seen(self) -> dict[str, scheduling_pb2.Job]:
        jobs = self.ask("ListJobs", scheduling_pb2.ListJobsRequest(page_size=1000)).jobs
        return {job.job_id: job for job in jobs}

    def watched(self) -> dict[str, scheduling_pb2.Job]:
        found: dict[str, scheduling_pb2.Job] = {}
        for message in self.ask("WatchJobs", scheduling_pb2.WatchJobsRequest(in_batches=True)):
            if message.snapshot_end:
                break
            found |= {job.job_id: job for job in message.jobs}
        return found


@pytest.fixture
def callers(channel: grpc.Channel, folder: Path) -> dict[str, Caller]:
    return {name: Caller(channel, folder, name) for name in NAMES}


@pytest.mark.parametrize("method", SCHEDULER)
def test_each_role_gets_through_where_the_table_lets_it(channel: grpc.Channel, folder: Path, method: str) -> None:
    roles = roles_of(method)
    refused = set()
    for role in Role:
        code, told = code_of_empty_call(channel, method, metadata_of(folder, role))
        if code is grpc.StatusCode.PERMISSION_DENIED:
            assert "needs the role" in told
            assert "cotenant certs issue" in told
            refused.add(role)
    assert refused == (set() if roles is None else set(Role) - roles)
    nobody, _ = code_of_empty_call(channel, method, None)
    assert (nobody is grpc.StatusCode.UNAUTHENTICATED) == (roles is not None)


def test_the_identity_gives_owner_and_tenant_not_the_request(callers: dict[str, Caller]) -> None:
    job = callers["alice"].submit()
    assert (job.spec.owner, job.spec.tenant) == ("alice", "alice")
    for field in ("owner", "tenant"):
        request = scheduling_pb2.SubmitJobRequest(spec=job_spec(**{field: "bob"}))
        code, told = callers["alice"].refusal("SubmitJob", request)
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert f"leave the {field} out" in told
    for_bob = callers["operator"].submit(owner="bob", tenant="team")
    assert (for_bob.spec.owner, for_bob.spec.tenant) == ("bob", "team")
    assert callers["operator"].submit().spec.owner == "operator"
    for owner in ("a" * 64, "bob\n", "../bob"):
        request = scheduling_pb2.SubmitJobRequest(spec=job_spec(owner=owner))
        assert callers["operator"].refusal("SubmitJob", request)[0] is grpc.StatusCode.INVALID_ARGUMENT


def test_several_users_are_one_tenant_and_one_user_is_of_two(callers: dict[str, Caller]) -> None:
    assert [callers[name].submit().spec.tenant for name in ("erin", "frank", "alice")] == ["vision", "vision", "alice"]
    assert callers["frank"].submit(tenant="speech").spec.tenant == "speech"
    assert callers["erin"].submit(tenant="vision").spec.owner == "erin"
    for name, tenant in (("erin", "speech"), ("frank", "frank"), ("alice", "vision")):
        request = scheduling_pb2.SubmitJobRequest(spec=job_spec(tenant=tenant))
        code, told = callers[name].refusal("SubmitJob", request)
        assert (code, "leave the tenant out" in told) == (grpc.StatusCode.PERMISSION_DENIED, True)
    code, told = callers["vision"].refusal("SubmitJob", scheduling_pb2.SubmitJobRequest(spec=job_spec()))
    assert (code, "--tenants file" in told) == (grpc.StatusCode.PERMISSION_DENIED, True)


def test_an_edit_of_the_tenants_holds_without_a_restart_and_a_broken_one_leaves_them(
    scheduler: SchedulerProcess, folder: Path, callers: dict[str, Caller]
) -> None:
    file = folder / "tenants.toml"
    before = file.read_text()

    def tenant_of_alice() -> str:
        return callers["alice"].submit().spec.tenant

    file.write_text(before + "gpus = four\n")
    wait_until(lambda: "list_not_read" in scheduler.log_file.read_text(), what="the broken edit is told of")
    assert (tenant_of_alice(), callers["erin"].submit().spec.tenant) == ("alice", "vision")
    file.write_text(before.replace('"erin"', '"erin", "alice"'))
    wait_until(lambda: tenant_of_alice() == "vision", what="another user is one of the tenant's")
    file.write_text(before)
    wait_until(lambda: tenant_of_alice() == "alice", what="the user is that no more")


def test_a_job_that_an_operator_submitted_for_a_user_is_handed_in_again_by_that_user(
    callers: dict[str, Caller],
) -> None:
    job_id = callers["operator"].submit(owner="alice", tenant="team").job_id
    callers["alice"].ask("CancelJob", scheduling_pb2.CancelJobRequest(job_id=job_id))
    again = callers["alice"].ask("RetryJob", scheduling_pb2.RetryJobRequest(job_id=job_id)).job
    assert (again.spec.owner, again.spec.tenant, again.spec.retry_of) == ("alice", "team", job_id)
    code, _ = callers["bob"].refusal("RetryJob", scheduling_pb2.RetryJobRequest(job_id=job_id))
    assert code is grpc.StatusCode.PERMISSION_DENIED
    callers["alice"].ask("CancelJob", scheduling_pb2.CancelJobRequest(job_id=again.job_id))
    told = callers["alice"].ask("ExplainJob", scheduling_pb2.ExplainJobRequest(job_id=again.job_id)).history
    assert ("cancel", "by user alice") in [(line.kind, line.message) for line in told]


def test_a_caller_is_let_in_and_kept_out_while_the_scheduler_runs(
    channel: grpc.Channel, folder: Path, callers: dict[str, Caller]
) -> None:
    add_token(folder / "callers", folder / "dave.token", Role.USER, "dave")
    dave = Caller(channel, folder, "dave")

    def is_known() -> bool:
        try:
            dave.seen()
        except grpc.RpcError as error:
            return code_of(error) is not grpc.StatusCode.UNAUTHENTICATED
        return True

    wait_until(is_known, what="the new token is known")
    watching = dave.ask("WatchJobs", scheduling_pb2.WatchJobsRequest(in_batches=True))
    while not next(watching).snapshot_end:
        pass
    revoke_tokens(folder / "callers", ["dave"])
    wait_until(lambda: not is_known(), what="the revoked token is unknown")
    callers["operator"].submit(owner="dave", tenant="dave")
    with pytest.raises(grpc.RpcError) as ended:
        list(watching)
    assert code_of(ended.value) is grpc.StatusCode.UNAUTHENTICATED


def test_a_user_sees_and_changes_own_jobs_only(callers: dict[str, Caller]) -> None:
    job_id = callers["alice"].submit().job_id
    assert callers["alice"].seen()[job_id].spec.environment["KEY"] == SECRET
    assert job_id in callers["alice"].watched()
    assert job_id not in callers["bob"].seen()
    assert job_id not in callers["bob"].watched()
    for method, request in (
        ("GetJob", scheduling_pb2.GetJobRequest(job_id=job_id)),
        ("ExplainJob", scheduling_pb2.ExplainJobRequest(job_id=job_id)),
        ("CancelJob", scheduling_pb2.CancelJobRequest(job_id=job_id)),
        ("PauseJob", scheduling_pb2.PauseJobRequest(job_id=job_id)),
        ("ResumeJob", scheduling_pb2.ResumeJobRequest(job_id=job_id)),
        ("ReadJobLog", scheduling_pb2.ReadJobLogRequest(job_id=job_id)),
        ("WatchJobs", scheduling_pb2.WatchJobsRequest(job_ids=[job_id])),
    ):
        code, told = callers["bob"].refusal(method, request)
        assert (method, code) == (method, grpc.StatusCode.PERMISSION_DENIED)
        assert "another user's" in told
        assert SECRET not in told
    cancelled = callers["operator"].ask("CancelJob", scheduling_pb2.CancelJobRequest(job_id=job_id)).job
    assert cancelled.phase == scheduling_pb2.JOB_PHASE_CANCELLED


def test_an_environment_is_its_owners_alone_and_a_viewer_sees_no_arguments(callers: dict[str, Caller]) -> None:
    job_id = callers["alice"].submit(command=["python", "--password", SECRET]).job_id
    request = scheduling_pb2.GetJobRequest(job_id=job_id)
    shown = {name: callers[name].ask("GetJob", request).job.spec for name in ("alice", "operator", "viewer")}
    assert {name: spec.environment["KEY"] for name, spec in shown.items()} == {
        "alice": SECRET, "operator": "(hidden)", "viewer": "(hidden)",
    }  # fmt: skip
    assert list(shown["viewer"].command) == ["python", "(hidden)"]
    for seen in (
        callers["viewer"].seen()[job_id],
        callers["viewer"].watched()[job_id],
        callers["viewer"].ask("ExplainJob", scheduling_pb2.ExplainJobRequest(job_id=job_id)).job,
    ):
        assert SECRET not in str(seen)


def test_a_repeated_request_id_of_another_user_tells_nothing(callers: dict[str, Caller]) -> None:
    job_id = callers["alice"].submit(request_id="r-1").job_id
    assert callers["alice"].submit(request_id="r-1").job_id == job_id
    request = scheduling_pb2.SubmitJobRequest(spec=job_spec(environment={"KEY": SECRET}), request_id="r-1")
    code, told = callers["bob"].refusal("SubmitJob", request)
    assert code is grpc.StatusCode.ALREADY_EXISTS
    assert job_id not in told
    cancel = scheduling_pb2.CancelJobRequest(job_id=job_id, request_id="r-2")
    callers["alice"].ask("CancelJob", cancel)
    assert callers["bob"].refusal("CancelJob", cancel)[0] is grpc.StatusCode.PERMISSION_DENIED


def test_the_private_socket_is_the_owners(scheduler: SchedulerProcess, folder: Path) -> None:
    socket = folder / "private" / "s"
    assert socket.stat().st_mode & 0o777 == 0o600
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        stub = scheduling_pb2_grpc.SchedulingServiceStub(channel)
        stub.SetPolicy(scheduling_pb2.SetPolicyRequest(policy="fifo", validate_only=True), timeout=90)


def test_the_log_says_who_did_what(scheduler: SchedulerProcess, callers: dict[str, Caller]) -> None:
    job_id = callers["alice"].submit(name="audited").job_id
    callers["operator"].ask("CancelJob", scheduling_pb2.CancelJobRequest(job_id=job_id))
    words = ["audit", "--state-dir", str(scheduler.state_dir), "-o", "json"]
    done = run_program("scheduler_service", words, folder=Path.cwd(), environment=os.environ, timeout_s=60)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    found = [(line["role"], line["name"], line["address"], line["did"]) for line in lines if line["about"] == job_id]
    assert found == [("user", "alice", "127.0.0.1", "submit"), ("operator", "operator", "127.0.0.1", "cancel")]
    assert SECRET not in done.stdout


def test_no_call_of_a_stranger_leaves_a_traceback_in_the_log(
    scheduler: SchedulerProcess, channel: grpc.Channel
) -> None:
    for method in served_methods():
        if "Health" in method:
            code, told = code_of_empty_call(channel, method, None, content=b"\xff")
            assert code is grpc.StatusCode.INVALID_ARGUMENT, (method, told)
    assert code_of_empty_call(channel, "/grpc.health.v1.Health/List", None)[0] is grpc.StatusCode.UNIMPLEMENTED
    assert "Traceback" not in scheduler.log_file.read_text()


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="root plays another user with setpriv")
def test_another_account_is_refused_on_socket_and_port(scheduler: SchedulerProcess, folder: Path) -> None:
    script = (
        "import sys, grpc; from cotenant.v1 import scheduling_pb2 as m, scheduling_pb2_grpc as s\n"
        "try: s.SchedulingServiceStub(grpc.insecure_channel(sys.argv[1])).ListJobs(m.ListJobsRequest(), timeout=90)\n"
        "except grpc.RpcError as error: print(error.code().name)"
    )
    told = []
    for address in (f"unix:{folder / 'private' / 's'}", scheduler.address):
        command = ["setpriv", "--reuid", "65534", "--clear-groups", sys.executable, "-c", script, address]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
        assert done.returncode == 0, done.stderr
        told.append(done.stdout.strip())
    assert told == ["UNAVAILABLE", "UNAUTHENTICATED"]
