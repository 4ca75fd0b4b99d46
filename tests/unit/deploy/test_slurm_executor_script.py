"""The batch script that offers an allocation of Slurm to cotenant's own queue, and what the page types."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import click
import pytest

from cotenant_agent.commands import cli

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "deploy" / "slurm" / "executor.sh"


def known_flags() -> set[str]:
    assert isinstance(cli, click.Group)
    options = [one for one in cli.commands["run"].params if isinstance(one, click.Option)]
    return {flag for option in options for flag in (*option.opts, *option.secondary_opts)}


def started(folder: Path, *flags: str) -> list[str]:
    """Return the words of the agent that the script starts, as a step of Slurm on node n1 sees them."""
    (folder / "srun").write_text(
        '#!/bin/sh\nwhile [ "${1#--}" != "$1" ]; do shift; done\nSLURMD_NODENAME=n1 exec "$@"\n'
    )
    (folder / "python").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    for name in ("srun", "python"):
        (folder / name).chmod(0o755)
    settings = {"SLURM_JOB_ID": "42", "COTENANT_EXECUTOR_FOLDER": str(folder / "kept place")}
    environment = {**os.environ, **settings, "PATH": f"{folder}:{os.environ['PATH']}"}
    environment["COTENANT_PYTHON"] = str(folder / "python")
    done = subprocess.run([str(SCRIPT), *flags], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_an_allocation_is_the_node_of_its_machine_whose_checkpoints_outlive_it(tmp_path: Path) -> None:
    words = started(tmp_path, "--nvml", "--allow-directory", "/home/a b")
    assert words[:3] == ["-m", "cotenant_agent", "run"]
    assert words[-3:] == ["--nvml", "--allow-directory", "/home/a b"]
    told = {flag: words[words.index(flag) + 1] for flag in ("--node-id", "--state-dir", "--checkpoint-dir")}
    kept = tmp_path / "kept place"
    assert told == {
        "--node-id": "n1",
        "--state-dir": f"{kept}/agents/n1",
        "--checkpoint-dir": f"{kept}/checkpoints",
    }
    assert {"--shared-checkpoints", "--stop-jobs-on-exit"} <= set(words)
    assert (kept / "checkpoints").is_dir()


def test_a_second_allocation_on_one_machine_takes_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTENANT_EXECUTOR_NODE", "n1-b")
    words = started(tmp_path)
    assert words[words.index("--node-id") + 1] == "n1-b"
    assert words[words.index("--state-dir") + 1].endswith("/agents/n1-b")


def test_every_flag_of_script_and_page_is_one_that_the_agent_has(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "slurm.md").read_text()
    lines = re.findall(r"executor\.sh (--.*)$", page + SCRIPT.read_text(), re.MULTILINE)
    assert len(lines) == 2
    words = [*started(tmp_path), *" ".join(lines).split()]
    assert {word for word in words if word.startswith("--")} <= known_flags()


def test_outside_of_slurm_the_script_says_how_it_is_meant() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "SLURM_JOB_ID"}
    done = subprocess.run([str(SCRIPT)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "sbatch" in done.stderr
