"""A test holds every point of the attack and fails without its code: `python -m benchmarks.attack_mutants` prints JSON.

For each point the deciding line is taken out of a copy of the repository, and its test must fail there; without the
change it must pass. A row per mutant; `survived` and `not_run` (its line is no longer there) must be empty. Takes
some minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.attack_points import MUTANTS, POINTS, Mutant

ROOT = Path(__file__).parents[1]
TIMEOUT_S = 300
_PASSED, _FAILED = 0, 1
"""Exit statuses of pytest; others say that nothing was tested."""


@contextmanager
def copied_repository() -> Iterator[Path]:
    """Yields a copy of what git knows of this checkout."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
    with tempfile.TemporaryDirectory() as name:
        for relative in listed.stdout.split("\0"):
            source = ROOT / relative
            if relative and source.is_file():
                (Path(name) / relative).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, Path(name) / relative)
        yield Path(name)


@contextmanager
def changed(repository: Path, mutant: Mutant) -> Iterator[None]:
    """Has the mutant's line changed until the block ends.

    Raises:
        LookupError: The line is not there once.
    """
    path = repository / mutant.file
    text = path.read_text()
    if text.count(mutant.line) != 1:
        raise LookupError(f"{mutant.file} has {text.count(mutant.line)} times {mutant.line!r}")
    path.write_text(text.replace(mutant.line, mutant.instead))
    try:
        yield
    finally:
        path.write_text(text)


def passes(repository: Path, tests: Iterable[str]) -> bool:
    """Runs tests of the copy.

    Raises:
        LookupError: They were not run.
    """
    environment = {**os.environ, "PYTHONPATH": str(repository), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(
        command, cwd=repository, env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )
    if done.returncode not in (_PASSED, _FAILED):
        raise LookupError(done.stdout[-500:] + done.stderr[-500:])
    return done.returncode == _PASSED


def main(points: Iterable[str] = ()) -> dict[str, object]:
    """Tries the mutants of these points, or of all."""
    wanted = set(points)
    chosen = [mutant for mutant in MUTANTS if not wanted or mutant.point in wanted]
    rows = []
    with copied_repository() as repository:
        is_whole = passes(repository, dict.fromkeys(mutant.test for mutant in chosen))
        for mutant in chosen:
            outcome = _outcome(repository, mutant)
            rows.append({"point": mutant.point, "test": mutant.test, "file": mutant.file, "outcome": outcome})
            sys.stderr.write(f"{mutant.point} {mutant.test}: {outcome}\n")
    not_red = {name: [row["test"] for row in rows if row["outcome"] == name] for name in ("survived", "not_run")}
    return {"target": {"survived": [], "not_run": []}, "is_green_without": is_whole, **not_red, "mutants": rows}


def _outcome(repository: Path, mutant: Mutant) -> str:
    try:
        with changed(repository, mutant):
            return "survived" if passes(repository, [mutant.test]) else "red"
    except LookupError as error:
        sys.stderr.write(f"{error}\n")
        return "not_run"


def listed() -> str:
    """Returns every point: what happened, and the tests that hold it."""
    tests = {point: [mutant.test for mutant in MUTANTS if mutant.point == point] for point in POINTS}
    return "\n".join("\n    ".join([f"{point}  {happened}", *tests[point]]) for point, happened in POINTS.items())


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("points", nargs="*", help="e.g. 1A 12; all by default")
    parser.add_argument("--list", action="store_true", help="print what happened and which tests hold it, run nothing")
    arguments = parser.parse_args()
    print(listed() if arguments.list else json.dumps(main(arguments.points), indent=1))


if __name__ == "__main__":
    _main()
