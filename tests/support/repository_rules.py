"""Our tidy as functions: each takes a tree of files and returns complaints, each with its remedy."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from tests.support.product_reach import modules_of_packages, unreached
from tests.support.renames.retired_rule import retired_names_stay_away

FILE_LINES_MAX = 400
LONGER_FILES_LINES_MAX = {"cotenant/job.py": 450}
"""Users copy it next to their scripts: it stays one file, and that in plain code rather than in fewer lines."""
FUNCTION_LINES_MAX = 60
MAKE_TARGETS_MAX = 13
FILE_BYTES_MAX = 2 * 1024 * 1024
# Data choose the methods of the models that ship anew at each training: a forest takes half a MiB more than a process.
_LARGER_FILES = {"predictor_service/registry/public_models.tar.xz": 3 * 1024 * 1024}
GENERATED_FOLDER = "cotenant/v1/"
# Modules of the product that programs do not reach, and why they are there nevertheless.
AWAITING_THEIR_PROGRAM: dict[str, str] = {}
CALLED_BY_TRAINING_SCRIPTS = frozenset({"cotenant.job", "cotenant.rank_times", "cotenant.ray"})
BANNED_NAMES = frozenset({"common", "shared", "utils", "helpers", "misc", "manager", "base"})
POLICY_HEADINGS = ("What it does:", "Why:", "Source:", "Where we differ:", "Cost:")
# They put reasons into words, and choose which of several is shown.
WORDING_REASONS = frozenset(
    {"scheduler_service/core/reasons/reason_texts.py", "scheduler_service/policies/placement/reasons.py"}
)
# Written so that the patterns do not find themselves.
PROMISES = re.compile(r"\b(?:[T]ODO|[F]IXME|[X]XX)\b|[N]otImplementedError|[p]ragma: no cover|pytest\.skip\(\)")
PLACES = re.compile(
    r"(?:pypi|pythonhosted|download\.pytorch|registry\.npmjs|deb\.debian)\.org"
    r"|(?:ghcr|quay|nvcr)\.io|(?:index|registry-1)\.docker"
    r"|(?<![\w.])/(?:work|root|opt/pypi|opt/wheels)/"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """Files below a root, by their path relative to it."""

    root: Path
    paths: tuple[str, ...]
    _parsed: dict[str, ast.Module] = field(default_factory=dict, compare=False, repr=False)

    def text(self, path: str) -> str:
        """Return a file's text; bytes that are no UTF-8 are replaced."""
        return (self.root / path).read_text(encoding="utf-8", errors="replace")

    def module(self, path: str) -> ast.Module:
        """Return a Python file parsed, by the first rule that asks."""
        if path not in self._parsed:
            self._parsed[path] = ast.parse(self.text(path), filename=path)
        return self._parsed[path]

    def python(self) -> Iterator[tuple[str, ast.Module]]:
        """Yield every Python file that people wrote, parsed."""
        for path in self.paths:
            if path.endswith(".py") and not path.startswith(GENERATED_FOLDER):
                yield path, self.module(path)

    def below(self, folder: str, suffix: str) -> list[str]:
        """Return the paths inside a folder with that ending."""
        return [path for path in self.paths if path.startswith(f"{folder}/") and path.endswith(suffix)]


Rule = Callable[[Tree], list[str]]


def tracked_tree(root: Path) -> Tree:
    """Return the files that git tracks and that exist."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True, text=True).stdout
    return Tree(root=root, paths=tuple(path for path in listing.split("\0") if path and (root / path).is_file()))


def files_are_short(tree: Tree) -> list[str]:
    """No written source file is longer than 400 lines, but for one that is copied whole."""
    written = [p for p in tree.paths if p.endswith((".py", ".sh", ".c")) and not p.startswith(GENERATED_FOLDER)]
    return [
        f"{path}: {lines} lines, at most {most}; split it by idea"
        for path in written
        if (lines := len(tree.text(path).splitlines())) > (most := LONGER_FILES_LINES_MAX.get(path, FILE_LINES_MAX))
    ]


def functions_are_short(tree: Tree) -> list[str]:
    """No function, tests included, is longer than 60 lines."""
    complaints = []
    for path, module in tree.python():
        for node in functions_of(module):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                complaints.append(f"{path}:{node.lineno} {node.name}: {lines} lines, at most {FUNCTION_LINES_MAX}")
    return complaints


def functions_of(module: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield every function and method, without a look at expressions, which are nine tenths of a syntax tree."""
    waiting: list[ast.AST] = [module]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            waiting += getattr(node, block, ())


def names_say_what_they_hold(tree: Tree) -> list[str]:
    """No module or folder has a name under which anything fits."""
    return [
        f"{path}: name the file after what it holds, not {sorted(BANNED_NAMES & _names(path))[0]!r}"
        for path in tree.paths
        if path.endswith(".py") and BANNED_NAMES & _names(path)
    ]


def _names(path: str) -> set[str]:
    parts = PurePosixPath(path)
    return {*parts.parent.parts, parts.stem}


def borrowed_folders_are_no_packages(tree: Tree) -> list[str]:
    """`profiling` and `datasets` are names of well-known packages; ours must not shadow them."""
    return [
        f"{path}: remove it, an importable package of that name hides another one"
        for path in ("profiling/__init__.py", "datasets/__init__.py")
        if path in tree.paths
    ]


def no_promises_are_left(tree: Tree) -> list[str]:
    """Code keeps its promises or does not make them."""
    return _matches(tree, PROMISES, (".py", ".sh", ".c", ".proto"), "do it or open an issue")


def no_machine_is_named(tree: Tree) -> list[str]:
    """No file names a package registry or a path of one machine: both differ for the next reader."""
    return _matches(tree, PLACES, ("",), "take it from a variable or from the machine's own configuration")


def _matches(tree: Tree, pattern: re.Pattern[str], suffixes: tuple[str, ...], remedy: str) -> list[str]:
    return [
        f"{path}:{number}: {found.group()!r}; {remedy}"
        for path in tree.paths
        if path.endswith(suffixes) and not path.startswith(GENERATED_FOLDER) and not path.endswith((".csv", ".parquet"))
        for number, line in enumerate(tree.text(path).splitlines(), start=1)
        if (found := pattern.search(line))
    ]


def files_are_small_and_end_with_a_newline(tree: Tree) -> list[str]:
    """No file is over 2 MiB, the models that ship over 3; every text file ends with exactly one newline."""
    complaints = []
    for path in tree.paths:
        content, most = (tree.root / path).read_bytes(), _LARGER_FILES.get(path, FILE_BYTES_MAX)
        if len(content) > most:
            complaints.append(f"{path}: {len(content)} bytes, at most {most}; large data do not belong in git")
        is_text = b"\0" not in content and not path.startswith(GENERATED_FOLDER) and not path.endswith(".json")
        if is_text and content and (not content.endswith(b"\n") or content.endswith(b"\n\n")):
            complaints.append(f"{path}: must end with exactly one newline")
    return complaints


def product_serves_a_program(tree: Tree) -> list[str]:
    """Every module of the wheel is reached by a program; what tests and benchmarks alone call lies with them."""
    if "pyproject.toml" not in tree.paths:
        return []
    settings = tomllib.loads(tree.text("pyproject.toml"))
    scripts = settings.get("project", {}).get("scripts", {}).values()
    packages = settings.get("tool", {}).get("hatch", {}).get("build", {}).get("targets", {}).get("wheel", {})
    written = [path for path in tree.paths if not path.startswith(GENERATED_FOLDER)]
    paths = modules_of_packages(written, packages.get("packages", []))
    starts = {name for name in paths if name.endswith(".__main__")} | {script.partition(":")[0] for script in scripts}
    modules = {name: tree.module(path) for name, path in paths.items()}
    idle = unreached(modules, starts | CALLED_BY_TRAINING_SCRIPTS)
    return [
        f"{paths[name]}: no program reaches it; move it to benchmarks/ or tests/, or delete it"
        for name in idle
        if name not in AWAITING_THEIR_PROGRAM
    ] + [
        f"{paths[name]}: a program reaches it; AWAITING_THEIR_PROGRAM need not name it"
        for name in AWAITING_THEIR_PROGRAM
        if name in paths and name not in idle
    ]


def policy_modules(tree: Tree) -> list[str]:
    """Return the dotted names of the policies that the registry names."""
    registry = "scheduler_service/policy_registry.py"
    if registry not in tree.paths:
        return []
    entries = [
        node.args[0].value
        for node in ast.walk(ast.parse(tree.text(registry)))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "PolicyEntry"
        and node.args
        if isinstance(node.args[0], ast.Constant)
    ]
    # horus_f is a second entry of one module.
    return list(dict.fromkeys(f"scheduler_service.policies.{str(path).rpartition('.')[0]}" for path in entries))


def policies_have_five_headings(tree: Tree) -> list[str]:
    """The docstring of a policy's module answers the reader's five questions."""
    complaints = []
    for module in policy_modules(tree):
        path = module.replace(".", "/") + ".py"
        docstring = ast.get_docstring(ast.parse(tree.text(path))) or ""
        missing = [heading for heading in POLICY_HEADINGS if not re.search(rf"^{heading}", docstring, re.MULTILINE)]
        if missing:
            complaints.append(f"{path}: the module docstring lacks {', '.join(missing)}")
    return complaints


def policies_are_proved(tree: Tree) -> list[str]:
    """Every policy has a paper case and a differential test, and the contract suite runs over the registry."""
    complaints = []
    modules = policy_modules(tree)
    if modules and not any("policy_registry" in tree.text(path) for path in tree.below("tests/contracts", ".py")):
        complaints.append("tests/contracts: no suite runs over scheduler_service.policy_registry")
    for module in modules:
        complaints += [
            f"{module}: no file in tests/{kind} imports it; a policy arrives with its {kind.replace('_', ' ')}"
            for kind in ("paper_cases", "differential")
            if not any(re.search(rf"\b{module}\b", tree.text(path)) for path in tree.below(f"tests/{kind}", ".py"))
        ]
    return complaints


def docstrings_are_checked(tree: Tree) -> list[str]:
    """Ruff's docstring and annotation rules are on, with exceptions for tests only."""
    lint = tomllib.loads(tree.text("pyproject.toml"))["tool"]["ruff"]["lint"] if "pyproject.toml" in tree.paths else {}
    missing = [rules for rules in ("D", "ANN") if lint and rules not in lint["select"]]
    excused = [
        folder
        for folder, codes in lint.get("per-file-ignores", {}).items()
        if not folder.startswith("tests/") and any(re.match(r"D\d|ANN", code) for code in codes)
    ]
    return [f"pyproject.toml: select {rules} in tool.ruff.lint" for rules in missing] + [
        f"pyproject.toml: {folder} may not be excused from docstrings or annotations" for folder in excused
    ]


def tests_are_named_by_sentences(tree: Tree) -> list[str]:
    """A test's name says what holds, in three words or more."""
    complaints = []
    for path, module in tree.python():
        if path.startswith("tests/") and PurePosixPath(path).name.startswith("test_"):
            complaints += [
                f"{path}: {name}: say what holds, in at least three words"
                for name in (node.name for node in functions_of(module))
                if name.startswith("test_") and len(name.removeprefix("test_").split("_")) < 3
            ]
    return complaints


def make_targets(tree: Tree) -> list[str]:
    """Return the documented targets of the Makefile."""
    return re.findall(r"^([a-z][a-z-]*):", tree.text("Makefile"), re.MULTILINE) if "Makefile" in tree.paths else []


def the_makefile_is_small(tree: Tree) -> list[str]:
    """The Makefile has at most thirteen targets."""
    count = len(make_targets(tree))
    return [f"Makefile: {count} targets, at most {MAKE_TARGETS_MAX}"] if count > MAKE_TARGETS_MAX else []


def no_number_is_read_back_from_a_reason(tree: Tree) -> list[str]:
    """Reasons explain: what is acted upon has a typed field of its own, or is computed where it is needed."""
    complaints = []
    for path, module in tree.python():
        if path.startswith("scheduler_service/") and path not in WORDING_REASONS:
            complaints += [
                f"{path}:{node.lineno}: a number is read back from a reason: give it a field, or compute it again"
                for node in ast.walk(module)
                if isinstance(node, ast.Subscript | ast.Attribute) and _is_numbers_of_a_reason(node.value)
            ]
    return complaints


def _is_numbers_of_a_reason(node: ast.expr) -> bool:
    if not isinstance(node, ast.Attribute) or node.attr != "numbers":
        return False
    holder = node.value
    name = holder.attr if isinstance(holder, ast.Attribute) else holder.id if isinstance(holder, ast.Name) else ""
    return name.endswith("reason")


RULES: tuple[Rule, ...] = (
    files_are_short,
    functions_are_short,
    names_say_what_they_hold,
    borrowed_folders_are_no_packages,
    product_serves_a_program,
    no_promises_are_left,
    no_machine_is_named,
    files_are_small_and_end_with_a_newline,
    policies_have_five_headings,
    policies_are_proved,
    docstrings_are_checked,
    tests_are_named_by_sentences,
    the_makefile_is_small,
    retired_names_stay_away,
    no_number_is_read_back_from_a_reason,
)
