"""Wrong command lines end with the documented status and name cause and remedy; the golden file shows every one."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

import pytest

from cotenant.cli.exit_codes import ExitCode
from tests.support.cli_cluster import CommandLine
from tests.support.fake_services import FakeScheduler
from tests.unit.cli.wrong_command_lines import COMMANDS

GOLDEN = Path(__file__).parent / "golden" / "wrong_command_lines.txt"
GRAPH = Path(__file__).parents[3] / "examples/jobs/graphs/mlp.onnx"
WRITE = "COTENANT_WRITE_GOLDENS"


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    """What stands in braces; the test runs in a folder of its own."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "text.onnx").write_text("no graph")
    (tmp_path / "wrong.yaml").write_text("comand: [python, train.py]\nsteps: 5\n")
    (folder / "script.py").write_text("import torch\n")
    monkeypatch.chdir(folder)
    return {
        "folder": str(folder), "graph": str(GRAPH), "text": str(tmp_path / "text.onnx"),
        "wrong_job": str(tmp_path / "wrong.yaml"),
        "absent": str(tmp_path / "absent"),
    }  # fmt: skip


def test_sixty_wrong_command_lines_end_as_the_golden_file_says(
    cotenant: CommandLine, scheduler: FakeScheduler, places: Mapping[str, str], tmp_path: Path
) -> None:
    told, accepted = [], []
    for line in COMMANDS:
        words = [word.format(**places) for word in shlex.split(line)]
        outcome = cotenant(*words)
        if outcome.code not in set(ExitCode) - {ExitCode.OK} or outcome.out:
            accepted.append(line)
        message = outcome.err.replace(str(tmp_path), "TMP").replace(str(GRAPH), "GRAPH").rstrip()
        told.append(f"$ cotenant {line}\n{message}\nexit status {outcome.code}\n")
    found = "\n".join(told)
    if os.environ.get(WRITE):
        GOLDEN.write_text(found)
    assert found == GOLDEN.read_text()
    assert accepted == []
    assert [one for one in told if not any(text in one for text in ("remedy: ", "--help", "did you mean"))] == []
    assert len(told) >= 60
