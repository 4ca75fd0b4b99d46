"""Renders the chart of deploy/kubernetes as far as it uses Helm's language: conditions, files with replaced words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

Row = dict[str, Any]
FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
TEMPLATE = FOLDER / "templates" / "cotenant.yaml"
_ACTION = re.compile(r"\{\{(-?)\s*(.*?)\s*\}\}", re.DOTALL)
_WORDS = re.compile(r'"[^"]*"|\([^)]*\)|[^\s|]+')


def default_values() -> Row:
    """Return the values that the chart ships."""
    found: Row = yaml.safe_load((FOLDER / "values.yaml").read_text())
    return found


def render(values: Mapping[str, Any]) -> list[Row]:
    """Return the objects that the chart makes of some values."""
    text, kept, end, taken = "", [True], 0, TEMPLATE.read_text()
    for action in _ACTION.finditer(taken):
        before = taken[end : action.start()]
        text += (before.rstrip() if action[1] else before) * all(kept)
        end = action.end()
        if action[2].startswith("if "):
            kept.append(_holds(action[2].removeprefix("if "), values))
        elif action[2] == "end":
            kept.pop()
        elif not action[2].startswith("/*"):
            text += _piped(action[2], values) * all(kept)
    assert kept == [True]
    return [row for row in yaml.safe_load_all(text + taken[end:]) if row]


def _holds(condition: str, values: Mapping[str, Any]) -> bool:
    words = [_value(word, values) for word in _WORDS.findall(condition)]
    return bool(words[1] == words[2] if condition.startswith("eq ") else words[0])


def _piped(pipe: str, values: Mapping[str, Any]) -> str:
    first, *steps = (_WORDS.findall(part) for part in pipe.split(" | "))
    assert first[0] == ".Files.Get", f"{pipe}: a form that is not rendered here"
    text = (FOLDER / str(_value(first[1], values))).read_text()
    for name, *arguments in steps:
        assert name == "replace", f"{name}: a form that is not rendered here"
        old, new = (str(_value(argument, values)) for argument in arguments)
        assert old in text, f"{old!r} does not stand in {first[1]}"
        text = text.replace(old, new)
    return text


def _value(word: str, values: Mapping[str, Any]) -> object:
    if word.startswith("(printf "):
        form, *arguments = (_value(part, values) for part in _WORDS.findall(word[1:-1])[1:])
        return str(form) % tuple(arguments)
    if word.startswith(".Values."):
        return values[word.removeprefix(".Values.")]
    return word.strip('"')
