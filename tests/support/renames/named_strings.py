"""Finds the strings of a module that hold names: quoted annotations, and arguments that Python takes for names."""

from __future__ import annotations

import ast
from collections.abc import Iterator

_ATTRIBUTE_READERS = frozenset({"getattr", "setattr", "hasattr", "delattr"})
_ALL_ARGUMENTS = frozenset({"attrgetter", "methodcaller", "usefixtures", "getfixturevalue"})
Position = tuple[int, int]
"""Line from 1 and column in bytes from 0, as the parser counts."""


def named_strings(module: ast.Module) -> set[Position]:
    """Return where the strings begin whose words are names of Python things."""
    return {(node.lineno, node.col_offset) for node in named_constants(module)}


def named_constants(module: ast.Module) -> list[ast.Constant]:
    """Return the constants whose words are names of Python things."""
    return [constant for node in ast.walk(module) for part in _naming_parts(node) for constant in _texts(part)]


def docstrings(module: ast.Module) -> list[ast.Constant]:
    """Return the docstrings of a module, its classes and functions."""
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [
        node.body[0].value
        for node in ast.walk(module)
        if isinstance(node, owners)
        and node.body
        and isinstance(node.body[0], ast.Expr)
        and isinstance(node.body[0].value, ast.Constant)
        and isinstance(node.body[0].value.value, str)
    ]


def _naming_parts(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.AnnAssign(annotation=annotation) | ast.arg(annotation=ast.AST() as annotation):
            yield from _quoted_annotation(annotation)
        case ast.FunctionDef(returns=ast.AST() as returns) | ast.AsyncFunctionDef(returns=ast.AST() as returns):
            yield from _quoted_annotation(returns)
        case ast.Assign(targets=[ast.Name(id="__slots__" | "__match_args__" | "__all__")], value=value):
            yield value
        case ast.Call():
            yield from _naming_arguments(node)


def _naming_arguments(call: ast.Call) -> Iterator[ast.AST]:
    function = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if function in _ATTRIBUTE_READERS and len(call.args) > 1:
        yield call.args[1]
    elif function in _ALL_ARGUMENTS:
        yield from call.args
    elif function in {"parametrize", "cast", "TypeVar"} and call.args:
        yield call.args[0]
    if function == "TypeVar":
        yield from (one.value for one in call.keywords if one.arg == "bound")


def _quoted_annotation(annotation: ast.AST) -> Iterator[ast.AST]:
    if isinstance(annotation, ast.Subscript) and getattr(annotation.value, "id", "") in {"Literal", "Annotated"}:
        return
    if isinstance(annotation, ast.Constant):
        yield annotation
    else:
        for child in ast.iter_child_nodes(annotation):
            yield from _quoted_annotation(child)


def _texts(node: ast.AST) -> Iterator[ast.Constant]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node
    elif isinstance(node, ast.List | ast.Tuple):
        for item in node.elts:
            yield from _texts(item)
