"""The page's own commands, as they stand: from no authority to a cluster in which every program shows a certificate."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.daemons import free_ports

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl")

ROOT = Path(__file__).parents[2]
HEADING = "### Mutual TLS from nothing\n"
PATIENCE_S = 240.0


def commands() -> list[str]:
    """The code of the section, line by line, continued lines joined."""
    section = (ROOT / "docs" / "operations.md").read_text().partition(HEADING)[2].partition("\n## ")[0]
    code = "".join(line[4:] for line in section.splitlines(keepends=True) if line.startswith("    "))
    return re.findall(r"^\S[^\n]*", code.replace("\\\n", " "), flags=re.MULTILINE)


def here(folder: Path) -> Mapping[str, str]:
    """What stands in the page for another machine -> what it is on this one."""
    predictor_port, scheduler_port = free_ports(2)
    return {
        "0.0.0.0": "127.0.0.1",
        "scheduler.example": "localhost",
        "predictor.example": "localhost",
        ":7070": f":{predictor_port}",
        ":7071": f":{scheduler_port}",
        "/var/lib/cotenant/agent": str(folder / "agent"),
        "--nvml": "--standin-cores " + str(min(os.sched_getaffinity(0))),
    }


@contextmanager
def program(command: str, folder: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"], cwd=folder, env=environment(folder), stdout=output, stderr=output
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(timeout=90)


def environment(folder: Path) -> dict[str, str]:
    """No training at the first start, no metrics port that another program may hold, no settings of the tester."""
    (folder / "no-datasets").mkdir(exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COTENANT_")}
    own = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "XDG_STATE_HOME": str(folder / "state"),
        "COTENANT_PREDICTOR_DATASETS": str(folder / "no-datasets"),
        "COTENANT_PREDICTOR_METRICS_ADDRESS": "",
        "COTENANT_SCHEDULER_METRICS_ADDRESS": "",
    }
    return kept | own


def wait_until(look: Callable[[], bool], what: Callable[[], str]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not look():
        assert time.monotonic() < until, what()
        time.sleep(0.1)


def test_the_page_leads_from_nothing_to_mutual_tls(tmp_path: Path) -> None:
    replaced = here(tmp_path)
    lines = commands()
    assert {name for name in replaced if not any(name in line for line in lines)} == set()
    for name, local in replaced.items():
        lines = [line.replace(name, local) for line in lines]
    programs = [line for line in lines if line.startswith("python -m ")]
    certificates = [line for line in lines if line.startswith("cotenant certs ")]
    verbs = [line for line in lines if line.startswith("cotenant ") and line not in certificates]
    exports = [line for line in lines if line.startswith("export ")]
    assert (len(programs), len(verbs), len(exports), len(certificates)) == (3, 3, 2, 5)
    assert len(lines) == 13
    run_all(certificates, tmp_path)
    assert {path.stat().st_mode & 0o077 for path in tmp_path.glob("*.key")} == {0}
    logs = [tmp_path / f"{name}.log" for name in ("predictor", "scheduler", "agent")]
    with ExitStack() as stack:
        for line, log, sign in zip(programs, logs, ('"serving"', '"serving"', '"welcomed"'), strict=True):
            process = stack.enter_context(program(line, tmp_path, log))
            wait_until(
                lambda log=log, sign=sign, process=process: process.poll() is not None or sign in log.read_text(),  # type: ignore[misc]
                log.read_text,
            )
            assert process.poll() is None, log.read_text()
        nodes, jobs, pairs = (run_all([*exports, verb], tmp_path) for verb in verbs)
        assert "node-1" in nodes
        assert jobs
        assert pairs
        # No client without a certificate.
        anonymous = [
            line.replace(" COTENANT_TLS_CERTIFICATE_FILE=alice.pem COTENANT_TLS_KEY_FILE=alice.key", "")
            for line in exports
        ]
        for verb in (verbs[0], verbs[2]):
            refused = run_all([*anonymous, f"! {verb} 2>&1"], tmp_path)
            assert "wants a certificate of this program and was shown none" in " ".join(refused.split())


def run_all(lines: list[str], folder: Path) -> str:
    done = subprocess.run(
        ["bash", "-ec", "\n".join(lines)],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
