"""The committed map of retired names, and which entries hold in which file.

`retired.toml` has three parts: `applied` says whether the tree has been renamed, `[modules]` maps dotted module paths,
`[identifiers]` maps spellings. An identifier's entry is the new spelling, or a table with

- `to`: the new spelling,
- `within`: prefixes of paths; the entry holds there only,
- `except`: prefixes of paths where the spelling means something else,
- `not_from`: modules whose own thing of that spelling keeps its name, here and where it is imported,
- `after_protos`: the spelling is a name of the contract today; the entry waits until it no longer is,
- `despite`: why it may be renamed although somebody else has a name of that spelling,

or a list of such tables where one spelling meant several things; the first that holds in a file counts.
"""

from __future__ import annotations

import ast
import keyword
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

MAP_PATH = "tests/support/renames/retired.toml"
GENERATED_FOLDER = "cotenant/v1/"
TOOL_TESTS = ("tests/support/renames/", "tests/unit/renames/")
"""Files that talk about retired names; the tool leaves them as they are."""
_KEYS = frozenset({"to", "within", "except", "not_from", "after_protos", "despite"})


class MapError(ValueError):
    """The map contradicts itself; the message names the entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One retired spelling.

    Attributes:
        old: Retired spelling.
        new: What it is called now.
        within: Prefixes of paths where the entry holds; empty = everywhere.
        but_not: Prefixes of paths where it does not.
        not_from: Modules that own another thing of that spelling.
        after_protos: Waits until the spelling is no name of the contract.
        despite: Why another's name of that spelling does not matter; empty = it does.
    """

    old: str
    new: str
    within: tuple[str, ...] = ()
    but_not: tuple[str, ...] = ()
    not_from: tuple[str, ...] = ()
    after_protos: bool = False
    despite: str = ""

    def holds_in(self, path: str) -> bool:
        """Whether the entry is meant for a file, as far as its path says."""
        return path.startswith(self.within or ("",)) and not path.startswith((*self.but_not, *TOOL_TESTS))


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameMap:
    """Everything that is renamed.

    Attributes:
        applied: Whether the tree has been renamed.
        modules: New dotted path of every renamed module by its old one.
        entries: Retired spellings.
    """

    applied: bool
    modules: Mapping[str, str]
    entries: tuple[Entry, ...]

    def names_in(self, path: str, module: ast.Module) -> dict[str, str]:
        """Return the new spelling of every retired one that means the retired thing in this file."""
        here = module_of(path)
        return {
            entry.old: entry.new
            for entry in reversed(self.entries)
            if entry.holds_in(path) and not _owned_elsewhere(entry, here, module)
        }


def _owned_elsewhere(entry: Entry, here: str, module: ast.Module) -> bool:
    if not entry.not_from:
        return False
    return here in entry.not_from or any(
        isinstance(node, ast.ImportFrom)
        and node.module in entry.not_from
        and any(alias.name == entry.old for alias in node.names)
        for node in ast.walk(module)
    )


def module_of(path: str) -> str:
    """Return the dotted module of a Python file's path; profiling/ is a folder, not a package."""
    return path.removeprefix("profiling/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def known_modules(paths: Iterable[str]) -> frozenset[str]:
    """Return the dotted path of every module and package of a tree."""
    modules = {module_of(path) for path in paths if path.endswith(".py")}
    parents = {
        str(parent).replace("/", ".") for one in modules for parent in PurePosixPath(one.replace(".", "/")).parents
    }
    return frozenset((modules | parents) - {"."})


def read_map(text: str) -> RenameMap:
    """Return the map that a file holds.

    Raises:
        MapError: A table has an unknown key, a name is none, two modules get one name, or a new name is retired too.
    """
    data = tomllib.loads(text)
    entries = tuple(
        _entry(old, one)
        for old, value in data.get("identifiers", {}).items()
        for one in (value if isinstance(value, list) else [value])
    )
    modules: dict[str, str] = data.get("modules", {})
    _check(entries, modules)
    return RenameMap(applied=bool(data.get("applied", False)), modules=modules, entries=entries)


def load_map(root: Path) -> RenameMap:
    """Return the map of a tree."""
    return read_map((root / MAP_PATH).read_text(encoding="utf-8"))


def _entry(old: str, value: str | dict[str, object]) -> Entry:
    if isinstance(value, str):
        return Entry(old=old, new=value)
    if unknown := sorted(value.keys() - _KEYS):
        raise MapError(f"{old}: unknown {', '.join(unknown)}; known are {', '.join(sorted(_KEYS))}")
    return Entry(
        old=old,
        new=str(value["to"]),
        within=_strings(value.get("within", [])),
        but_not=_strings(value.get("except", [])),
        not_from=_strings(value.get("not_from", [])),
        after_protos=bool(value.get("after_protos", False)),
        despite=str(value.get("despite", "")),
    )


def _strings(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise MapError(f"expected a list of texts, found {value!r}")
    return tuple(str(item) for item in value)


def _check(entries: tuple[Entry, ...], modules: Mapping[str, str]) -> None:
    retired = {entry.old for entry in entries}
    for entry in entries:
        for name in (entry.old, entry.new):
            if not name.isidentifier() or keyword.iskeyword(name):
                raise MapError(f"{entry.old}: {name!r} is no identifier")
        if entry.new in retired:
            raise MapError(f"{entry.old}: its new name {entry.new} is retired too; a second run would rename it again")
    for name, count in Counter(modules.values()).items():
        if count > 1 or name in modules:
            raise MapError(f"module {name}: the name of two modules, or retired too")
