"""Renaming inside strings, comments and documents: paths of modules, names in backticks, sections of docstrings.

Other words are left alone: a word of English is no name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

_QUOTED = re.compile(r"(?<!`)(`{1,2})([A-Za-z_][\w.]*)((?:\(\))?)\1(?!`)")
_WORD = re.compile(r"[A-Za-z_]\w*")
_SECTION = re.compile(r"^\s*(Args|Attributes|Raises|Yields|Returns|Example|Examples|Note):\s*$")
_ITEM = re.compile(r"^(\s*\*{0,2})(\w+)((?: \([^)]*\))?:(?:\s.*)?)$", re.DOTALL)
_NAMING_SECTIONS = frozenset({"Args", "Attributes", "Raises"})


def rename_words(text: str, names: Mapping[str, str]) -> str:
    """Return a text whose words are names, e.g. a quoted annotation, with each of them renamed."""
    return _WORD.sub(lambda found: names.get(found.group(), found.group()), text)


def rename_prose(text: str, names: Mapping[str, str], modules: Mapping[str, str]) -> str:
    """Return a text with module paths (dotted or with slashes) and names in backticks renamed."""
    text = rename_module_paths(text, names, modules)
    return _QUOTED.sub(lambda found: f"{found[1]}{_chain(found[2], names, modules)}{found[3]}{found[1]}", text)


def rename_docstring(text: str, names: Mapping[str, str], modules: Mapping[str, str]) -> str:
    """Return a docstring with the names of its Args, Attributes and Raises renamed too."""
    lines, section = [], ""
    for line in text.split("\n"):
        if heading := _SECTION.match(line):
            section = heading[1]
        elif not line.strip():
            section = ""
        item = _ITEM.match(line) if section in _NAMING_SECTIONS else None
        lines.append(f"{item[1]}{names.get(item[2], item[2])}{item[3]}" if item else line)
    return rename_prose("\n".join(lines), names, modules)


def rename_module_paths(text: str, names: Mapping[str, str], modules: Mapping[str, str]) -> str:
    """Return a text with `a.b.c`, `a.b.c.Name` and `a/b/c.py` renamed."""
    if not modules:
        return text
    dotted, slashed = _patterns(tuple(modules))
    text = dotted.sub(lambda found: modules[found[1]] + rename_words(found[2], names), text)
    by_path = {old.replace(".", "/"): new.replace(".", "/") for old, new in modules.items()}
    return slashed.sub(lambda found: by_path[found[1]], text)


def _chain(text: str, names: Mapping[str, str], modules: Mapping[str, str]) -> str:
    """Rename a dotted chain in backticks; its first part may be the last one of a module's path."""
    if text.endswith((".py", ".md", ".toml", ".json", ".proto")):
        return text
    first, dot, rest = text.partition(".")
    short = _last_parts(tuple(modules.items())).get(first, "") if dot else ""
    return f"{short or names.get(first, first)}{dot}{rename_words(rest, names)}"


@cache
def _last_parts(modules: tuple[tuple[str, str], ...]) -> Mapping[str, str]:
    return {old.rpartition(".")[2]: new.rpartition(".")[2] for old, new in modules}


@cache
def _patterns(modules: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    longest_first = sorted(modules, key=len, reverse=True)
    dotted = "|".join(re.escape(name) for name in longest_first)
    slashed = "|".join(re.escape(name.replace(".", "/")) for name in longest_first)
    return (
        re.compile(rf"(?<![\w.])({dotted})((?:\.[A-Za-z_]\w*)*)(?!\w)"),
        re.compile(rf"(?<![\w])({slashed})(?=\.py\b|/)"),
    )
