"""docs/compatibility.md keeps its word: what it promises to other programs is what the code has, name by name."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
CODE = ("cotenant", "cotenant_agent", "cotenant_simulator", "predictor_service", "scheduler_service", "benchmarks")


def row(name: str) -> str:
    """The cells of one row of the page, after its name."""
    found = re.findall(
        rf"^\| {re.escape(name)} \| (.*) \|$", (ROOT / "docs/compatibility.md").read_text(), re.MULTILINE
    )
    assert len(found) == 1, name
    return str(found[0])


def quoted(pattern: str, *files: str) -> set[str]:
    """Every text in quotes of these files, or of all code, that is the pattern's first group."""
    paths = [ROOT / file for file in files] or [path for folder in CODE for path in (ROOT / folder).rglob("*.py")]
    return {found for path in paths for found in re.findall(rf"[\"']{pattern}[\"']", path.read_text())}


def test_placeholders_of_arguments_are_those_that_the_agent_fills() -> None:
    assert set(re.findall(r"`(\{\w+\})`", row("placeholders in a job's arguments"))) == quoted(
        r"(\{\w+\})", "cotenant_agent/attempts/launch_plan.py"
    )


def test_variables_of_a_job_are_those_that_the_agent_sets() -> None:
    names = re.findall(r"(?:COTENANT)?(_[A-Z_]+)\b", row("variables that a job finds"))
    files = ("cotenant_agent/attempts/launch_plan.py", "cotenant_agent/attempts/launching.py")
    assert {f"COTENANT{name}" for name in names} == quoted(r"(COTENANT_[A-Z_]+)", *files)


def test_calls_of_the_helper_are_its_public_functions() -> None:
    module = ast.parse((ROOT / "cotenant/job.py").read_text())
    functions = {node.name for node in module.body if isinstance(node, ast.FunctionDef)}
    promised = row("calls of `job.py`").rpartition("|")[0]
    assert set(re.findall(r"`(\w+)`", promised)) == {name for name in functions if not name.startswith("_")}


def test_every_schema_of_the_code_is_on_the_page() -> None:
    page = (ROOT / "docs/compatibility.md").read_text()
    assert set(re.findall(r"`(cotenant\.[\w.-]+/\d+)`", page)) == quoted(r"(cotenant\.[\w.-]+/\d+)")


def test_services_of_the_contract_are_on_the_page() -> None:
    protos = "".join(path.read_text() for path in (ROOT / "protos/cotenant/v1").glob("*.proto"))
    assert set(re.findall(r"\b(\w+Service)\b", row("gRPC"))) == set(re.findall(r"^service (\w+)", protos, re.MULTILINE))


def test_files_of_profiles_are_those_of_the_schema() -> None:
    source = (ROOT / "cotenant/profile_schema.py").read_text()
    named = set(re.findall(r"`(\w+\.csv)`", row("profile CSV and Parquet")))
    assert named == set(re.findall(r"^    (\w+\.csv) ", source, re.MULTILINE))
