"""Breaks lines that a longer name made too long and that the formatter leaves: comments, docstrings, long strings."""

from __future__ import annotations

import ast
import re

from tests.support.renames.named_strings import docstrings

WIDTH_MAX = 120
_COMMENT = re.compile(r"^(\s*# )")
_INDENT = re.compile(r"^\s*")
_LONE_STRING = re.compile(r"""^(?P<begin>\s*(?P<opening>[rf]{0,2}"))(?P<content>[^"\\]*)(?P<closing>",?)$""")
_ITEM = re.compile(r"^\s*(?:\*{0,2}\w+(?: \([^)]*\))?: |- |\d+\. )")


def break_long_lines(text: str) -> str:
    """Return a Python file whose comments and docstrings keep the line length, as far as they hold spaces."""
    documented = _docstring_rows(ast.parse(text))
    lines = text.split("\n")
    row = 0
    while row < len(lines):
        line = lines[row]
        comment = _COMMENT.match(line)
        is_summary = row + 1 in documented and row not in documented
        if len(line) > WIDTH_MAX and not is_summary and (comment or row + 1 in documented):
            begin = comment[1] if comment else _continuation(line)
            _break(lines, row, begin, closing=documented.get(row + 1, 0) == row + 1)
            documented = _docstring_rows(ast.parse("\n".join(lines)))
        row += 1
    return "\n".join(lines)


def break_long_strings(text: str) -> str:
    """Return a formatted Python file whose strings that fill a line are two where they were too long for it."""
    lines: list[str] = []
    for line in text.split("\n"):
        found = _LONE_STRING.match(line) if len(line) > WIDTH_MAX else None
        cut = _last_space(line, found.start("content")) if found else -1
        if found and cut > 0:
            indent = " " * found.start("opening")
            lines += [f'{line[: cut + 1]}"', f"{indent}{found['opening']}{line[cut + 1 :]}"]
        else:
            lines.append(line)
    broken = "\n".join(lines)
    return broken if ast.dump(ast.parse(broken)) == ast.dump(ast.parse(text)) else text


def _last_space(line: str, begin: int) -> int:
    """Return the last place of a space outside replacement fields at which a line may be cut."""
    depth, last = 0, -1
    for place in range(begin, WIDTH_MAX - 2):
        depth += (line[place] == "{") - (line[place] == "}")
        if line[place] == " " and depth == 0:
            last = place
    return last


def _docstring_rows(module: ast.Module) -> dict[int, int]:
    """Return the last row of the docstring that each row belongs to."""
    return {
        row: node.end_lineno or node.lineno
        for node in docstrings(module)
        for row in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def _continuation(line: str) -> str:
    indent = _INDENT.match(line)
    depth = len(indent[0]) if indent else 0
    return " " * (depth + (4 if _ITEM.match(line) else 0))


def _break(lines: list[str], row: int, begin: str, *, closing: bool) -> None:
    """Move the words after the line's limit to the next line, which may be too long then."""
    line = lines[row]
    cut = line.rfind(" ", len(begin) + 1, WIDTH_MAX + 1)
    if cut < 0:
        return
    overflow = line[cut + 1 :]
    lines[row] = line[:cut].rstrip()
    following = lines[row + 1] if row + 1 < len(lines) else ""
    is_same_paragraph = following.startswith(begin) and following[len(begin) :][:1].strip() not in {"", '"', "#", "'"}
    if is_same_paragraph and not closing and not _ITEM.match(following):
        lines[row + 1] = f"{begin}{overflow} {following[len(begin) :]}"
    else:
        lines.insert(row + 1, f"{begin}{overflow}")
