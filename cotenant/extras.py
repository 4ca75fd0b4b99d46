"""Which optional parts of the package a program needs, and one line with the remedy where they are missing.

`pip install cotenant` brings all programs' code and the libraries of the command line only; an extra brings the
libraries of one program. PyTorch is in no extra: which build of it is right depends on the machine.
"""

from __future__ import annotations

import gc
import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

_EXIT_INTERRUPTED: Final = 130
"""As `command_run` has it, which needs click and cannot be imported here."""

EXTRAS: Mapping[str, str] = MappingProxyType(
    {
        "predictor_service": "predictor",
        "scheduler_service": "scheduler",
        "cotenant_agent": "agent",
        "cotenant_profiler": "profiler",
        "cotenant_simulator": "simulator",
    }
)
TORCH: Final = "torch"
# Without these a program does not even start; what else its extra brings is missed when it is used.
NEEDED_AT_START: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "predictor_service": (
            "grpc_reflection", "numpy", "onnx", "onnx_ir", "onnx_shape_inference", "onnxruntime", "prometheus_client",
            "scipy",
        ),
        "scheduler_service": ("grpc_reflection", "numpy", "prometheus_client"),
        "cotenant_agent": ("prometheus_client", "pynvml"),
        "cotenant_profiler": ("numpy", "pynvml", TORCH),
        "cotenant_simulator": (),
    }
)  # fmt: skip
# Missed by the verbs that use them.
NEEDED_LATER: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "predictor_service": ("onnxmltools", "pandas", "pyarrow", "sklearn", "skl2onnx", "threadpoolctl", "xgboost"),
        "cotenant_profiler": ("matplotlib", "onnx", "onnxscript", "pandas"),
        "cotenant_simulator": ("numpy", "matplotlib", "pandas", "pyarrow", "scipy"),
    }
)
_OWN: Final = frozenset({"cotenant", "examples", *EXTRAS})


def missing_modules(modules: Iterable[str]) -> list[str]:
    """Returns those of some top-level modules that cannot be found, without importing any."""
    return [module for module in modules if not _is_installed(module)]


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):  # the latter: one that was put into sys.modules by hand
        return module in sys.modules


def missing_programs_line(wanted_by: str, programs: Iterable[str], *, torch: bool = False) -> str:
    """Returns what installs the libraries without which programs cannot start here; empty when they can.

    Args:
        wanted_by: What needs them, as people call it, e.g. `cotenant up`.
        programs: Names of packages.
        torch: Whether PyTorch is needed as well.
    """
    missing = {program: missing_modules((program, *NEEDED_AT_START[program])) for program in programs}
    missing[TORCH] = missing_modules([TORCH] * torch)
    return _missing_line(wanted_by, missing) if any(missing.values()) else ""


def missing_extra_line(program: str, error: ModuleNotFoundError) -> str:
    """Returns which extra installs a module that an import did not find.

    Raises:
        ModuleNotFoundError: The one that was handed in: a module of our own is missing, which no extra brings.
    """
    module = (error.name or "").partition(".")[0]
    if not module or module in _OWN:
        raise error
    start = missing_modules(NEEDED_AT_START[program])
    if module in start:
        return f"error: {_missing_line(program, {program: start})}"
    # A program may use a part of another one; an unlisted module came with a library that the program's extra names.
    users = [user for user in (program, *EXTRAS) if module in (*NEEDED_AT_START[user], *NEEDED_LATER.get(user, ()))]
    return f"error: {_missing_line(program, {(users or [program])[0]: [module]})}"


Program: TypeAlias = Callable[[], int | None]
"""Runs and returns the exit status, None = 0."""


def run_program(program: str, load: Callable[[], Program]) -> int:
    """Runs a program; a library that is not installed, or an interrupt, ends it with one line and no traceback.

    Args:
        program: Its package.
        load: Imports it.
    """
    try:
        return _without_garbage(load)() or 0
    except ModuleNotFoundError as error:
        sys.stderr.write(missing_extra_line(program, error) + "\n")
        return 1
    except KeyboardInterrupt:  # also while it still loads, which takes seconds
        sys.stderr.write("interrupted\n")
        return _EXIT_INTERRUPTED


def _without_garbage(load: Callable[[], Program]) -> Program:
    """Imports without a search for garbage, a tenth of the time; no later search sees what modules define."""
    gc.disable()
    try:
        return load()
    finally:
        gc.freeze()
        gc.enable()


def _missing_line(wanted_by: str, missing: Mapping[str, list[str]]) -> str:
    modules = sorted({module for found in missing.values() for module in found})
    extras = [EXTRAS[program] for program, found in missing.items() if set(found) - {TORCH}]
    bundle = f"cotenant[{','.join(extras)}]"
    needs = [bundle] * bool(extras) + ["PyTorch"] * (TORCH in modules)
    # In this order: the right build of PyTorch is chosen when it is installed on its own.
    install = ["pip install torch"] * (TORCH in modules) + [f"pip install '{bundle}'"] * bool(extras)
    return f"{wanted_by} needs {' and '.join(needs)}: {', then '.join(install)}; not found: {', '.join(modules)}"
