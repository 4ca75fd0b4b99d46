"""A policy of another package is found by its entry point, and a broken one costs nobody else anything."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scheduler_service.policy_plugins import load_plugins

REPOSITORY = Path(__file__).resolve().parents[2]
BROKEN = {"no_class": "cotenant_plugged:absent", "no_policy": "cotenant_plugged:NoPolicy", "no_module": "absent:X"}
NO_POLICY = "\n\nclass NoPolicy:\n    pass\n"
LEAVING = """

@dataclass(frozen=True)
class Leaving:
    strength: int = 1

    def __post_init__(self) -> None:
        if self.strength < 1:
            raise ValueError("strength below 1")

    def decide(self, view: SchedulingView) -> Sequence[Decision]:
        raise SystemExit(0)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An installed package: the policy of docs/add_a_policy.md, three broken ones, and one that would be fifo."""
    found = tmp_path_factory.mktemp("site")
    page = (REPOSITORY / "docs" / "add_a_policy.md").read_text()
    policy = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[0]
    (found / "cotenant_plugged.py").write_text(policy + NO_POLICY + LEAVING)
    information = found / "cotenant_plugged-1.2.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: cotenant-plugged\nVersion: 1.2\n")
    points = {"narrowest_first": "cotenant_plugged:NarrowestFirst", "fifo": "cotenant_plugged:NarrowestFirst", **BROKEN}
    points["leaving"] = "cotenant_plugged:Leaving"
    lines = [f"{name} = {value}" for name, value in points.items()]
    (information / "entry_points.txt").write_text("\n".join(["[cotenant.policies]", *lines]) + "\n")
    return found


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-m", *words]
    return subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False, timeout=100
    )


def test_a_plugged_policy_is_listed_with_its_parameters_and_replaces_none(folder: Path) -> None:
    done = run(folder, "scheduler_service", "policies", "list", "-o", "json")
    found = {one["name"]: one for one in json.loads(done.stdout)}
    assert found["narrowest_first"]["summary"].startswith("Narrowest first")
    assert found["narrowest_first"]["parameters"][0]["name"] == "aging_ms"
    assert not found["fifo"]["summary"].startswith("Narrowest first")
    assert not BROKEN.keys() & found.keys()
    told = dict(re.findall(r"^not offered: (\w+) of cotenant-plugged 1\.2: (.+)$", done.stderr, re.MULTILINE))
    assert told.keys() == {"fifo", *BROKEN}
    assert told["fifo"] == "the scheduler has a policy of this name; give the entry point another one"
    shown = run(folder, "cotenant", "policies", "list", "--scheduler", "127.0.0.1:1")
    assert "warning: not offered: no_policy of cotenant-plugged 1.2: " in shown.stderr
    assert "narrowest_first" in shown.stdout


def test_the_simulator_runs_a_plugged_policy_and_names_why_a_broken_one_cannot_be(folder: Path) -> None:
    workload = ("cotenant_simulator", "simulate", "examples/workloads/mixed.toml", "--cluster", "2x4", "--policies")
    done = run(folder, *workload, "narrowest_first")
    assert done.returncode == 0, done.stderr
    assert "narrowest_first" in done.stdout
    refused = run(folder, *workload, "no_policy")
    assert (refused.returncode, "Traceback" in refused.stderr) == (2, False)
    assert "policy 'no_policy' of cotenant-plugged 1.2 cannot be loaded: " in refused.stderr


def test_a_plugged_policy_that_leaves_the_program_or_cannot_be_built_ends_its_simulation_in_words(folder: Path) -> None:
    workload = ("cotenant_simulator", "simulate", "examples/workloads/mixed.toml", "--cluster", "2x4", "--policies")
    left = run(folder, *workload, "leaving")
    assert left.returncode == 1
    assert re.search(r"policy leaving failed: SystemExit: 0 \(.*/cotenant_plugged\.py:\d+\); mend", left.stderr)
    unbuilt = run(folder, *workload, "leaving", "--parameter", "leaving.strength=0")
    assert (unbuilt.returncode, "Traceback" in unbuilt.stderr) == (2, False)
    assert "policy leaving cannot be built: ValueError: strength below 1" in unbuilt.stderr


def test_a_plugged_policy_that_fails_about_a_snapshot_holds_its_jobs_and_is_named(folder: Path) -> None:
    words = r"warning: POLICY_FAILED: policy leaving failed: SystemExit: 0 \(.*/cotenant_plugged\.py:\d+\)"
    for flags in (["--policy", "leaving"], ["--policy", "fifo", "--compare", "leaving"]):
        done = run(folder, "scheduler_service", "decide", "examples/snapshot.json", *flags, "-o", "json")
        assert (done.returncode, "Traceback" in done.stderr) == (0, False)
        answer = json.loads(done.stdout)
        decided = answer["comparisons"][0]["decisions"] if "--compare" in flags else answer["decisions"]
        assert [(one["job_id"], one["reason"]["code"]) for one in decided] == [
            ("cnn-1", "POLICY_FAILED"),
            ("transformer-2", "POLICY_FAILED"),
        ]
        (warning,) = answer["warnings"]
        assert re.fullmatch(words.removeprefix("warning: POLICY_FAILED: "), warning["message"])
    shown = run(folder, "scheduler_service", "decide", "examples/snapshot.json", "--policy", "leaving")
    assert re.search(words, shown.stderr)


def test_whatever_is_wrong_with_a_plugged_policy_is_said_in_words(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(folder))
    found = load_plugins(taken=("fifo",))
    assert found.keys() == {"narrowest_first", "leaving", *BROKEN}
    assert (found["narrowest_first"].kind is None, found["narrowest_first"].fault) == (False, "")
    for name, why in zip(BROKEN, ("no attribute 'absent'", "is no dataclass", "No module named"), strict=True):
        assert found[name].kind is None
        assert why in found[name].fault
