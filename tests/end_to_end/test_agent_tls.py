"""The agent's only connection, under TLS: it obeys the scheduler whose certificate it was given, and no other."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.agent import GPU, AgentProcess, running_agent, wait_until, write_script
from tests.support.fake_scheduler import FakeScheduler, launch

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl")


def make_certificate(directory: Path, name: str) -> tuple[Path, Path]:
    """A self-signed certificate for localhost; returns it and its key."""
    certificate, key = directory / f"{name}.pem", directory / f"{name}.key"
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost",
            "-keyout", str(key), "-out", str(certificate),
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key


def test_a_job_runs_over_mutual_tls(tmp_path: Path) -> None:
    server, node = make_certificate(tmp_path, "scheduler"), make_certificate(tmp_path, "node-a")
    flags = ("--tls-ca-file", str(server[0]), "--tls-certificate-file", str(node[0]), "--tls-key-file", str(node[1]))
    with (
        FakeScheduler(certificate=server, client_ca=node[0]) as scheduler,
        running_agent(tmp_path / "state", scheduler, *flags),
    ):
        script = write_script(tmp_path, "print('over TLS')\n")
        scheduler.send(launch_job=launch("job-1", [sys.executable, script], GPU))
        assert scheduler.wait_for_exit("job-1").log_tail == "over TLS\n"


def test_a_scheduler_with_another_certificate_is_not_obeyed(tmp_path: Path) -> None:
    server, other = make_certificate(tmp_path, "scheduler"), make_certificate(tmp_path, "other")
    with FakeScheduler(certificate=server) as scheduler:
        agent = AgentProcess(tmp_path / "state", scheduler, "--tls-ca-file", str(other[0]))
        wait_until(lambda: "conversation_broken" in agent.output(), "the handshake fails")
        assert agent.terminate() == 0
        assert scheduler.received == []
