"""Which modules of the product a program reaches: by imports, and by strings where a table or a path names a module."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath

_DOTTED = re.compile(r"[A-Za-z_][\w.]*")


def modules_of_packages(paths: Iterable[str], packages: Iterable[str]) -> dict[str, str]:
    """Return the path of every module of some packages by its dotted name.

    Args:
        paths: Of files.
        packages: Paths of packages, as the wheel lists them; what lies above a package is not part of its name.
    """
    found = {}
    for package in packages:
        above = PurePosixPath(package).parent
        for path in paths:
            if path.startswith(f"{package}/") and path.endswith(".py"):
                parts = PurePosixPath(path).relative_to(above).with_suffix("").parts
                found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def unreached(modules: Mapping[str, ast.Module], starts: Iterable[str]) -> list[str]:
    """Return the modules that nothing reaches from the starts, by name."""
    reached: set[str] = set()
    waiting = [name for name in starts if name in modules]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += [found for found in _named_in(name, modules[name]) if found in modules]
    return sorted(set(modules) - reached)


def _named_in(name: str, module: ast.Module) -> Iterator[str]:
    """Yield the names that may be modules: imports with all packages above them, and whatever a string may mean."""
    strings = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _with_packages(alias.name)
        elif isinstance(node, ast.ImportFrom) and node.level and node.module:
            yield f"{name.rsplit('.', node.level)[0]}.{node.module}"
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from _with_packages(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _DOTTED.fullmatch(node.value):
            strings.add(node.value)
    # `import_module(f"package.{entry}")` takes its entries, modules or names in them, from a table next to it.
    packages = {f"{name.rpartition('.')[0]}.", *(text for text in strings if text.endswith("."))}
    yield from strings
    for text in strings:
        for package in packages:
            yield package + text.removesuffix(".py")
            yield package + text.rpartition(".")[0]


def _with_packages(name: str) -> Iterator[str]:
    parts = name.split(".")
    yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))
