"""A gang's training with a pause after each step, so that it can be reshaped: `paced_gang.py MODULE STEP_MS ...`.

Another number of milliseconds in the file `<job>.step_ms` of its working directory changes the pause.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import torch

from cotenant import job
from tests.support.journalled_training import paced_step_ms


class NoCompiler(ModuleType):
    """In the place of torch's compiler: the first optimizer imports it, for longer than torch itself takes."""

    def disable(self, function: Callable[..., Any], *_: object, **__: object) -> Callable[..., Any]:
        """As it is: nothing is compiled."""
        return function

    def __getattr__(self, name: str) -> Self:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_: object, **__: object) -> Self:
        """Whatever is asked of the compiler changes nothing."""
        return self


def main(module: str, step_ms: int, flags: list[str]) -> None:
    """Run the command line of a training, which reports each step by `job.report`."""
    torch._dynamo = sys.modules["torch._dynamo"] = NoCompiler("torch._dynamo")
    reported: Callable[..., None] = job.report
    folder, job_id = Path.cwd(), os.environ["COTENANT_JOB_ID"]

    def report(done: int, **values: Any) -> None:
        reported(done, **values)
        time.sleep(paced_step_ms(folder, job_id, step_ms) / 1000)

    job.report = report  # type: ignore[assignment]
    importlib.import_module(module).main(flags)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
