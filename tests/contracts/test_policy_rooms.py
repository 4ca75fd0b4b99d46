"""The folder of policies holds policies; what they share lies in rooms below, and no room knows a policy."""

from __future__ import annotations

import ast
from pathlib import Path

from scheduler_service.policy_registry import POLICIES
from tests.support.cases import for_each

FOLDER = Path(__file__).resolve().parents[2] / "scheduler_service/policies"
POLICY_MODULES = {entry.path.partition(".")[0] for entry in POLICIES.values()}
ROOMS = sorted(path for path in FOLDER.iterdir() if path.is_dir() and path.name != "__pycache__")


def test_every_module_of_the_folder_is_a_policy_of_the_registry() -> None:
    modules = {path.stem for path in FOLDER.glob("*.py")} - {"__init__"}
    assert modules == POLICY_MODULES


@for_each("room", ROOMS)
def test_every_room_says_what_it_is_for(room: Path) -> None:
    says = ast.get_docstring(ast.parse((room / "__init__.py").read_text()))
    assert says is not None
    assert len(says.split()) >= 20


@for_each("room", ROOMS)
def test_no_room_imports_a_policy(room: Path) -> None:
    imported = {
        f"{node.module}.{name.name}"
        for path in room.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    policies = {f"scheduler_service.policies.{module}" for module in POLICY_MODULES}
    assert not [one for one in imported if one in policies or one.rpartition(".")[0] in policies]
