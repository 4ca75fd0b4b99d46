"""Renames what the committed map retires: `python -m tests.support.renames --check`, then `--apply`.

Works on the tracked files of the working tree. `--apply` writes, moves modules, formats, proves the result once more
and marks the map as applied, which switches the repository's rule on. A second run changes nothing.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

from tests.support.renames.external_names import contract_names, external_names
from tests.support.renames.long_lines import break_long_strings
from tests.support.renames.rename_map import MAP_PATH, load_map
from tests.support.renames.rename_plan import RenamePlan, plan_renames, read_files
from tests.support.repository_rules import tracked_tree

ROOT = Path(__file__).resolve().parents[3]


def main(arguments: list[str] | None = None) -> int:
    """Check or apply the map; return the exit code: 0, or 1 when something speaks against it."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.renames", description=__doc__)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--check", action="store_true", help="say what would change, and what speaks against it")
    mode.add_argument("--apply", action="store_true", help="rename, move, format and mark the map as applied")
    parser.add_argument("--root", type=Path, default=ROOT, help="the working tree")
    options = parser.parse_args(arguments)
    root: Path = options.root.resolve()
    files = read_files(root, tracked_tree(root).paths)
    plan = plan_renames(files, load_map(root), contract=contract_names(), external=external_names(root))
    _tell(plan)
    if plan.objections:
        return 1
    if options.apply:
        _apply(root, plan)
    return 0


def _tell(plan: RenamePlan) -> None:
    for remark in plan.remarks:
        sys.stdout.write(f"look at   {remark}\n")
    for objection in plan.objections:
        sys.stdout.write(f"objection {objection}\n")
    counts = f"{len(plan.texts)} files change, {len(plan.moves)} move, {len(plan.objections)} objections"
    sys.stdout.write(f"{counts}\n")


def _apply(root: Path, plan: RenamePlan) -> None:
    for path, text in plan.texts.items():
        (root / path).write_text(text, encoding="utf-8")
    for old, new in plan.moves.items():
        (root / new).parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "mv", old, new], cwd=root, check=True)
    if paths := [plan.moves.get(path, path) for path in plan.texts if path.endswith(".py")]:
        _format(root, paths)
    _mark_applied(root / MAP_PATH)


def _format(root: Path, paths: list[str]) -> None:
    """Sort imports and lay out the changed files with this environment's ruff; tell what is left for a person."""
    _ruff(root, "check", "--quiet", "--fix", "--select", "I", *paths)
    _ruff(root, "format", "--quiet", *paths)
    for path in paths:
        text = (root / path).read_text(encoding="utf-8")
        broken = break_long_strings(text)
        if broken != text:
            (root / path).write_text(broken, encoding="utf-8")
    _ruff(root, "format", "--quiet", *paths)
    sys.stdout.write("by hand: what ruff finds now (lines too long, mostly)\n")
    sys.stdout.flush()
    _ruff(root, "check", "--output-format", "concise", *paths)


def _ruff(root: Path, *arguments: str) -> None:
    subprocess.run([str(Path(sys.executable).parent / "ruff"), *arguments], cwd=root, check=False)


def _mark_applied(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    path.write_text(re.sub(r"^applied = false$", "applied = true", text, flags=re.MULTILINE), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
