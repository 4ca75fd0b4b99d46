"""Runs a Python program that was started early: imports what it begins by importing, waits for the word, then runs it.

Started as `python [OPTIONS] prepared_program.py imports|program SCRIPT ARGUMENTS` or `... -m MODULE ARGUMENTS`, with
the interpreter of the job, which may be any Python 3.8 or later: this file needs the standard library only.

Imports are taken from the beginning of the program's text, up to the first statement that does anything else: they are
what the program itself would do first, with the same environment and module path. A program that calls `wait_for_go` of
`cotenant.job` waits there instead, unless the first argument is `imports`.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import os
import runpy
import socket
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path

GO_VARIABLE = "COTENANT_GO"
WORDS_BYTES_MAX = 32_768
_TEXT_BYTES_MAX = 4 << 20
_HARMLESS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Pass)
# What a library imports by itself as soon as it is used: the first optimizer of PyTorch imports its compiler, which
# takes as long as all that was imported before.
_AT_FIRST_USE = {"torch": "torch._dynamo"}
_EXIT_WITHOUT_WORD = 1


def main() -> None:
    """Prepare, wait, become the program."""
    mode, target, *arguments = sys.argv[1:]
    is_module = target == "-m"
    if is_module:
        target, *arguments = arguments
    sys.argv = ["-m" if is_module else target, *arguments]
    _set_module_path(target, is_module)
    tree = _read(target, is_module)
    if mode == "imports" or not _waits_itself(tree):
        for name, package, members in _first_imports(tree, _package_of(target) if is_module else ""):
            _import(name, package, members)
        if not _sets_variables(tree):
            _import_what_follows()
        arguments = _wait_for_go(arguments)
        sys.argv[1:] = arguments
    _run(target, is_module)


def _set_module_path(target: str, is_module: bool) -> None:
    """Put in place of this file's folder what the interpreter would have put there for the program."""
    if getattr(sys.flags, "safe_path", False) or sys.flags.isolated:
        return
    sys.path[0] = str(Path.cwd()) if is_module else str(Path(target).resolve().parent)


def _read(target: str, is_module: bool) -> ast.Module:
    """Return the program's text as a tree, an empty one where there is none to be read."""
    try:
        path = _file_of(target) if is_module else target
        with Path(path).open("rb") as file:
            return ast.parse(file.read(_TEXT_BYTES_MAX))
    except Exception:
        # The program itself meets it again when it is run, and says so in its own words.
        return ast.Module(body=[], type_ignores=[])


def _file_of(module: str) -> str:
    """Return where the text of a module lies; a package's is that of its __main__."""
    spec = importlib.util.find_spec(module)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{module}.__main__")
    return spec.origin or "" if spec is not None else ""


def _waits_itself(tree: ast.Module) -> bool:
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return any(getattr(call, "attr", getattr(call, "id", "")) == "wait_for_go" for call in calls)


def _package_of(module: str) -> str:
    """Return from where relative names of a module start: a package that is run is its __main__."""
    parent = module.rpartition(".")[0]
    try:
        spec = importlib.util.find_spec(module)
    except Exception:
        # The program itself meets it again when it is run.
        return parent
    return module if spec is not None and spec.submodule_search_locations is not None else parent


def _first_imports(tree: ast.Module, package: str) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield (module, package for relative names, members) of the imports at the beginning."""
    for statement in tree.body:
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                yield alias.name, "", ()
        elif isinstance(statement, ast.ImportFrom):
            name = "." * statement.level + (statement.module or "")
            yield name, package, tuple(alias.name for alias in statement.names)
        elif not (isinstance(statement, _HARMLESS) or _is_constant(statement)):
            return


def _is_constant(statement: ast.stmt) -> bool:
    """Whether a statement is a text (of documentation), or gives a plain name a constant."""
    if isinstance(statement, ast.Assign):
        is_plain = all(isinstance(target, ast.Name) for target in statement.targets)
        return is_plain and isinstance(statement.value, ast.Constant)
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _import(name: str, package: str, members: tuple[str, ...]) -> None:
    try:
        module = importlib.import_module(name, package or None)
        for member in members:
            if member != "*" and not hasattr(module, member):
                importlib.import_module(module.__name__ + "." + member)
    except BaseException:
        # An optional module, or an error that the program meets again when it is run.
        return


def _sets_variables(tree: ast.Module) -> bool:
    """Whether a program may set variables of its environment, which libraries read when they are imported."""
    names = (getattr(node, "attr", getattr(node, "id", "")) for node in ast.walk(tree))
    return not {"environ", "environb", "putenv"}.isdisjoint(names)


def _import_what_follows() -> None:
    for library, module in _AT_FIRST_USE.items():
        if library in sys.modules:
            _import(module, "", ())


def _wait_for_go(arguments: list[str]) -> list[str]:
    """Say that all is prepared, wait for the word, and return the arguments that hold from now on."""
    with socket.socket(fileno=int(os.environ.pop(GO_VARIABLE))) as barrier:
        barrier.send(b"prepared")
        content = barrier.recv(WORDS_BYTES_MAX)
    if not content:
        os._exit(_EXIT_WITHOUT_WORD)
    words = json.loads(content)
    os.environ.update(words["environment"])
    return list(words.get("argv", arguments))


def _run(target: str, is_module: bool) -> None:
    """Run the program as __main__, without a trace of this file in its module or its tracebacks."""
    own = sys.modules["__main__"]
    program = sys.modules["__main__"] = types.ModuleType("__main__")
    program.__dict__["__builtins__"] = own.__dict__["__builtins__"]
    try:
        if is_module:
            run_as_main: Callable[[str], object] = vars(runpy)["_run_module_as_main"]
            run_as_main(target)
        elif Path(target).is_dir() or target.endswith((".zip", ".pyz")):
            runpy.run_path(target, run_name="__main__")
        else:
            program.__file__ = target
            exec(compile(Path(target).read_bytes(), target, "exec"), program.__dict__)
    except Exception as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        sys.exit(1)


if __name__ == "__main__":
    main()
