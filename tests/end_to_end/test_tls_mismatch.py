"""A TLS mismatch is called one: verbs, doctor, agent and scheduler say which of the many it is and what to do."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from cotenant import tls_probe
from cotenant.cli.main import run
from cotenant.job_settings import JobSettings
from scheduler_service.adapters.predictor.predictor_client import PredictorClient
from scheduler_service.commands.predictor_link import predictor_channel, probe_predictor
from scheduler_service.core.commands import RequestPrediction
from scheduler_service.errors import PredictorError
from scheduler_service.settings import Settings
from tests.support.agent import STANDIN, prepare_baseline, wait_until
from tests.support.cases import sampled
from tests.support.certificates import make_authority, make_certificate, make_expired_certificate
from tests.support.loaded_programs import start_program
from tests.support.log_schema import read_lines
from tests.support.real_cluster import ROOT
from tests.support.scheduler_process import SchedulerProcess, tls_scheduler

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl")

LOCAL = "DNS:localhost,IP:127.0.0.1"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    make_authority(folder)
    make_certificate(folder, "server", alternative_names=LOCAL)
    make_certificate(folder, "elsewhere", alternative_names="DNS:elsewhere.example")
    make_certificate(folder, "user", alternative_names="DNS:user", role="operator")
    make_certificate(folder, "node-8", alternative_names="DNS:node-8", role="node")
    make_expired_certificate(folder, "old", alternative_names=LOCAL)
    (folder / "other").mkdir()
    make_authority(folder / "other")
    make_certificate(folder / "other", "user", alternative_names="DNS:user")
    return folder


@dataclass(frozen=True)
class Case:
    """What the server shows and wants, what the client shows and trusts, and what must be said of it."""

    name: str
    server: str
    client: tuple[str, ...]
    said: str
    remedy: str
    wants_certificate: bool = False


CASES = (
    Case("plain text to TLS", "server", (), "speaks TLS, and was spoken to in plain text", "--tls-ca-file"),
    Case("TLS to plain text", "", ("ca.pem",), "speaks plain text, and was spoken to in TLS", "--tls-ca-file"),
    Case("unknown authority", "server", ("other/ca.pem",), "was not signed by", "--tls-ca-file"),
    Case("another name", "elsewhere", ("ca.pem",), "it does not name 127.0.0.1", "subject alternative names"),
    Case("expired server", "old", ("ca.pem",), "it has expired", "in date"),
    Case("no certificate", "server", ("ca.pem",), "was shown none", "--tls-certificate-file and --tls-key-file", True),
    Case("stranger", "server", ("ca.pem", "other/user"), "does not accept the certificate", "client authority", True),
    Case("expired client", "server", ("ca.pem", "old"), "does not accept the certificate", "in date", True),
    Case("plain to mutual", "server", (), "speaks TLS, and was spoken to in plain text", "--tls-ca-file", True),
    Case("no authority file", "server", ("ca.key",), "the TLS files cannot be used", "--tls-ca-file names"),
)
# The CLI's own verbs, one for each service; both are answered by the same probe, so that one is tried in every run.
VERBS = {"scheduler": ["ps"], "predictor": ["pairs"]}


@contextmanager
def serving(certificates: Path, case: Case) -> Iterator[str]:
    """A gRPC server that knows no method: a client that gets through gets that error."""
    with ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads)
        if case.server:
            pair = (
                (certificates / f"{case.server}.key").read_bytes(),
                (certificates / f"{case.server}.pem").read_bytes(),
            )
            authority = (certificates / "ca.pem").read_bytes() if case.wants_certificate else None
            credentials = grpc.ssl_server_credentials([pair], authority, require_client_auth=case.wants_certificate)
            port = server.add_secure_port("127.0.0.1:0", credentials)
        else:
            port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield f"127.0.0.1:{port}"
        server.stop(0).wait()


def flags_of(certificates: Path, names: tuple[str, ...]) -> list[str]:
    flags = ["--tls-ca-file", str(certificates / names[0])] if names else []
    for name in names[1:]:
        flags += ["--tls-certificate-file", str(certificates / f"{name}.pem")]
        flags += ["--tls-key-file", str(certificates / f"{name}.key")]
    return flags


@pytest.mark.parametrize("peer", sampled(VERBS, 1))
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_verb_names_the_mismatch_and_the_remedy(
    certificates: Path, case: Case, peer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(certificates, case) as address:
        code = run([*VERBS[peer], f"--{peer}", address, *flags_of(certificates, case.client)])
    told = " ".join(capsys.readouterr().err.split())
    assert code == 5
    assert "[TLS_MISMATCH]" in told
    assert case.said in told
    assert case.remedy in told.partition("remedy: ")[2]
    assert "is the" not in told
    if "TLS files" not in case.said:
        assert f"{peer} at {address}" in told


def test_a_reached_server_and_an_absent_one_are_no_mismatch(
    certificates: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = Case("good", "server", ("ca.pem", "user"), "", "", True)
    with serving(certificates, good) as address:
        run(["ps", "--scheduler", address, *flags_of(certificates, good.client)])
    assert "is not a scheduler, or an older one" in capsys.readouterr().err
    for flags in ([], flags_of(certificates, good.client)):
        assert run(["ps", "--scheduler", address, *flags]) == 5
        assert "is the scheduler running" in capsys.readouterr().err


def test_settings_take_the_place_of_flags(
    certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = Case("good", "server", (), "", "", True)
    monkeypatch.setenv("COTENANT_TLS_CA_FILE", str(certificates / "ca.pem"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "cotenant").mkdir()
    names = {"tls_certificate_file": "user.pem", "tls_key_file": "user.key"}
    lines = [f'{name} = "{certificates / file}"\n' for name, file in names.items()]
    (tmp_path / "cotenant" / "config.toml").write_text("".join(lines))
    with serving(certificates, good) as address:
        run(["ps", "--scheduler", address])
        assert "is not a scheduler, or an older one" in capsys.readouterr().err
        run(["ps", "--scheduler", address, *flags_of(certificates, ("ca.pem", "other/user"))])
        assert "does not accept the certificate" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--tls-certificate-file", "user.pem"], "belong together"),
        (["--tls-certificate-file", "user.pem", "--tls-key-file", "user.key"], "--tls-ca-file"),
        (["--tls-ca-file", "missing.pem"], "cannot read missing.pem"),
    ],
)
def test_a_certificate_is_never_left_out_in_silence(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["ps", "--scheduler", "127.0.0.1:1", *flags]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_the_doctor_names_the_mismatch(certificates: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(certificates, CASES[5]) as address:
        run(["doctor", "-o", "json", "--scheduler", address, *flags_of(certificates, ("ca.pem",))])
    findings = {finding["check"]: finding for finding in json.loads(capsys.readouterr().out)["findings"]}
    assert "was shown none" in findings["scheduler"]["found"]
    assert "--tls-certificate-file" in findings["scheduler"]["remedy"]


def test_a_port_that_never_finishes_its_greeting_is_left(certificates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_probe, "_LONGEST_S", 0.5)
    trickling = b"\x16\x03\x03\x40\x00" + b"\x02\x00\x3f\xfc\x03\x03" + b"\x00" * 16_000
    gone = threading.Event()

    def trickle() -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            for byte in trickling:
                connection.sendall(bytes([byte]))
                gone.wait(0.02)
        gone.set()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=trickle, daemon=True).start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        tls_probe.find_tls_mismatch(address, tls_probe.TlsFiles(ca_file=certificates / "ca.pem"), peer="scheduler")
        assert gone.wait(90)


# --- the agent and the scheduler --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scheduler(certificates: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SchedulerProcess]:
    with tls_scheduler(tmp_path_factory.mktemp("scheduler"), certificates) as process:
        yield process


def agent_log(scheduler: SchedulerProcess, folder: Path, *flags: str, failures: int) -> str:
    """The lines that an agent leaves until its conversation has failed a few times."""
    log = folder / "agent.log"
    prepare_baseline(folder / "state")
    arguments = ["run", "--scheduler", scheduler.address, "--node-id", "node-7", "--state-dir", str(folder / "state")]
    arguments += [*STANDIN, *flags]
    with log.open("wb") as output:
        process = start_program(
            "cotenant_agent", arguments, folder=ROOT, environment=dict(os.environ), output=output, errors=output
        )
    try:
        wait_until(lambda: log.read_text().count("conversation_broken") >= failures, "the agent is refused")
    finally:
        process.terminate()
        process.wait(timeout=90)
    return log.read_text()


def failures_in(log: str) -> list[dict[str, Any]]:
    """What the failed conversations logged; every line is a record: nothing of Python or gRPC about tasks left over."""
    broken = [line for line in read_lines(log, "agent") if line["event"] == "conversation_broken"]
    assert {line["level"] for line in broken} == {"error"}
    return [line["fields"] for line in broken]


@pytest.mark.parametrize(
    ("names", "told"),
    sampled(
        [
            (("ca.pem",), ("TLS mismatch: the scheduler at", "--tls-certificate-file and --tls-key-file")),
            ((), ("and was spoken to in plain text", "--tls-ca-file")),
            (("other/ca.pem",), ("was not signed by", "--tls-ca-file")),
        ],
        1,
    ),
)
def test_the_agent_s_log_names_the_mismatch(
    scheduler: SchedulerProcess, certificates: Path, tmp_path: Path, names: tuple[str, ...], told: tuple[str, str]
) -> None:
    flags = ["--tls-ca-file", str(certificates / names[0])] if names else []
    broken = failures_in(agent_log(scheduler, tmp_path, *flags, failures=2))
    assert all(told[0] in fields["reason"] and told[1] in fields["remedy"] for fields in broken)


def test_the_agent_learns_what_its_certificate_must_name(
    scheduler: SchedulerProcess, certificates: Path, tmp_path: Path
) -> None:
    own = [
        "--tls-certificate-file",
        str(certificates / "node-8.pem"),
        "--tls-key-file",
        str(certificates / "node-8.key"),
    ]
    lines = agent_log(scheduler, tmp_path, "--tls-ca-file", str(certificates / "ca.pem"), *own, failures=5)
    for fields in failures_in(lines):
        assert "is of node 'node-8', not of 'node-7'; give the agent its own" in fields["reason"]
        assert "--node-id node-8" in fields["reason"]


def test_failed_handshakes_leave_no_line_that_is_not_json(scheduler: SchedulerProcess, certificates: Path) -> None:
    assert run(["ps", "--scheduler", scheduler.address]) == 5
    assert run(["ps", "--scheduler", scheduler.address, *flags_of(certificates, ("other/ca.pem",))]) == 5
    assert scheduler.log_lines()


def test_the_scheduler_says_which_certificate_the_predictor_wants(certificates: Path) -> None:
    question = RequestPrediction(
        key="k",
        device="d",
        device_memory_bytes=1,
        graph_sha256="ab" * 32,
        settings=JobSettings(global_batch_size=8),
        micro_batch_sizes=(),
    )

    async def ask(settings: Settings) -> str:
        client = PredictorClient(predictor_channel(settings), deadline_s=20, look=lambda: probe_predictor(settings))
        try:
            await client.predict_job(question)
        except PredictorError as error:
            return f"{error.code} {error.message}"
        finally:
            await client.close()
        return ""

    with serving(certificates, CASES[5]) as address:
        trusting = Settings(predictor=address, tls_ca_file=certificates / "ca.pem")
        showing = replace(
            trusting, tls_certificate_file=certificates / "node-8.pem", tls_key_file=certificates / "node-8.key"
        )
        told = asyncio.run(ask(trusting))
        assert told.startswith("PREDICTOR_UNAVAILABLE TLS mismatch: the predictor at")
        assert "--tls-certificate-file and --tls-key-file" in told
        assert asyncio.run(ask(showing)).startswith("PREDICTOR_UNIMPLEMENTED")
