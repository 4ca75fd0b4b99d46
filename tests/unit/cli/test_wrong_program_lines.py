"""Wrong lines of the verbs that programs run end with a documented status, a cause and a remedy, as the golden says."""

from __future__ import annotations

import importlib
import os
import shlex
import sys
from pathlib import Path

import pytest

from cotenant.cli.exit_codes import ExitCode
from cotenant.command_run import SHOWN_AS
from cotenant.programs import PROGRAM_COMMANDS
from tests.unit.cli.wrong_program_lines import COMMANDS

GOLDEN = Path(__file__).parent / "golden" / "wrong_program_lines.txt"
ROOT = Path(__file__).parents[3]
PLACES = {
    "workload": ROOT / "examples/workloads/mixed.toml",
    "snapshot": ROOT / "examples/snapshot.json",
    "standin": ROOT / "datasets/cpu_standin",
    "campaign": ROOT / "profiling/campaigns/small.toml",
}
WRITE = "COTENANT_WRITE_GOLDENS"
HEADER = "submit_time_s,duration_s,num_gpus,job_id\n"
FILES = {
    "text.onnx": "x", "empty.csv": "", "headers.csv": HEADER, "wrong.toml": 'jobs = "many"\n', "list.json": "[1, 2]",
    "negative.csv": f"{HEADER}0,-100,1,a\n", "words.csv": f"{HEADER}0,long,1,a\n", "unknown.json": '{"nodez": []}',
    "twice.csv": f"{HEADER}0,10,1,a\n0,10,1,a\n",
}  # fmt: skip
REMEDIES = (
    "remedy: ", "--help", "; ", "must be", "Available Fields",
)  # fmt: skip


def status_of(words: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """Runs a verb as `cotenant` does, in this process."""
    program, verb = PROGRAM_COMMANDS[words[0]]
    monkeypatch.setenv(SHOWN_AS, "cotenant" if verb else f"cotenant {words[0]}")
    monkeypatch.setattr(sys, "argv", [program, *([verb] if verb else []), *words[1:]])
    return int(importlib.import_module(f"{program}.__main__")._load()())


def test_wrong_lines_of_the_programs_end_as_the_golden_file_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("COTENANT_PREDICTOR_STATE_DIR", "COTENANT_SCHEDULER_STATE_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "state"))
    (tmp_path / "folder").mkdir()
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    told, accepted, unhelpful = [], [], []
    for line in COMMANDS:
        status = status_of([word.format(**PLACES) for word in shlex.split(line)], monkeypatch)
        outcome = capsys.readouterr()
        message = outcome.err.replace(str(tmp_path), "TMP").replace(str(ROOT), "ROOT").rstrip()
        told.append(f"$ cotenant {line}\n{message}\nexit status {status}\n")
        if status not in set(ExitCode) - {ExitCode.OK} or outcome.out:
            accepted.append(line)
        if "Errno" in message or "Traceback" in message or not any(text in message for text in REMEDIES):
            unhelpful.append(line)
    found = "\n".join(told)
    if os.environ.get(WRITE):
        GOLDEN.write_text(found)
    assert (accepted, unhelpful) == ([], [])
    assert found == GOLDEN.read_text()
