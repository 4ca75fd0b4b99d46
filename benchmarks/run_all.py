"""Runs every benchmark and prints one JSON object: name -> figures, with the machine that they hold for.

A benchmark is a module in this folder with `main() -> dict`; what it returns must be JSON. Progress goes to stderr.

Usage: python -m benchmarks.run_all [NAME ...]      (no name = all)
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import platform
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

import benchmarks
from tests.support.interruptions import unwind_when_ended

Benchmark = Callable[[], Mapping[str, object]]


def find_benchmarks() -> dict[str, Benchmark]:
    """Return the benchmarks of this folder by name; modules without `main() -> dict` are parts of benchmarks."""
    names = sorted(module.name for module in pkgutil.iter_modules(benchmarks.__path__) if module.name != "run_all")
    modules = {name: importlib.import_module(f"benchmarks.{name}") for name in names}
    return {name: module.main for name, module in modules.items() if hasattr(module, "main")}


def run_benchmarks(chosen: Mapping[str, Benchmark]) -> tuple[dict[str, object], list[str]]:
    """Run benchmarks one after the other.

    Args:
        chosen: Benchmarks by name.

    Returns:
        The figures by name, and the names of those that raised; one failure does not hide the others.
    """
    figures: dict[str, object] = {}
    failed = []
    for number, (name, measure) in enumerate(chosen.items(), start=1):
        sys.stderr.write(f"{number}/{len(chosen)} {name}\n")
        try:
            figures[name] = dict(measure())
        except Exception:
            traceback.print_exc()
            failed.append(name)
    return figures, failed


def describe_machine() -> dict[str, object]:
    """Return what the figures depend on."""
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": _processor_model(),
        "cores": os.cpu_count(),
        "load_1_min": round(os.getloadavg()[0], 2),
    }


def _processor_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor()


def main(names: list[str]) -> int:
    """Run the named benchmarks, or all; return 0, 1 when one failed, 2 for an unknown name."""
    known = find_benchmarks()
    unknown = sorted(set(names) - set(known))
    if unknown:
        sys.stderr.write(f"no benchmark {', '.join(unknown)}; there are: {', '.join(known) or 'none'}\n")
        return 2
    figures, failed = run_benchmarks({name: known[name] for name in names or known})
    report = {"schema": "cotenant.benchmarks/1", "machine": describe_machine(), "benchmarks": figures, "failed": failed}
    sys.stdout.write(json.dumps(report, indent=2) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    unwind_when_ended()
    sys.exit(main(sys.argv[1:]))
