"""docs/add_a_policy.md keeps its word: its file and its line are a policy, in a copy of the packages."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.repository_rules import Tree, policies_have_five_headings, policy_modules

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("cotenant", "scheduler_service", "tests/contracts", "tests/support")
POLICY_FILE = "scheduler_service/policies/narrowest_first.py"
REGISTRY = "scheduler_service/policy_registry.py"
TABLE_START = "POLICIES: Mapping[str, PolicyEntry] = {\n"


def code_of_the_page() -> list[str]:
    """Return the Python of the page: the file, and the line of the registry."""
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs/add_a_policy.md").read_text(), re.MULTILINE | re.DOTALL)


def copy_with(folder: Path, *, policy: str, line: str) -> Path:
    """Copy the packages and add a policy's file and its line to the copy."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / POLICY_FILE).write_text(policy)
    registry = (folder / REGISTRY).read_text()
    assert registry.count(TABLE_START) == 1
    (folder / REGISTRY).write_text(registry.replace(TABLE_START, TABLE_START + line))
    return folder


def run_in(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a Python module in a folder, which comes first where modules are looked for."""
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True, check=False, timeout=100
    )


def run_contract_suite(folder: Path) -> subprocess.CompletedProcess[str]:
    options = ("-q", "-k", "narrowest_first", "-m", "not endurance", "-p", "no:cacheprovider")
    return run_in(folder, "pytest", *options, "tests/contracts/test_every_policy.py")


@pytest.mark.slow
def test_the_policy_of_the_page_passes_the_contract_suite(tmp_path: Path) -> None:
    policy, line = code_of_the_page()
    assert line.count("\n") == 1, "one line in the registry"
    copy = copy_with(tmp_path, policy=policy, line=line)
    done = run_contract_suite(copy)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"^(\d+) passed, \d+ deselected", done.stdout, re.MULTILINE)
    assert passed is not None, done.stdout
    assert int(passed[1]) > 11, "each runs the cases of five seeds and more"
    tree = Tree(root=copy, paths=(REGISTRY, POLICY_FILE))
    assert "scheduler_service.policies.narrowest_first" in policy_modules(tree)
    for check in (("check",), ("format", "--check")):
        checked = run_in(copy, "ruff", *check, "--no-cache", POLICY_FILE, REGISTRY)
        assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.slow
def test_without_what_the_page_asks_for_the_suite_fails(tmp_path: Path) -> None:
    policy, line = code_of_the_page()
    undescribed = re.sub(r"field\(default=0, metadata=.*\)", "0", policy)
    assert undescribed != policy
    done = run_contract_suite(copy_with(tmp_path, policy=undescribed, line=line))
    assert "KeyError: 'description'" in done.stdout


def test_the_parts_that_the_page_offers_exist() -> None:
    rows = re.findall(r"^\| (`.*?`) \|", (ROOT / "docs/add_a_policy.md").read_text(), re.MULTILINE)
    named = [part for row in rows for part in re.findall(r"`([\w/]+)`", row)]
    assert len(named) > 5
    assert [part for part in named if not (ROOT / f"scheduler_service/policies/{part}.py").is_file()] == []


def test_the_page_names_every_heading_that_a_policy_needs(tmp_path: Path) -> None:
    policy, line = code_of_the_page()
    copied = copy_with(tmp_path, policy=policy, line=line)
    (copied / REGISTRY).write_text(f"POLICIES = {{\n{line}}}\n")
    assert policies_have_five_headings(Tree(root=copied, paths=(REGISTRY, POLICY_FILE))) == []
