"""The scripts that install, check and run the project."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SCRIPTS = [".ci/run", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "deploy").glob("*.sh"))]


def run_script(name: str, *arguments: str, path: str) -> subprocess.CompletedProcess[str]:
    """Run a script with another PATH."""
    return subprocess.run(
        ["/bin/bash", str(ROOT / name), *arguments],
        env={"PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_parses_and_says_what_it_is_for(name: str) -> None:
    subprocess.run(["bash", "-n", ROOT / name], check=True, timeout=10)
    first, second = (ROOT / name).read_text().splitlines()[:2]
    assert first == "#!/usr/bin/env bash"
    assert second.startswith("# ")


def test_the_pipeline_can_be_executed_and_calls_the_test_command_of_the_readme() -> None:
    pipeline = ROOT / ".ci/run"
    assert os.access(pipeline, os.X_OK)
    text = pipeline.read_text()
    assert "set -euo pipefail" in text
    assert text.rstrip().splitlines()[-1].startswith("make test")


def test_missing_tools_are_answered_with_the_command_that_brings_them(tmp_path: Path) -> None:
    done = run_script("deploy/check_prerequisites.sh", "no-such-python", path=str(tmp_path))
    assert done.returncode == 1
    assert "Missing: make git gcc python3 python3-venv" in done.stderr
    assert "sudo apt-get install make git gcc python3 python3-venv" in done.stderr


def test_an_old_python_is_refused_with_the_remedy(tmp_path: Path) -> None:
    old = tmp_path / "python-of-yore"
    old.write_text('#!/bin/bash\n[ "$1" = --version ] && echo "Python 3.9.2" && exit 0\n[[ "$2" != *version_info* ]]\n')
    old.chmod(0o755)
    done = run_script("deploy/check_prerequisites.sh", str(old), path=os.environ["PATH"])
    assert done.returncode == 1
    assert "is Python 3.9.2. Set PYTHON=... to another one." in done.stderr


def test_this_machine_has_what_is_needed() -> None:
    done = run_script("deploy/check_prerequisites.sh", "python3", path=os.environ["PATH"])
    assert (done.returncode, done.stderr) == (0, "")
