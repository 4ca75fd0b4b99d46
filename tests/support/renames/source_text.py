"""Renames the names of one Python file, token by token.

Words inside strings and comments are left alone, except what `prose` and `named_strings` know to be names, and the
replacement fields of f-strings (one token before Python 3.12).
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tests.support.renames.named_strings import Position, docstrings, named_strings
from tests.support.renames.prose import rename_docstring, rename_prose, rename_words

_WORD = re.compile(r"\w+")
_PREFIX = re.compile(r"[A-Za-z]*")
_FILLERS = frozenset({tokenize.NL, tokenize.COMMENT})
_STARTS = frozenset({tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING})


@dataclass(slots=True, kw_only=True)
class Renamer:
    """The new text of one file.

    Attributes:
        names: New spellings that hold in this file.
        modules: New dotted path of every renamed module.
        known_modules: Every module of the tree, by its old dotted path.
        bound: What names of modules imported by `from package import module` become in this file.
    """

    names: Mapping[str, str]
    modules: Mapping[str, str]
    known_modules: Collection[str]
    bound: dict[str, str] = field(default_factory=dict)

    def rename(self, text: str) -> str:
        """Return the file with every retired name renamed, layout untouched.

        Raises:
            SyntaxError: The text is no Python.
        """
        module = ast.parse(text)
        self.bound = bound_modules(module, self.modules, self.known_modules)
        changes = self._changes(text, _Strings.of(module))
        return _replaced(text, changes)

    def retired_names(self, text: str) -> list[tuple[int, str, str]]:
        """Return the line, the old and the new spelling of every retired name in code, f-strings included.

        Raises:
            SyntaxError: The text is no Python.
        """
        self.bound = bound_modules(ast.parse(text), self.modules, self.known_modules)
        found = []
        for token, new in self._changes(text, _Strings()):
            if token.type == tokenize.NAME:
                found.append((token.start[0], token.string, new))
            elif token.type == tokenize.STRING and _is_formatted(token.string):
                words = {old: new for old, new in self.names.items() if re.search(rf"\b{old}\b", token.string)}
                found += [
                    (token.start[0], old, new)
                    for old, new in words.items()
                    if not re.search(rf"\b{old}\b", self._formatted(token.string))
                ]
        return found

    def _changes(self, text: str, strings: _Strings) -> list[tuple[tokenize.TokenInfo, str]]:
        lines = io.StringIO(text).readlines()
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
        new = self._names(tokens)
        for index, token in enumerate(tokens):
            if token.type == tokenize.STRING:
                row, column = token.start
                position = (row, len(lines[row - 1][:column].encode()))
                new[index] = self._string(token.string, position, strings)
            elif token.type == tokenize.COMMENT or tokenize.tok_name[token.type] == "FSTRING_MIDDLE":
                new[index] = rename_prose(token.string, self.names, self.modules)
        return [(tokens[index], value) for index, value in sorted(new.items()) if value != tokens[index].string]

    def _names(self, tokens: list[tokenize.TokenInfo]) -> dict[int, str]:
        new: dict[int, str] = {}
        index, previous = 0, None
        while index < len(tokens):
            token = tokens[index]
            if token.type in _FILLERS:
                index += 1
                continue
            at_start = previous is None or previous.type in _STARTS or previous.string in {";", ":"}
            if at_start and token.string in {"import", "from"} and token.type == tokenize.NAME:
                index = self._import(tokens, index, new)
            else:
                if token.type == tokenize.NAME:
                    new[index] = self._name(tokens, index, previous)
                index += 1
            previous = tokens[index - 1]
        return new

    def _name(self, tokens: list[tokenize.TokenInfo], index: int, previous: tokenize.TokenInfo | None) -> str:
        name = tokens[index].string
        is_attribute = previous is not None and previous.string == "."
        is_keyword = tokens[index + 1].string == "=" and previous is not None and previous.string in {"(", ","}
        if not is_attribute and not is_keyword and name in self.bound:
            return self.bound[name]
        return self.names.get(name, name)

    def _import(self, tokens: list[tokenize.TokenInfo], begin: int, new: dict[int, str]) -> int:
        """Rename one import statement; return the index of what ends it."""
        end = begin
        while tokens[end].type not in {tokenize.NEWLINE, tokenize.ENDMARKER} and tokens[end].string != ";":
            end += 1
        places = [place for place in range(begin + 1, end) if tokens[place].type not in _FILLERS]
        if tokens[begin].string == "import":
            self._paths(tokens, places, new)
            return end
        middle = next(place for place in places if tokens[place].string == "import")
        module = self._paths(tokens, [place for place in places if place < middle], new)
        renamed_as = False
        for place in (place for place in places if place > middle and tokens[place].type == tokenize.NAME):
            name = tokens[place].string
            if name == "as" or renamed_as:
                renamed_as = name == "as"
                new[place] = self.names.get(name, name)
            else:
                new[place] = renamed_member(module, name, self)
        return end

    def _paths(self, tokens: list[tokenize.TokenInfo], places: list[int], new: dict[int, str]) -> str:
        """Rename the dotted paths in a part of an import statement; return the last of them as it was."""
        path: list[int] = []
        last = ""
        for place in [*places, -1]:
            if place >= 0 and (
                tokens[place].string == "." or (tokens[place].type == tokenize.NAME and _joins(tokens, path, place))
            ):
                path.append(place)
                continue
            if path:
                last = self._path(tokens, path, new)
            path = [place] if place >= 0 and tokens[place].type == tokenize.NAME else []
        return last

    def _path(self, tokens: list[tokenize.TokenInfo], path: list[int], new: dict[int, str]) -> str:
        words = [place for place in path if tokens[place].type == tokenize.NAME]
        old = "".join(tokens[place].string for place in path)
        if old.startswith("."):  # of the module's own package, whose name is not written here
            return old
        new.update(zip(words, renamed_module(old, self.modules).split("."), strict=True))
        return old

    def _string(self, text: str, position: Position, strings: _Strings) -> str:
        if _is_formatted(text):
            return self._formatted(text)
        if position in strings.named:
            return rename_words(text, self.names)
        if position in strings.docstrings:
            return rename_docstring(text, self.names, self.modules)
        return rename_prose(text, self.names, self.modules)

    def _formatted(self, text: str) -> str:
        """Rename the replacement fields of an f-string; its words are prose."""
        pieces, literal, index = [], 0, 0
        while index < len(text):
            if text[index : index + 2] in {"{{", "}}"}:
                index += 2
            elif text[index] == "{":
                end = _field_end(text, index)
                pieces += [rename_prose(text[literal:index], self.names, self.modules), self._field(text[index:end])]
                literal = index = end
            else:
                index += 1
        return "".join([*pieces, rename_prose(text[literal:], self.names, self.modules)])

    def _field(self, text: str) -> str:
        expression, rest = _split_field(text[1:-1])
        return "{" + self._expression(expression) + self._formatted(rest) + "}"

    def _expression(self, text: str) -> str:
        inner = f"({text})"
        tokens = list(tokenize.generate_tokens(io.StringIO(inner).readline))
        new = self._names(tokens)
        for index, token in enumerate(tokens):
            if token.type == tokenize.STRING:
                new[index] = self._string(token.string, (0, -1), _Strings())
        return _replaced(inner, [(tokens[index], value) for index, value in sorted(new.items())])[1:-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Strings:
    """Where strings begin that are more than prose."""

    named: frozenset[Position] = frozenset()
    docstrings: frozenset[Position] = frozenset()

    @classmethod
    def of(cls, module: ast.Module) -> _Strings:
        documented = frozenset((node.lineno, node.col_offset) for node in docstrings(module))
        return cls(named=frozenset(named_strings(module)), docstrings=documented)


def words_of(text: str) -> set[str]:
    """Return every word of a text: a file that holds no retired one needs no look at its tokens."""
    return set(_WORD.findall(text))


def renamed_module(path: str, modules: Mapping[str, str]) -> str:
    """Return the new dotted path of a module or package; what lies in a renamed package moves with it."""
    head, tail = path, ""
    while head:
        if head in modules:
            return modules[head] + tail
        head, dot, last = head.rpartition(".")
        tail = f"{dot}{last}{tail}"
    return path


def renamed_member(module: str, name: str, renamer: Renamer) -> str:
    """Return the new spelling of what an import statement takes from a module: a module below it, or a name in it."""
    path = f"{module}.{name}"
    if path in renamer.known_modules:
        return renamed_module(path, renamer.modules).rpartition(".")[2]
    return renamer.names.get(name, name) if _is_ours(module, renamer.known_modules) else name


def bound_modules(module: ast.Module, modules: Mapping[str, str], known: Collection[str]) -> dict[str, str]:
    """Return the names that stand for modules in a file (`from package import module`), and their new spelling."""
    return {
        alias.name: renamed_module(path, modules).rpartition(".")[2]
        for node in ast.walk(module)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
        if not alias.asname and (path := f"{node.module}.{alias.name}") in known
    }


def _is_formatted(text: str) -> bool:
    prefix = _PREFIX.match(text)
    return prefix is not None and "f" in prefix[0].lower()


def _is_ours(module: str, known: Collection[str]) -> bool:
    return module in known


def _joins(tokens: list[tokenize.TokenInfo], path: list[int], place: int) -> bool:
    return bool(path) and tokens[path[-1]].string == "." and tokens[place].string not in {"import", "as"}


def _field_end(text: str, begin: int) -> int:
    """Return the index after the brace that closes the replacement field at `begin`."""
    depth, index, quote = 0, begin, ""
    while index < len(text):
        character = text[index]
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in "{[(":
            depth += 1
        elif character in ")]}":
            depth -= 1
            if depth == 0:
                return index + 1
        index += 1
    raise SyntaxError(f"unclosed replacement field in {text!r}")


def _split_field(text: str) -> tuple[str, str]:
    """Return a replacement field's expression, and what follows it: `=`, a conversion, a format."""
    depth, quote = 0, ""
    for index, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in "{[(":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif depth == 0 and (character == ":" or (character == "!" and text[index + 1 : index + 2] != "=")):
            return text[:index], text[index:]
    return text, ""


def _replaced(text: str, changes: list[tuple[tokenize.TokenInfo, str]]) -> str:
    lines = io.StringIO(text).readlines()
    offsets = [0]
    for line in lines:
        offsets.append(offsets[-1] + len(line))
    for token, value in reversed(changes):
        begin = offsets[token.start[0] - 1] + token.start[1]
        end = offsets[token.end[0] - 1] + token.end[1]
        text = text[:begin] + value + text[end:]
    return text
