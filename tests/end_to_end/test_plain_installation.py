"""What `pip install cotenant` without extras gives: every verb works, or names in one line what it needs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from cotenant.default_policy import DEFAULT_POLICY
from cotenant.extras import EXTRAS, NEEDED_AT_START, NEEDED_LATER, TORCH, missing_modules
from tests.support.cases import sampled
from tests.support.hidden_modules import environment_without

CHECKOUT = Path(__file__).parents[2]
ALL_MODULES = sorted(
    {module for table in (NEEDED_AT_START, NEEDED_LATER) for found in table.values() for module in found}
)
# What a library is called by pip, where that differs from what is imported.
IMPORTED_AS = {
    "grpcio-reflection": "grpc_reflection", "nvidia-ml-py": "pynvml", "onnx-ir": "onnx_ir", "scikit-learn": "sklearn",
    "onnx-shape-inference": "onnx_shape_inference", "prometheus-client": "prometheus_client", "xgboost-cpu": "xgboost",
}  # fmt: skip


def run(
    folder: Path, *words: str, without: list[str], module: str = "cotenant.cli.main"
) -> subprocess.CompletedProcess[str]:
    start = f"import runpy, sys; sys.argv[0] = 'cotenant'; from {module} import main; main()"
    command = (
        [sys.executable, "-c", start, *words] if module.endswith(".main") else [sys.executable, "-m", module, *words]
    )
    environment = {**environment_without(without, folder), "COTENANT_STATE_DIR": str(folder / "state")}
    for name in ("COTENANT_SCHEDULER", "COTENANT_PREDICTOR"):
        environment[name] = "127.0.0.1:1"
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=100, env=environment, cwd=folder
    )


@pytest.mark.parametrize(
    ("words", "extra"),
    sampled(
        [
            (["predict", "m.onnx", "--batch-size", "8", "--offline"], "cotenant[predictor]"),
            (["up", "--predictor-port", "0", "--scheduler-port", "0"], "cotenant[predictor,scheduler,agent]"),
            (["demo"], "cotenant[predictor,scheduler,agent] and PyTorch"),
            (["evaluate", "rows"], "cotenant[predictor]"),
            (["models", "list"], "cotenant[predictor]"),
            (["decide", str(CHECKOUT / "examples" / "snapshot.json")], "cotenant[scheduler]"),
            (["policies", "list"], "cotenant[scheduler]"),
            (["profile", "plan", "x"], "cotenant[profiler] and PyTorch"),
            (["simulate", str(CHECKOUT / "examples" / "workloads" / "mixed.toml")], "cotenant[simulator]"),
        ],
        3,
    ),
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_verb_without_its_libraries_names_the_extra_in_one_line(tmp_path: Path, words: list[str], extra: str) -> None:
    (tmp_path / "m.onnx").touch()
    done = run(tmp_path, *words, without=ALL_MODULES)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "error" in line]
    assert f"needs {extra}: pip install " in line
    assert extra.split(" ")[0] in line.partition(": pip install ")[2]


@pytest.mark.parametrize("program", sampled(sorted(EXTRAS), 2))
def test_a_program_started_by_itself_names_its_extra_too(tmp_path: Path, program: str) -> None:
    hidden = ALL_MODULES if program != "cotenant_simulator" else ["click"]
    done = run(tmp_path, "--help", without=hidden, module=program)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert f"{program} needs cotenant[{EXTRAS[program]}]" in done.stderr


def test_a_library_that_only_another_library_needs_is_answered_alike(tmp_path: Path) -> None:
    done = run(tmp_path, "--help", without=["ml_dtypes"], module="predictor_service")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "pip install 'cotenant[predictor]'; not found: ml_dtypes" in done.stderr


@pytest.mark.parametrize("program", sampled(sorted(set(EXTRAS) - {"cotenant_profiler"}), 2))
def test_what_a_program_needs_later_is_not_needed_to_start_it(tmp_path: Path, program: str) -> None:
    later = sorted(
        set(NEEDED_LATER.get(program, ())) - {module for found in NEEDED_AT_START.values() for module in found}
    )
    done = run(tmp_path, "--help", without=later, module=program)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_doctor_works_in_a_plain_installation_and_says_what_is_missing(tmp_path: Path) -> None:
    done = run(tmp_path, "doctor", "-o", "json", without=ALL_MODULES)
    found = {one["check"]: one for one in json.loads(done.stdout)["findings"]}
    assert "numpy" in found["predictor_service"]["found"]
    assert "cotenant[predictor]" in found["predictor_service"]["remedy"]
    assert "pip install torch" in found["cotenant_profiler"]["remedy"]
    assert "Expecting value" not in done.stdout
    assert "cotenant[agent]" in found["gpus"]["remedy"]


def test_a_notebook_without_the_simulators_libraries_is_told_the_extra(tmp_path: Path) -> None:
    lines = "import cotenant_simulator\ncotenant_simulator.simulate('jobs.csv', ['fifo'])"
    environment = environment_without(ALL_MODULES, tmp_path)
    command = [sys.executable, "-c", lines]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100, env=environment)
    assert "InputError: cotenant_simulator needs cotenant[simulator]: pip install " in done.stderr.splitlines()[-1]
    assert done.stderr.count("Traceback") == 1


def test_policies_are_listed_without_a_scheduler_with_the_default_marked(tmp_path: Path) -> None:
    done = run(tmp_path, "policies", "list", without=[])
    assert done.returncode == 0
    assert re.findall(r"^\* +(\w+) ", done.stdout, re.MULTILINE) == [DEFAULT_POLICY]
    assert "no scheduler at 127.0.0.1:1" in done.stderr
    described = json.loads(run(tmp_path, "policies", "describe", "fifo", "-o", "json", without=[]).stdout)
    assert described["name"] == "fifo"


def test_every_library_of_an_extra_is_one_that_is_looked_for() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    for program, extra in EXTRAS.items():
        libraries = {re.match(r"[A-Za-z0-9-]+", line)[0] for line in optional[extra]}  # type: ignore[index]
        modules = {IMPORTED_AS.get(name, name) for name in libraries}
        assert modules == {*NEEDED_AT_START[program], *NEEDED_LATER.get(program, ())} - {TORCH}, program
    assert missing_modules(ALL_MODULES) == []


def test_the_extra_all_brings_every_program_and_no_torch() -> None:
    optional = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (everything,) = optional["all"]
    named = set(everything.removeprefix("cotenant[").removesuffix("]").split(","))
    assert named == set(optional) - {"all", "dev", "ray"}, "Ray brings 200 MB of its own"
    assert not any(line.startswith("torch") for extra in named for line in optional[extra])
