"""Processor time of `evaluate` and `retrain` with BLAS threads as they come, over that with one, as JSON.

Both run as programs on datasets/public/salus, twice each way; the smaller figure of each way counts.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from predictor_service.settings import default_datasets_dir

_THREADS: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_REPEATS: Final = 2


def main() -> dict[str, Any]:
    """Returns processor seconds of each program both ways, and their quotient."""
    data = str(default_datasets_dir() / "public" / "salus")
    return {
        "evaluate": _compare(["evaluate", data, "--target", "step_time", "--fold", "family"]),
        "retrain": _compare(["retrain", "--datasets", data]),
    }


def _compare(arguments: list[str]) -> dict[str, float]:
    free, one = (min(_cpu_s(arguments, ways) for _ in range(_REPEATS)) for ways in ({}, dict.fromkeys(_THREADS, "1")))
    return {"cpu_s": round(free, 2), "one_thread_cpu_s": round(one, 2), "over_one_thread_ratio": round(free / one, 3)}


def _cpu_s(arguments: list[str], threads: dict[str, str]) -> float:
    plain = {name: value for name, value in os.environ.items() if name not in _THREADS}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as state:
        command = [sys.executable, "-m", "predictor_service", *arguments, "--state-dir", str(Path(state))]
        subprocess.run(command, env={**plain, **threads}, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(json.dumps(main(), indent=1))
