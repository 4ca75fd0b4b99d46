"""Spellings that belong to others: the contract, stored forms, tables, flags, settings and training scripts.

They are found, not listed, so that a name that is stored tomorrow is known tomorrow.
"""

from __future__ import annotations

import ast
import json
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import Descriptor, FileDescriptor

from cotenant.v1 import models_pb2, node_agent_pb2, prediction_pb2, resources_pb2, scheduling_pb2

STORED_FORMS = "tests/goldens"
ROW_TYPES = "cotenant/profile_schema.py"
JOB_MODULE = "cotenant/job.py"
_CONTRACT = (models_pb2, node_agent_pb2, prediction_pb2, resources_pb2, scheduling_pb2)


def contract_names() -> dict[str, str]:
    """Return every name of the contract and where it is."""
    files: list[FileDescriptor] = [module.DESCRIPTOR for module in _CONTRACT]
    return {name: f"a name of {file.name}" for file in files for name in _names_of_file(file)}


def external_names(root: Path) -> dict[str, str]:
    """Return every other spelling that must not change by accident, and whose it is."""
    names = dict.fromkeys(stored_names(root / STORED_FORMS), "a key of a stored form")
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root).as_posix()
        if relative.startswith((".", "cotenant/v1/", "tests/", "benchmarks/")):
            continue
        module = ast.parse(path.read_text(encoding="utf-8"))
        names |= dict.fromkeys(_options_and_settings(module), f"a flag or setting ({relative})")
        if relative == ROW_TYPES:
            names |= dict.fromkeys(_fields_of_classes(module, "Row"), "a column of the profile tables")
        if relative == JOB_MODULE:
            names |= dict.fromkeys(_public_names(module), "what training scripts call")
    return names


def stored_names(folder: Path) -> set[str]:
    """Return the keys and columns of every stored form below a folder."""
    names: set[str] = set()
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".json":
            names |= set(_keys(json.loads(path.read_text(encoding="utf-8"))))
        elif path.suffix.startswith(".sqlite"):
            names |= _names_in_database(path)
    return {name for name in names if name.isidentifier()}


def _names_in_database(path: Path) -> set[str]:
    names: set[str] = set()
    connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    try:
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            rows = connection.execute(f'SELECT * FROM "{table}"')
            names |= {table, *(column[0] for column in rows.description)}
            for value in (value for row in rows for value in row):
                if isinstance(value, str | bytes) and value[:1] in ("{", "[", b"{", b"["):
                    names |= set(_keys(json.loads(value)))
    finally:
        connection.close()
    return names


def _keys(data: Any) -> Iterator[str]:
    if isinstance(data, Mapping):
        yield from data
        yield from (str(data["kind"]) for _ in range("kind" in data))
    for item in data.values() if isinstance(data, Mapping) else data if isinstance(data, list) else ():
        yield from _keys(item)


def _names_of_file(file: FileDescriptor) -> Iterator[str]:
    for service in file.services_by_name.values():
        yield from (service.name, *(method.name for method in service.methods))
    for enum in file.enum_types_by_name.values():
        yield from (enum.name, *enum.values_by_name)
    for message in file.message_types_by_name.values():
        yield from _names_of_message(message)


def _names_of_message(message: Descriptor) -> Iterator[str]:
    yield message.name
    yield from message.fields_by_name
    yield from message.oneofs_by_name
    for inner in message.nested_types:
        yield from _names_of_message(inner)


def _options_and_settings(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in {"option", "argument", "add_argument"}:
            texts = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
            yield from (text.lstrip("-").partition("/")[0].replace("-", "_") for text in texts)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and _has_metadata(node.value):
            yield node.target.id
    yield from _fields_of_classes(module, "Settings")


def _has_metadata(value: ast.expr | None) -> bool:
    """Whether a field describes itself to users, as parameters of policies do."""
    return isinstance(value, ast.Call) and any(one.arg == "metadata" for one in value.keywords)


def _fields_of_classes(module: ast.Module, suffix: str) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef) and node.name.endswith(suffix):
            for statement in node.body:
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                    yield statement.target.id


def _public_names(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node.name
            if isinstance(node, ast.FunctionDef):
                yield from (argument.arg for argument in (*node.args.args, *node.args.kwonlyargs))
