"""Odd scripts are handed in as they are; what is said of each when it has ended is what happened."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.library_strangers import LIBRARY_STRANGERS, python_for
from tests.support.odd_scripts import ODD_SCRIPTS
from tests.support.real_cluster import RealCluster, real_cluster
from tests.support.scheduler_process import wait_until

PATIENCE_S = 600.0
ENDS = ("JOB_PHASE_FINISHED", "JOB_PHASE_FAILED", "JOB_PHASE_CANCELLED")
pytestmark = [pytest.mark.strangers, pytest.mark.alone, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RealCluster, Path]]:
    folder = tmp_path_factory.mktemp("strangers")
    (folder / "state").mkdir()
    with real_cluster(folder / "state", "--allow-directory", str(folder)) as running:
        yield running, folder


def submit(cluster: RealCluster, folder: Path, steps: int, command: list[str]) -> str:
    flags = ["--no-capture", "--workdir", str(folder), "-o", "name", *(["--steps", str(steps)] if steps else [])]
    done = cluster.cotenant("submit", *flags, "--", *command)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def ended(cluster: RealCluster, job_id: str) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        found: dict[str, Any] = json.loads(cluster.cotenant("describe", job_id, "-o", "json").stdout)
        job: dict[str, Any] = found.get("job", found)
        return job if job["phase"] in ENDS else None

    return wait_until(look, what=f"{job_id} has ended", timeout_s=PATIENCE_S)


@pytest.mark.parametrize("name", ODD_SCRIPTS)
def test_an_odd_script_ends_as_it_did_and_with_the_steps_that_it_has_done(
    name: str, cluster: tuple[RealCluster, Path]
) -> None:
    running, root = cluster
    odd, folder = ODD_SCRIPTS[name], root / name
    for file, text in odd.files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text)
    job_id = submit(running, folder, odd.steps, [word.format(python=sys.executable) for word in odd.command])
    job = ended(running, job_id)
    assert job["reason"]["code"] == odd.reason
    assert (int(job.get("steps_done", 0)), int(job.get("exit_code", 0))) == (odd.steps_done, odd.exit_code)
    shown = running.cotenant("logs", job_id).stdout
    assert odd.printed in shown
    assert "\x1b" not in running.cotenant("describe", job_id).stdout
    gpus = json.loads(running.cotenant("gpus", "-o", "json").stdout)["gpus"]
    assert [gpu for gpu in gpus if job_id in gpu.get("job_ids", [])] == []


@pytest.mark.parametrize("name", LIBRARY_STRANGERS)
def test_a_script_of_a_stranger_runs_to_its_end_and_its_steps_are_counted(
    name: str, cluster: tuple[RealCluster, Path]
) -> None:
    running, root = cluster
    stranger, folder = LIBRARY_STRANGERS[name], root / name
    folder.mkdir()
    command = stranger.command(python_for(stranger), folder / f"{name}.py")
    job = ended(running, submit(running, folder, stranger.steps, command))
    assert job["reason"]["code"] == "FINISHED"
    assert int(job["steps_done"]) == stranger.steps
