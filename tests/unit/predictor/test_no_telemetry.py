"""What computes predictions tells its maker nothing, and leaves no identifier of the machine in the home folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def run_python(code: str, home: Path, **environment: str) -> str:
    """Returns what a Python prints that sees no other variables: the runtime keeps still on build servers."""
    command = [sys.executable, "-c", code]
    variables = {"HOME": str(home), **environment}
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout


def test_the_runtime_keeps_no_identifier_and_no_events_in_the_home_folder(tmp_path: Path) -> None:
    assert run_python("from predictor_service.registry import onnx_model; print('loaded')", tmp_path) == "loaded\n"
    assert list(tmp_path.rglob("*")) == []


def test_a_user_may_decide_otherwise(tmp_path: Path) -> None:
    code = "import os, predictor_service; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    assert run_python(code, tmp_path, ORT_DISABLE_TELEMETRY="0") == "0\n"
