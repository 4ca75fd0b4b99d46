"""`python -m cotenant`, for those whose PATH does not hold the program."""

from __future__ import annotations

import gc
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from cotenant import __version__
from cotenant.extras import Program, run_program

INTERRUPTED_AT_ITS_IMPORTS = """
import sys
class Interrupt:
    def find_spec(self, name, *_):
        if name == "click":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
sys.modules.pop("click", None)
from {module} import {function}
{function}()
"""


def test_the_command_line_is_the_packages_main_module() -> None:
    done = subprocess.run([sys.executable, "-m", "cotenant", "version"], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[0] == f"cotenant {__version__}"


def test_an_interrupt_while_the_command_line_loads_is_no_traceback() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))
    module, _, function = project["project"]["scripts"]["cotenant"].partition(":")
    code = INTERRUPTED_AT_ITS_IMPORTS.format(module=module, function=function)
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_an_interrupt_while_a_program_loads_is_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    def load() -> Program:
        raise KeyboardInterrupt

    assert run_program("predictor_service", load) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_garbage_is_sought_when_a_program_runs_and_not_while_it_loads() -> None:
    seen: list[bool] = []

    def load() -> Program:
        seen.append(gc.isenabled())
        return lambda: seen.append(gc.isenabled())

    before = gc.get_freeze_count()
    kept: list[list[int]] = [[] for _ in range(100)]
    assert run_program("predictor_service", load) == 0
    assert seen == [False, True]
    assert gc.get_freeze_count() >= before + len(kept), "what was loaded is not searched again"
