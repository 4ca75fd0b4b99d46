"""The scripts that install, check and run the project."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.cases import for_each

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


@for_each("name", SCRIPTS)
def test_a_script_parses_and_says_what_it_is_for(name: str) -> None:
    subprocess.run(["bash", "-n", ROOT / name], check=True, timeout=90)
    first, second = (ROOT / name).read_text().splitlines()[:2]
    assert first == "#!/usr/bin/env bash"
    assert second.startswith("# ")


def test_the_pipeline_can_be_executed_and_calls_the_test_command_of_the_readme() -> None:
    pipeline = ROOT / ".ci/run"
    assert os.access(pipeline, os.X_OK)
    text = pipeline.read_text()
    assert "set -euo pipefail" in text
    assert text.rstrip().splitlines()[-1].startswith("make test")


@for_each("mark", ["alone", "last_core"])
def test_make_test_finds_every_file_with_a_test_that_runs_alone_or_with_nothing_else_on_the_last_core(
    mark: str,
) -> None:
    asked = ["make", "--no-print-directory", "--eval", f"print-files: ; @echo $({mark.upper()})", "print-files"]
    found = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout.split()
    marked = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("test_*.py")
        if re.search(rf"^@?\s*(pytestmark = )?\[?\s*pytest\.mark\.{mark}\b", path.read_text(), re.MULTILINE)
    }
    assert marked
    assert marked <= set(found)


@pytest.mark.parametrize(("failing", "calls_of_pytest"), [("", 3), ("ruff", 1), ("mypy", 3)])
def test_make_test_starts_no_test_of_what_does_not_pass_the_linters_and_fails_where_types_are_wrong(
    failing: str, calls_of_pytest: int, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / ".ready").touch()
    for name in ("pytest", "ruff", "mypy", "lint-imports", "buf"):
        status = int(name == failing)
        on_cores = f'grep Cpus_allowed_list /proc/self/status | cut -f2 >>"{tmp_path}/{name}.cores"'
        write_program(tmp_path / "bin", name, f'echo "$@" >>"{tmp_path}/{name}.calls"; {on_cores}; exit {status}')
    command = ["make", f"VENV={tmp_path}", "test"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode == 0) == (not failing), done.stderr
    calls = (tmp_path / "pytest.calls").read_text().splitlines()
    assert len(calls) == calls_of_pytest
    assert calls[0].startswith("--collect-only")
    if len(calls) > 1:
        assert (tmp_path / "mypy.cores").read_text().split() == [str(min(os.sched_getaffinity(0)))]


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


def write_program(folder: Path, name: str, source: str) -> None:
    """Put a program of the test's own on a PATH."""
    program = folder / name
    program.write_text(f"#!/bin/bash\n{source}\n")
    program.chmod(0o755)


MACHINES = {
    "debian 12, one file in the newer format": (
        {"sources.list.d/debian.sources": "Types: deb\nURIs: http://one.example/debian\nSuites: bookworm\n"},
        "http://one.example/debian",
    ),
    "debian 11, one file in the older format": (
        {
            "sources.list": "deb http://tools.example/linux bookworm stable\n"
            "deb [arch=amd64 signed-by=/key] http://two.example/debian bookworm main contrib\n"
        },
        "http://two.example/debian",
    ),
    "a cloud's image, which names a list of mirrors": (
        {"sources.list.d/debian.sources": "URIs: mirror+file:///etc/apt/mirrors/debian.list\n"},
        "",
    ),
    "a machine without any list": ({}, ""),
}


@pytest.mark.parametrize("machine", MACHINES)
def test_a_base_image_is_made_wherever_apt_keeps_its_lists(tmp_path: Path, machine: str) -> None:
    files, mirror = MACHINES[machine]
    for name, content in files.items():
        (tmp_path / "apt" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "apt" / name).write_text(content)
    write_program(tmp_path, "debootstrap", 'echo "$@" >"$ASKED"; mkdir -p "$4"')
    write_program(tmp_path, "docker", "exit 0")
    source = f'set -Eeuo pipefail; source "{ROOT}/deploy/private_docker.sh"; import_base_image some/name:tag'
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}", "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "APT_FOLDER": str(tmp_path / "apt"), "ASKED": str(tmp_path / "asked"),
    }  # fmt: skip
    done = subprocess.run(
        ["bash", "-c", source], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "asked").read_text().split()[4:] == ([mirror] if mirror else [])


def run_compose_test(tmp_path: Path, failing: str) -> subprocess.CompletedProcess[str]:
    """Run the script with an engine that answers, and a compose of which one verb fails."""
    compose = tmp_path / "compose"
    write_program(tmp_path, "docker", '[ "$1" = info ] || [ "$1" = compose ]')
    write_program(tmp_path, "compose", f'for word; do [ "$word" != {failing} ] || exit 17; done')
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "COMPOSE": str(compose), "HOME": str(tmp_path)}
    script = ["bash", str(ROOT / "deploy/compose_test.sh")]
    return subprocess.run(script, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("failing", ["config", "build", "up"])
def test_a_failed_compose_test_names_the_command_that_failed(tmp_path: Path, failing: str) -> None:
    done = run_compose_test(tmp_path, failing)
    assert done.returncode == 17
    assert "failed: exit code 17 of `" in done.stderr
    assert failing in done.stderr.partition("failed: ")[2]
    assert "compose_test.sh, line " in done.stderr


def test_a_compose_test_prints_the_seconds_of_each_stage_also_where_it_fails(tmp_path: Path) -> None:
    told = run_compose_test(tmp_path, "up").stdout.partition("seconds by stage:\n")[2].splitlines()
    stages = [line.partition(" s  ")[2] for line in told]
    assert stages[:3] == [f"image of the {name} built" for name in ("scheduler", "predictor", "agent")]
    assert stages[3].startswith("after the archive of the base image, until it failed")


def test_a_base_image_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    write_program(tmp_path, "debootstrap", "echo 'E: no such mirror'; exit 3")
    source = f'source "{ROOT}/deploy/private_docker.sh"; import_base_image some/name:tag'
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "XDG_CACHE_HOME": str(tmp_path),
        "APT_FOLDER": "/nowhere",
    }
    done = subprocess.run(
        ["bash", "-c", source], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "debootstrap made no base image from its own mirror" in done.stderr
    assert "E: no such mirror" in done.stderr


def install_torch(tmp_path: Path, plan: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run the script with a pip that would install what the plan says."""
    write_program(
        tmp_path,
        "pip",
        f'echo "$@" >>"$ASKED"; while [ $# -gt 0 ]; do [ "$1" != --report ] || echo \'{plan}\' >"$2"; shift; done',
    )
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "ASKED": str(tmp_path / "asked"), **settings}
    script = ["bash", str(ROOT / "deploy/install_torch.sh")]
    return subprocess.run(script, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_a_torch_that_brings_cuda_ends_the_build_with_the_remedy(tmp_path: Path) -> None:
    plan = '{"install": [{"metadata": {"name": "torch"}}, {"metadata": {"name": "nvidia-cublas"}}]}'
    done = install_torch(tmp_path, plan)
    assert done.returncode == 1
    assert "TORCH_INDEX_URL" in done.stderr
    assert "TORCH_BUILD=any" in done.stderr
    assert len((tmp_path / "asked").read_text().splitlines()) == 1


def test_a_torch_without_cuda_or_one_that_was_asked_for_is_installed(tmp_path: Path) -> None:
    plain = '{"install": [{"metadata": {"name": "torch"}}, {"metadata": {"name": "sympy"}}]}'
    assert install_torch(tmp_path, plain, TORCH_INDEX_URL="https://wheels.example/cpu").returncode == 0
    wanted = "--index-url https://wheels.example/cpu -c constraints.txt torch"
    assert (tmp_path / "asked").read_text().splitlines()[-1] == f"install {wanted}"
    cuda = '{"install": [{"metadata": {"name": "nvidia-cublas"}}]}'
    assert install_torch(tmp_path, cuda, TORCH_BUILD="any").returncode == 0
    assert (tmp_path / "asked").read_text().splitlines()[-1] == "install -c constraints.txt torch"


def test_a_machine_with_neither_list_of_apt_is_told_by_the_build_of_kubernetes(tmp_path: Path) -> None:
    script = ["bash", str(ROOT / "deploy/build_kubernetes.sh"), str(tmp_path / "cache")]
    environment = {"PATH": os.environ["PATH"], "APT_FOLDER": str(tmp_path)}
    done = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "neither" in done.stderr
