"""Where settings come from, and what the commands around the state do."""

from __future__ import annotations

import asyncio
import json
import shlex
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry

from cotenant.addresses import is_loopback
from cotenant.client_errors import InputError
from scheduler_service.adapters.storage.event_log import LogRecord
from scheduler_service.adapters.storage.sqlite_event_log import SqliteEventLog
from scheduler_service.adapters.storage.state_backup import back_up
from scheduler_service.commands.main import cli
from scheduler_service.core.events import TimerFired
from scheduler_service.errors import SettingsError
from scheduler_service.grpc_api.metrics import serve_metrics
from scheduler_service.grpc_api.server import GrpcServer
from scheduler_service.settings import SETTINGS, Settings
from tests.support.cases import for_each


def test_flags_come_before_the_environment_before_the_file_before_defaults(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('policy = "file"\nseed = 1\ngrace_ms = 5\n')
    environment = {"COTENANT_SCHEDULER_POLICY": "environment", "COTENANT_SCHEDULER_SEED": "2", "COTENANT_OTHER": "x"}
    settings = SETTINGS.load({"policy": "flag", "seed": None}, environment, file)
    assert (settings.policy, settings.seed, settings.grace_ms) == ("flag", 2, 5)
    assert settings.lease_ms == Settings().lease_ms


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("polcy = 'x'", "unknown setting 'polcy'"),
        ("seed = 'x'", "seed from .*is not a valid integer"),
        ("seed = true", "seed from .*is not a valid integer"),
        ("insecure = 'maybe'", "insecure from .*is not a valid boolean"),
        ("heartbeat_ms = 0", "heartbeat_ms from .*range x>=1"),
        ("grace_ms = -1", "grace_ms from .*range x>=0"),
        ("lease_margin_ratio = nan", "lease_margin_ratio from .*not a number"),
        ("lease_margin_ratio = inf", "lease_margin_ratio from .*not finite"),
        ("lease_ms = 2000.7", "lease_ms from .*is not a valid integer"),
        ("lease_ms = 3000", "one lost heartbeat"),
        ("tls_key_file = 'k'", "belong together"),
        ("client_ca_file = 'c'", "over TLS only"),
        ("log_level = 'LOUD'", "log_level from .*is not one of"),
        ("seed = ", "cannot read"),
        ("seed = " + "9" * 5_000, "cannot read"),
        ("seed = " + "[" * 5_000, "cannot read"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, content: str, complaint: str) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(content)
    with pytest.raises(InputError, match=complaint):
        SETTINGS.load({}, {}, file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.toml"):
        SETTINGS.load({}, {}, tmp_path / "none.toml")


@for_each(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("[::1]", True), ("localhost", True), ("0.0.0.0", False), ("a", False)],
)
def test_loopback_is_distinguished_from_public_addresses(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_the_world_is_served_with_tls_to_known_callers_or_on_request_only() -> None:
    with pytest.raises(InputError, match="other machines") as refused:
        GrpcServer(address="0.0.0.0:0", tls=Settings(), reflects=False)
    assert "--insecure" in refused.value.remedy
    certificate = Settings(tls_certificate_file=Path("c"), tls_key_file=Path("k"))
    with pytest.raises(InputError, match="callers are not identified"):
        GrpcServer(address="0.0.0.0:0", tls=certificate, reflects=False)
    GrpcServer(address="0.0.0.0:0", tls=replace(certificate, client_ca_file=Path("ca")), reflects=False)
    GrpcServer(address="0.0.0.0:0", tls=Settings(insecure=True), reflects=False)


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, arguments, catch_exceptions=True)
    return result.exit_code, result.output


def test_backup_restore_and_export_go_through_the_command_line(tmp_path: Path) -> None:
    with closing(SqliteEventLog(tmp_path / "state")) as log:
        log.append([LogRecord(event=TimerFired(at_ms=n)) for n in (1, 2)])
    code, output = run("backup", str(tmp_path / "b"), "--state-dir", str(tmp_path / "state"))
    assert (code, json.loads(output)["last_sequence"]) == (0, 2)
    restored = run("restore", str(tmp_path / "b"), "--state-dir", str(tmp_path / "new"))
    assert restored[0] == 0
    assert "no orders until `cotenant nodes confirm`" in restored[1]
    confirmed = run("restore", str(tmp_path / "b"), "--state-dir", str(tmp_path / "sure"), "--confirm")
    assert "nodes confirm" not in confirmed[1]
    code, output = run("export-log", "--state-dir", str(tmp_path / "new"), "--from-sequence", "2")
    assert [json.loads(line) for line in output.splitlines()] == [
        {"sequence": 2, "kind": "TimerFired", "format": 1, "at_ms": 2}
    ]


def test_a_backup_on_a_full_disk_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with closing(SqliteEventLog(tmp_path / "state")) as log:
        log.append([LogRecord(event=TimerFired(at_ms=1))])
    command = [sys.executable, "-m", "scheduler_service", "backup", tmp_path / "b", "--state-dir", tmp_path / "state"]
    small_files = f"ulimit -f 8; exec {shlex.join(map(str, command))}"
    done = subprocess.run(["bash", "-c", small_files], capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: the backup cannot be written to {tmp_path / 'b'} (")
    assert list((tmp_path / "b").iterdir()) == []


def test_a_backup_into_a_file_is_refused(tmp_path: Path) -> None:
    with closing(SqliteEventLog(tmp_path / "state")):
        (tmp_path / "file").touch()
        with pytest.raises(SettingsError, match="name a new folder"):
            back_up(tmp_path / "state", tmp_path / "file")


def test_metrics_on_a_port_that_no_machine_has_are_refused() -> None:
    async def serve() -> None:
        serve_metrics("127.0.0.1:70000", CollectorRegistry(), str)

    with pytest.raises(InputError, match="70000"):
        asyncio.run(serve())


def test_a_log_is_not_exported_from_nowhere(tmp_path: Path) -> None:
    code, output = run("export-log", "--state-dir", str(tmp_path), "--from-sequence", "9" * 20)
    assert (code, "is not in the range" in output) == (2, True)
    result = CliRunner().invoke(cli, ["export-log", "--state-dir", str(tmp_path / "none")])
    assert isinstance(result.exception, SettingsError)
    assert "there is no state in" in result.exception.message


def test_policies_are_listed_and_described_offline() -> None:
    code, output = run("policies", "list", "-o", "json")
    assert code == 0
    assert {"fifo", "horus"} <= {policy["name"] for policy in json.loads(output)}
    assert "overtaking" in run("policies", "describe", "fifo")[1]
    assert run("policies", "describe", "magic")[0] != 0


def test_a_snapshot_is_decided_offline(tmp_path: Path) -> None:
    gpu = {"gpu_id": "g", "device": "d", "memory_bytes": str(2**34), "healthy": True}
    job = {"job_id": "a", "gpus": 1, "global_batch_size": "8", "steps_total": "5"}
    late = {"job": {**job, "job_id": "b"}, "not_before_ms": "50"}
    snapshot = {
        "now_ms": "9",
        "nodes": [{"node_id": "n", "schedulable": True, "gpus": [gpu]}],
        "pending": [{"job": job}, late],
    }
    file = tmp_path / "snapshot.json"
    file.write_text(json.dumps(snapshot))
    code, output = run("decide", str(file), "--policy", "fifo", "-o", "json")
    decisions = json.loads(output)["decisions"]
    assert code == 0
    assert [(one["job_id"], *(set(one) & {"start", "hold"})) for one in decisions] == [("a", "start"), ("b", "hold")]
    assert decisions[1]["hold"]["until_ms"] == "50"
    assert run("decide", str(file), "--policy", "magic")[0] != 0
