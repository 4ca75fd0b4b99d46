"""An export finds Python's own modules, whatever the files of the script are called."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json, sys
sys.path.insert(1, {root!r})
{first}
from cotenant.capture.in_script.hidden_modules import uncover_modules
uncover_modules()
from statistics import median
import helpers, json as again
assert again is json and helpers.NAME == "own"
print(median([1, 2, 3]))
"""


@pytest.mark.parametrize("first", ["", "import statistics; assert statistics.NAME == 'own'"])
def test_a_file_of_the_script_hides_none_of_pythons_modules_any_more(first: str, tmp_path: Path) -> None:
    for name in ("statistics", "helpers"):
        (tmp_path / f"{name}.py").write_text("NAME = 'own'\n")
    root = str(Path(__file__).parents[3])
    (tmp_path / "train.py").write_text(SCRIPT.format(root=root, first=first))
    done = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("2\n", "")
