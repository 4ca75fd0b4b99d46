"""Proves a rename: the new syntax tree is the old one with its names mapped, and no two things share a name now.

The tree is mapped node by node, apart from the code that rewrites tokens: what one of them forgets, the other finds.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping

from tests.support.renames.named_strings import docstrings, named_constants
from tests.support.renames.prose import rename_docstring, rename_prose, rename_words
from tests.support.renames.source_text import Renamer, bound_modules, renamed_member, renamed_module

_ATTRIBUTES_OF_NAMES: Mapping[type[ast.AST], str] = {
    ast.Attribute: "attr",
    ast.keyword: "arg",
    ast.FunctionDef: "name",
    ast.AsyncFunctionDef: "name",
    ast.ClassDef: "name",
    ast.ExceptHandler: "name",
    ast.MatchAs: "name",
    ast.MatchStar: "name",
    ast.MatchMapping: "rest",
}
_LISTS_OF_NAMES: Mapping[type[ast.AST], str] = {
    ast.Global: "names",
    ast.Nonlocal: "names",
    ast.MatchClass: "kwd_attrs",
}


def is_proved(old: str, new: str, renamer: Renamer) -> bool:
    """Whether a file's new syntax tree is the old one modulo the map, the order of imports and the layout of prose."""
    return canonical(mapped(ast.parse(old), renamer)) == canonical(ast.parse(new))


def mapped(module: ast.Module, renamer: Renamer) -> ast.Module:
    """Return a tree with its names mapped; the tree itself is changed."""
    bound = bound_modules(module, renamer.modules, renamer.known_modules)
    documented = {id(node) for node in docstrings(module)}
    named = {id(node) for node in named_constants(module)}
    names = renamer.names
    for node in ast.walk(module):
        if (attribute := _ATTRIBUTES_OF_NAMES.get(type(node))) and getattr(node, attribute):
            setattr(node, attribute, names.get(getattr(node, attribute), getattr(node, attribute)))
        elif attribute := _LISTS_OF_NAMES.get(type(node)):
            setattr(node, attribute, [names.get(name, name) for name in getattr(node, attribute)])
        elif isinstance(node, ast.Name):
            node.id = bound.get(node.id) or names.get(node.id, node.id)
        elif isinstance(node, ast.arg):
            node.arg = bound.get(node.arg) or names.get(node.arg, node.arg)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            _map_import(node, renamer)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = _map_text(node, renamer, is_named=id(node) in named, is_documentation=id(node) in documented)
    return module


def _map_import(node: ast.Import | ast.ImportFrom, renamer: Renamer) -> None:
    names = renamer.names
    for alias in node.names:
        alias.asname = names.get(alias.asname, alias.asname) if alias.asname else None
        if isinstance(node, ast.Import):
            alias.name = renamed_module(alias.name, renamer.modules)
        else:
            alias.name = renamed_member(node.module or "", alias.name, renamer)
    if isinstance(node, ast.ImportFrom):
        node.module = renamed_module(node.module or "", renamer.modules)


def _map_text(node: ast.Constant, renamer: Renamer, *, is_named: bool, is_documentation: bool) -> str:
    if is_named:
        return rename_words(str(node.value), renamer.names)
    rename = rename_docstring if is_documentation else rename_prose
    return rename(str(node.value), renamer.names, renamer.modules)


def canonical(module: ast.Module) -> str:
    """Return a tree as text in which neither the order of neighbouring imports nor the layout of docstrings counts."""
    for text in docstrings(module):
        text.value = " ".join(str(text.value).split())
    for node in ast.walk(module):
        if isinstance(node, ast.Import | ast.ImportFrom):
            node.names.sort(key=lambda alias: alias.name)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.kind = None
    _sort_imports(module)
    return ast.dump(module)


def _sort_imports(module: ast.Module) -> None:
    for node in ast.walk(module):
        for name in ("body", "orelse", "finalbody"):
            if isinstance(body := getattr(node, name, None), list):
                setattr(node, name, _with_imports_sorted(body))


def _with_imports_sorted(body: list[ast.stmt]) -> list[ast.stmt]:
    done: list[ast.stmt] = []
    run: list[ast.stmt] = []
    for statement in [*body, None]:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            run.append(statement)
            continue
        done += sorted(run, key=ast.dump)
        run = []
        if statement is not None:
            done.append(statement)
    return done


def collisions(module: ast.Module, names: Mapping[str, str]) -> list[str]:
    """Return, for every scope in which two things would share a name, its line and what they are.

    A scope is a module's top level together with one statement of it (bare names), a call (keywords), or a class (its
    fields, methods and the attributes that its methods set).
    """
    top = {name for statement in module.body for name in _bound_by(statement)}
    found = set()
    for statement in module.body:
        own = {name for node in ast.walk(statement) for name in _bare_names(node)}
        found |= set(_merged(own | (top & _touched(own, names)), names, statement))
        for node in ast.walk(statement):
            if isinstance(node, ast.ClassDef):
                found |= set(_merged(_members(node), names, node))
            if isinstance(node, ast.Call):
                found |= set(_merged({one.arg for one in node.keywords if one.arg}, names, node))
    found |= set(_merged(top, names, module))
    return sorted(found)


def _touched(own: Collection[str], names: Mapping[str, str]) -> set[str]:
    """Return the spellings that could meet one of a scope's names after the rename."""
    images = {names.get(name, name) for name in own}
    return images | {old for old, new in names.items() if new in images}


def _merged(scope: Collection[str], names: Mapping[str, str], node: ast.AST) -> Iterator[str]:
    by_new: dict[str, set[str]] = defaultdict(set)
    for name in scope:
        by_new[names.get(name, name)].add(name)
    for new, old in by_new.items():
        if len(old) > 1:
            yield f"{getattr(node, 'lineno', 1)}: {' and '.join(sorted(old))} would both be {new}"


def _bare_names(node: ast.AST) -> list[str]:
    match node:
        case ast.Name(id=name) | ast.arg(arg=name) | ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
            return [name]
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Import() | ast.ImportFrom():
            return [alias.asname or alias.name.partition(".")[0] for alias in node.names]
    return []


def _bound_by(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    return [
        name
        for node in ast.walk(statement)
        for name in _bare_names(node)
        if not isinstance(node, ast.Name) or isinstance(node.ctx, ast.Store)
    ]


def _members(node: ast.ClassDef) -> set[str]:
    stored = {
        one.attr
        for one in ast.walk(node)
        if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store) and getattr(one.value, "id", "") == "self"
    }
    return stored | {name for statement in node.body for name in _bound_by(statement)}
