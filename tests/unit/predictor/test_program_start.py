"""What the predictor's programs load before they know that they need it: users wait for it at every command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SLOW_TO_LOAD = {"onnx_ir", "onnx_shape_inference", "pandas", "skl2onnx", "sklearn", "sympy", "xgboost"}
"""What trains, and what few graphs need."""
FIRST_START = """
import runpy, sys
try:
    runpy.run_module("predictor_service", run_name="__main__")
except SystemExit as end:
    print("ended with", end.code)
print("loaded", *sys.modules)
"""


def test_a_first_start_without_data_ends_before_it_loads_what_trains(tmp_path: Path) -> None:
    (tmp_path / "no-datasets").mkdir()
    command = [sys.executable, "-c", FIRST_START, "train", "--state-dir", str(tmp_path / "state")]
    command += ["--datasets", str(tmp_path / "no-datasets")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
    *_, ended, loaded = done.stdout.splitlines()
    assert ended == "ended with 2", done.stderr
    assert "holds no dataset" in done.stderr
    assert SLOW_TO_LOAD & set(loaded.split()) == set()
