"""One constant names the policy that everything starts with; whatever else writes a default writes the same."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from cotenant.cli.up_command import up
from cotenant.default_policy import DEFAULT_POLICY
from cotenant_simulator.commands.simulate import simulate
from scheduler_service.commands.decide import decide
from scheduler_service.policy_registry import POLICIES
from scheduler_service.settings import Settings

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = ("cotenant", "scheduler_service", "cotenant_agent", "cotenant_simulator", "predictor_service")
ELSEWHERE = {
    # The registry itself, and the policies' own modules.
    "scheduler_service/policy_registry.py",
    # What the default is compared with, and the demo's own choice, which says why.
    "cotenant_simulator/commands/simulate.py: BASELINE",
    "cotenant/cli/demo/demonstration.py: POLICY",
    # For jobs of which no length is known; it says why.
    "cotenant/cli/engine_command.py: POLICY",
    # Before the first stored event, which chooses one.
    "scheduler_service/commands/engine_maker.py: _FIRST_POLICY",
}
OTHER_THINGS = {"pollux", "tiresias", "optimus"}
"""Names of trace formats, data sets and curves, too."""
NAMED = re.compile(rf"""["'](?:{"|".join(POLICIES.keys() - OTHER_THINGS)})["']""")
ASSIGNED = re.compile(r"^([A-Z_]+) = ")


def test_every_program_starts_with_the_same_policy() -> None:
    defaults = {command.name: {one.name: one.default for one in command.params} for command in (up, decide)}
    assert (defaults["up"]["policy"], defaults["decide"]["policy"]) == (DEFAULT_POLICY, DEFAULT_POLICY)
    assert Settings().policy == DEFAULT_POLICY
    assert f"fifo,{DEFAULT_POLICY};" in CliRunner().invoke(simulate, ["--help"]).output.replace("\n", "")


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("docker-compose.yml", r"COTENANT_POLICY:-(\w+)"),
        (".env.example", r"^COTENANT_POLICY=(\w+)$"),
        ("docs/policies.md", r"The default is `(\w+)`"),
    ],
)
def test_files_that_no_program_reads_name_it_too(name: str, pattern: str) -> None:
    assert re.findall(pattern, (ROOT / name).read_text(), re.MULTILINE) == [DEFAULT_POLICY]


def test_no_program_writes_the_name_of_a_policy_down_again() -> None:
    found = []
    for program in PROGRAMS:
        for path in sorted((ROOT / program).rglob("*.py")):
            place = str(path.relative_to(ROOT))
            if "policies/" in place or "_pb2" in place or "pollux_rules" in place or place in ELSEWHERE:
                continue
            for number, line in enumerate(path.read_text().splitlines(), start=1):
                assigned = ASSIGNED.match(line)
                if NAMED.search(line) and f"{place}: {assigned and assigned[1]}" not in ELSEWHERE:
                    found.append(f"{place}:{number}: {line.strip()}")
    assert found == ["cotenant/default_policy.py:5: " + f"DEFAULT_POLICY = {json.dumps(DEFAULT_POLICY)}"]


def test_the_default_leaves_running_jobs_where_they_are() -> None:
    assert not POLICIES[DEFAULT_POLICY].touches_running
