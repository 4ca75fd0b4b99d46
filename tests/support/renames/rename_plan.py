"""What a map does to a tree of files, computed before anything is written, with everything that speaks against it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from tests.support.renames.long_lines import break_long_lines
from tests.support.renames.proof import collisions, is_proved
from tests.support.renames.prose import rename_prose
from tests.support.renames.rename_map import (
    GENERATED_FOLDER,
    MAP_PATH,
    TOOL_TESTS,
    RenameMap,
    known_modules,
    module_of,
)
from tests.support.renames.source_text import Renamer, renamed_module, words_of

_DOCUMENTS = (".md", ".toml", ".yml", ".yaml", ".sh", ".cfg", "Makefile", "Dockerfile")
_PROGRAM = re.compile(r"^\s*(?:from [\w.]+ )?import \w", re.MULTILINE)
_STORED = "tests/goldens/version"


@dataclass(frozen=True, slots=True, kw_only=True)
class RenamePlan:
    """What would change.

    Attributes:
        texts: New text of every file that changes, by its path today.
        moves: New path of every file that moves, by its path today.
        objections: Why the rename must not happen, with file and line.
        remarks: What a person should look at.
    """

    texts: Mapping[str, str]
    moves: Mapping[str, str]
    objections: tuple[str, ...]
    remarks: tuple[str, ...]


def plan_renames(
    files: Mapping[str, str], wanted: RenameMap, *, contract: Mapping[str, str], external: Mapping[str, str]
) -> RenamePlan:
    """Return what the map does to a tree.

    Args:
        files: Text of every tracked text file, by path.
        wanted: The map.
        contract: Names of the contract, and where they are.
        external: Other spellings that belong to others, and to whom.
    """
    known = known_modules(files)
    modules, objections, remarks = _modules(wanted, known)
    entries = []
    for entry in wanted.entries:
        if entry.after_protos and entry.old in contract:
            remarks.append(f"{entry.old}: waits, {contract[entry.old]}")
            continue
        owner = contract.get(entry.old) or external.get(entry.old)
        if owner and not entry.despite:
            objections.append(f"{entry.old}: must keep its name, it is {owner}")
        entries.append(entry)
    effective = replace(wanted, entries=tuple(entries), modules=modules)
    texts: dict[str, str] = {}
    for path, text in files.items():
        if path.startswith((GENERATED_FOLDER, _STORED, *TOOL_TESTS)) or path == MAP_PATH:
            continue
        if path.endswith(".py"):
            new = _python(path, text, effective, known, objections=objections, remarks=remarks)
        elif path.endswith(_DOCUMENTS):
            new = rename_prose(text, {entry.old: entry.new for entry in entries if entry.holds_in(path)}, modules)
        else:
            continue
        if new != text:
            texts[path] = new
    return RenamePlan(texts=texts, moves=_moves(files, modules), objections=tuple(objections), remarks=tuple(remarks))


def _modules(wanted: RenameMap, known: frozenset[str]) -> tuple[dict[str, str], list[str], list[str]]:
    modules, objections, remarks = {}, [], []
    for old, new in wanted.modules.items():
        if old not in known:
            remarks.append(f"module {old}: not there (done, moved or gone)")
            continue
        if new in known:
            objections.append(f"module {old}: {new} is there already")
        modules[old] = new
    return modules, objections, remarks


def _python(
    path: str,
    text: str,
    wanted: RenameMap,
    known: frozenset[str],
    *,
    objections: list[str],
    remarks: list[str],
) -> str:
    try:
        module = ast.parse(text)
    except SyntaxError as error:
        remarks.append(f"{path}: is no Python ({error.msg})")
        return text
    names = wanted.names_in(path, module)
    last_parts = {old.rpartition(".")[2] for old in wanted.modules}
    if (names.keys() | last_parts).isdisjoint(words_of(text)):
        return text
    renamer = Renamer(names=names, modules=wanted.modules, known_modules=known)
    new = renamer.rename(text)
    objections += [f"{path}:{finding}" for finding in collisions(module, names)]
    remarks += [f"{path}:{finding}" for finding in _equal_strings(module, names)]
    if new == text:
        return text
    if not is_proved(text, new, renamer):
        objections.append(f"{path}: the new syntax tree is not the old one modulo the map")
    broken = break_long_lines(new)
    if not is_proved(text, broken, renamer):
        objections.append(f"{path}: breaking long lines changed more than the layout")
    return broken


def _equal_strings(module: ast.Module, names: Mapping[str, str]) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in names:
            yield f"{node.lineno}: the text {node.value!r} is a retired name and stays; is it one?"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _PROGRAM.search(node.value):
            met = sorted(names.keys() & words_of(node.value))
            yield from (f"{node.lineno}: a program in a string; rename by hand {name}" for name in met)


def _moves(files: Mapping[str, str], modules: Mapping[str, str]) -> dict[str, str]:
    moves = {}
    for path in files:
        if path.endswith((".py", ".pyi")):
            stem = path.rpartition(".")[0]
            here = module_of(path)
            new = renamed_module(here, modules)
            if new != here:
                old_path, new_path = here.replace(".", "/"), new.replace(".", "/")
                moves[path] = stem.replace(old_path, new_path) + PurePosixPath(path).suffix
    return moves


def read_files(root: Path, paths: tuple[str, ...]) -> dict[str, str]:
    """Return the text of every file that could name things; a file that is no UTF-8 names none."""
    texts = {}
    for path in paths:
        if path.endswith((".py", ".pyi", *_DOCUMENTS)):
            texts[path] = (root / path).read_text(encoding="utf-8")
    return texts
