"""The systemd units: systemd itself finds nothing wrong with them, and they use flags that exist."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import pytest

from cotenant.program_settings import ProgramSettings
from cotenant_agent.settings import SETTINGS as AGENT
from predictor_service.settings import SETTINGS as PREDICTOR
from scheduler_service.settings import SETTINGS as SCHEDULER

UNITS = sorted((Path(__file__).resolve().parents[3] / "deploy" / "systemd").glob("*.service"))
PYTHON = "/opt/cotenant/bin/python"
PROGRAMS: Mapping[str, tuple[str, ProgramSettings[Any]]] = {
    "predictor_service": ("serve", PREDICTOR),
    "scheduler_service": ("serve", SCHEDULER),
    "cotenant_agent": ("run", AGENT),
}


def start_of(unit: Path) -> list[str]:
    found = re.search(r"^ExecStart=(.+)$", unit.read_text(), re.MULTILINE)
    assert found is not None
    return shlex.split(found[1])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_finds_nothing_wrong_with_the_units(tmp_path: Path) -> None:
    for unit in UNITS:
        (tmp_path / unit.name).write_text(unit.read_text().replace(PYTHON, sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", *(str(path) for path in tmp_path.glob("*.service"))],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_starts_a_program_with_flags_that_it_has(unit: Path) -> None:
    python, module_flag, program, verb, *words = start_of(unit)
    wanted_verb, settings = PROGRAMS[program]
    assert (python, module_flag, verb) == (PYTHON, "-m", wanted_verb)

    @click.command()
    @settings.options()
    def command(settings: object) -> None:
        """Take the flags."""

    known = {flag for option in command.params for flag in (*option.opts, *option.secondary_opts)}
    assert {word for word in words if word.startswith("--")} <= known
    assert f"COTENANT_{program.split('_')[-1 if program == 'cotenant_agent' else 0].upper()}_" in unit.read_text()


def test_jobs_outlive_an_agent_that_is_started_anew() -> None:
    [agent] = [unit for unit in UNITS if "agent" in unit.name]
    assert "\nKillMode=process\n" in agent.read_text()
