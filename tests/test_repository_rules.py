"""Our tidy: every rule holds for the tree, and every rule can fail."""

from __future__ import annotations

import ast
import filecmp
import gc
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.document_rules import DOCUMENT_RULES
from tests.support.product_reach import unreached
from tests.support.repository_rules import (
    FILE_LINES_MAX,
    LONGER_FILES_LINES_MAX,
    RULES,
    Rule,
    Tree,
    files_are_short,
    functions_of,
    tracked_tree,
)

ROOT = Path(__file__).resolve().parent.parent
ALL_RULES = (*RULES, *DOCUMENT_RULES)
# Apart, so that the rule about named pages does not find them here.
PAGES = "do" + "cs"
DECISION = "# 1. One\n\nStatus: accepted\nDate: 2026-11-21\n\n## Context\n\n## Decision\n\n## Consequences\n"
REGISTRY = 'POLICIES = {"fifo": PolicyEntry("fifo.FirstInFirstOut")}\n'
PROVED = {
    "scheduler_service/policy_registry.py": REGISTRY,
    "scheduler_service/policies/fifo.py": '"""First in, first out.\n\nWhy:\n    It is fair.\n"""\n',
}

# For every rule a tree that breaks it, and a piece of the complaint.
BROKEN_TREES: dict[str, tuple[dict[str, str], str]] = {
    "files_are_short": ({"cotenant/long.py": "x = 1\n" * 401}, "401 lines"),
    "functions_are_short": ({"cotenant/long.py": "def f():\n" + "    x = 1\n" * 60}, "f: 61 lines"),
    "names_say_what_they_hold": ({"cotenant/utils.py": ""}, "not 'utils'"),
    "borrowed_folders_are_no_packages": ({"datasets/__init__.py": ""}, "datasets/__init__.py"),
    "product_serves_a_program": (
        {
            "pyproject.toml": '[tool.hatch.build.targets.wheel]\npackages = ["tools/cotenant"]\n',
            "tools/cotenant/__main__.py": "from cotenant.program import main\n",
            "tools/cotenant/program.py": 'VERBS = ["run"]\n',
            "tools/cotenant/run.py": "",
            "tools/cotenant/ruler.py": "",
        },
        "tools/cotenant/ruler.py: no program reaches it",
    ),
    "no_promises_are_left": ({"cotenant/later.py": "# TO" + "DO: think\n"}, "later.py:1"),
    "no_machine_is_named": ({f"{PAGES}/install.md": "Look below /ro" + "ot/wheels.\n"}, "install.md:1"),
    "files_are_small_and_end_with_a_newline": ({f"{PAGES}/page.md": "No end"}, "exactly one newline"),
    "policies_have_five_headings": (PROVED, "lacks What it does:, Source:, Where we differ:, Cost:"),
    "policies_are_proved": (
        {**PROVED, "tests/paper_cases/test_fifo.py": "import scheduler_service.policies.fifo\n"},
        "tests/differential",
    ),
    "docstrings_are_checked": ({"pyproject.toml": '[tool.ruff.lint]\nselect = ["ANN"]\n'}, "select D"),
    "tests_are_named_by_sentences": ({"tests/unit/test_engine.py": "def test_works(): ...\n"}, "test_works"),
    "the_makefile_is_small": ({"Makefile": "".join(f"t{'x' * n}: ## t\n" for n in range(14))}, "14 targets"),
    "documented_commands_exist": ({"Makefile": "setup:\n", "README.md": "Say `make coffee`.\n"}, "make coffee"),
    "documented_verbs_exist": ({"README.md": "    cotenant fly --to-the-moon\n"}, "cotenant fly is no verb"),
    "decisions_are_numbered_pages": (
        {f"{PAGES}/decisions/0002-second.md": "## Context\n"},
        "expected the number 0001",
    ),
    "decisions_have_a_status_and_a_date": (
        {f"{PAGES}/decisions/0001-one.md": DECISION.replace("accepted", "accepted, probably")},
        "say 'Status: accepted'",
    ),
    "pages_say_what_they_answer": ({f"{PAGES}/research/noise.md": "# Noise\n\nIt is loud.\n"}, "This page answers: "),
    "pages_are_short": ({f"{PAGES}/long.md": "# Long\n\n" + "word " * 2_600}, "long.md: 2601 words, at most 2600"),
    "the_index_leads_to_every_page": (
        {f"{PAGES}/README.md": "[one](one.md)\n", f"{PAGES}/one.md": "# One\n", f"{PAGES}/research/two.md": "# Two\n"},
        "does not lead to research/two.md",
    ),
    "the_glossary_is_short": (
        {
            f"{PAGES}/glossary.md": "| term | meaning | module |\n|---|---|---|\n"
            + "| job | It runs. | `job.py` |\n" * 41
        },
        "41 terms, at most 40",
    ),
    "named_pages_exist": ({"cotenant/why.py": f'"""See {PAGES}/decisions/0042."""\n'}, "decisions/0042 does not exist"),
    "links_lead_to_headings": (
        {f"{PAGES}/page.md": "# Page\n\n[more](other.md#more)\n", f"{PAGES}/other.md": "# Other\n\n## Less\n"},
        "other.md#more is no heading",
    ),
    "named_modules_exist": (
        {"README.md": "`core/engine.py` and `core/motor.py`\n", "scheduler_service/core/engine.py": ""},
        "core/motor.py does not exist",
    ),
    "no_number_is_read_back_from_a_reason": (
        {"scheduler_service/core/room.py": "def f(hold): return hold.reason.numbers.get('gpu_memory_bytes')\n"},
        "room.py:1: a number is read back",
    ),
    "retired_names_stay_away": (
        {
            "tests/support/renames/retired.toml": 'applied = true\n[identifiers]\nslot = "gpu_slot"\n',
            "cotenant/place.py": "def take(*, slot: int) -> str:\n    return f'{slot}'\n",
        },
        "cotenant/place.py:1: slot is retired, say gpu_slot",
    ),
}


@pytest.fixture(scope="module")
def repository() -> Iterator[Tree]:
    """All rules share its syntax trees: a million nodes, through which the garbage collector would look in vain."""
    gc.disable()
    yield tracked_tree(ROOT)
    gc.enable()


@pytest.mark.parametrize("rule", ALL_RULES, ids=lambda rule: rule.__name__)
def test_the_tree_keeps_the_rule(rule: Rule, repository: Tree) -> None:
    assert rule(repository) == []


def test_a_file_that_may_be_longer_needs_to_be_and_has_a_limit_too(repository: Tree, tmp_path: Path) -> None:
    for path, most in LONGER_FILES_LINES_MAX.items():
        assert FILE_LINES_MAX < len(repository.text(path).splitlines()) <= most
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("x = 1\n" * (most + 1))
        (complaint,) = files_are_short(Tree(root=tmp_path, paths=(path,)))
        assert f"{path}: {most + 1} lines, at most {most}" in complaint


@pytest.mark.parametrize("rule", ALL_RULES, ids=lambda rule: rule.__name__)
def test_the_rule_complains_about_a_broken_tree(rule: Rule, tmp_path: Path) -> None:
    files, expected = BROKEN_TREES[rule.__name__]
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    complaints = rule(Tree(root=tmp_path, paths=tuple(files)))
    assert any(expected in complaint for complaint in complaints), complaints


def test_modules_are_reached_by_imports_tables_and_file_names() -> None:
    sources = {
        "tool": "",
        "tool.__main__": "from tool.verbs import VERBS\n",
        "tool.verbs": "VERBS = ['run', 'fair.Fifo']\nimport_module(f'tool.rules.{VERBS[1]}')\n",
        "tool.run": "SHIM = Path(__file__).with_name('shim.py')\n",
        "tool.shim": "",
        "tool.rules": "",
        "tool.rules.fair": "from tool.rules import order\n",
        "tool.rules.order": "",
        "tool.rules.ruler": "from tool.rules import program\n",
        "tool.rules.program": "",
    }
    modules = {name: ast.parse(text) for name, text in sources.items()}
    assert unreached(modules, ["tool.__main__"]) == ["tool.rules.program", "tool.rules.ruler"]


def test_functions_are_found_in_blocks_of_every_kind() -> None:
    blocks = (
        "class C:\n    @decorated\n    async def {}(self): ...\n",
        "def {}():\n    def inner(): ...\n",
        "if a:\n    pass\nelse:\n    def {}(): ...\n",
        "try:\n    pass\nexcept OSError:\n    def {}(): ...\nfinally:\n    def last(): ...\n",
        "match a:\n    case 1:\n        with b:\n            def {}(): ...\n",
        "for a in b:\n    while c:\n        def {}(): ...\n",
    )
    module = ast.parse("".join(text.format(f"f{number}") for number, text in enumerate(blocks)))
    assert {node.name for node in functions_of(module)} == {*(f"f{n}" for n in range(len(blocks))), "inner", "last"}
    assert len(list(functions_of(module))) == len(blocks) + 2


def test_an_empty_tree_breaks_no_rule(tmp_path: Path) -> None:
    assert {rule.__name__: rule(Tree(root=tmp_path, paths=())) for rule in ALL_RULES} == {
        rule.__name__: [] for rule in ALL_RULES
    }


def complaints_about(folder: Path, name: str, files: dict[str, str]) -> list[str]:
    """Return what the document rule of that name says about a tree of these files."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    rules = {rule.__name__: rule for rule in DOCUMENT_RULES}
    return rules[name](Tree(root=folder, paths=tuple(files)))


@pytest.mark.parametrize("count", [20, 21])
def test_there_is_room_for_twenty_decisions(count: int, tmp_path: Path) -> None:
    records = {f"{PAGES}/decisions/{number:04d}-one.md": DECISION for number in range(1, count + 1)}
    assert len(complaints_about(tmp_path, "decisions_are_numbered_pages", records)) == count - 20


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        ("accepted", "superseded by 0001", None),
        ("accepted", "superseded by 0009", "superseded by 0009, which does not exist"),
        ("2026-11-21", "yesterday", "line 4: say 'Date: YEAR-MONTH-DAY'"),
    ],
)
def test_a_decision_is_superseded_by_one_that_exists(
    before: str, after: str, complaint: str | None, tmp_path: Path
) -> None:
    path = f"{PAGES}/decisions/0001-one.md"
    found = complaints_about(tmp_path, "decisions_have_a_status_and_a_date", {path: DECISION.replace(before, after)})
    assert found == ([f"{path}: {complaint}"] if complaint else [])


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        ("decision 1 and Decision 0001", []),
        ("decisions 7", ["decisions/0007"]),
        (f"{PAGES}/decisions/0001-one.md.", []),
        (f"{PAGES}/decisions/0001 in {PAGES}/decisions", []),
        (f"{PAGES}/decisions/0001-two.md", ["decisions/0001-two.md"]),
    ],
)
def test_pages_are_named_by_path_or_by_number(words: str, missing: list[str], tmp_path: Path) -> None:
    files = {f"{PAGES}/decisions/0001-one.md": DECISION, "protos/why.proto": f"// {words}\n"}
    assert complaints_about(tmp_path, "named_pages_exist", files) == [
        f"protos/why.proto: {PAGES}/{page} does not exist" for page in missing
    ]


def generate_stubs(contract: Path, output: Path) -> subprocess.CompletedProcess[str]:
    """Run the contract's own script with this environment's tools."""
    command = ["bash", str(contract / "deploy/generate_protos.sh"), str(Path(sys.executable).parent), str(output)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)


def changed_contract(folder: Path, before: str, after: str) -> Path:
    """Copy protos and their script, with one change in resources.proto."""
    shutil.copytree(ROOT / "protos", folder / "protos")
    (folder / "deploy").mkdir()
    shutil.copy(ROOT / "deploy/generate_protos.sh", folder / "deploy")
    proto = folder / "protos/cotenant/v1/resources.proto"
    text = re.sub(before, after, proto.read_text(), count=1, flags=re.MULTILINE)
    assert text != proto.read_text(), "the sample must change something"
    proto.write_text(text)
    return folder


def stale_stubs(fresh: Path) -> list[str]:
    """Return the committed stubs that differ from those in a folder, and those on one side only."""
    committed = ROOT / "cotenant/v1"
    names = {path.name for folder in (fresh, committed) for path in folder.glob("*_pb2*")}
    _, mismatch, missing = filecmp.cmpfiles(fresh, committed, sorted(names), shallow=False)
    return mismatch + missing


def test_the_committed_stubs_are_fresh_and_no_change_is_breaking(tmp_path: Path) -> None:
    done = generate_stubs(ROOT, tmp_path)
    assert done.returncode == 0, f"a breaking change or a lint finding:\n{done.stdout}{done.stderr}"
    assert stale_stubs(tmp_path / "cotenant/v1") == [], "run `make protos` and commit cotenant/v1"


def test_stubs_of_another_contract_are_stale(tmp_path: Path) -> None:
    contract = changed_contract(
        tmp_path / "contract", r"^message (\w+) \{$", r"message Added { int64 value = 1; }\n\g<0>"
    )
    assert generate_stubs(contract, tmp_path / "out").returncode == 0
    assert "resources_pb2.py" in stale_stubs(tmp_path / "out/cotenant/v1")


def test_a_removed_field_is_refused_as_breaking(tmp_path: Path) -> None:
    contract = changed_contract(tmp_path / "contract", r"^  \w+ \w+ = 1;\n", "")
    done = generate_stubs(contract, tmp_path / "out")
    assert done.returncode != 0
    assert "was deleted" in done.stdout + done.stderr
