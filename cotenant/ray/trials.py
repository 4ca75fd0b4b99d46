"""Trials of Ray Tune that share GPUs: the trial waits and reports, a task on the GPU that cotenant names trains."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from cotenant import system_clock
from cotenant.ray.shared_jobs import SharedJob
from cotenant.ray.submission import submit

LOOK_MS: Final = 500
Configuration = Mapping[str, Any]


def trainable(
    function: Callable[[Configuration], Any], wishes: str | Callable[[Configuration], str]
) -> Callable[[Configuration], None]:
    """Return a function for `tune.Tuner`; give it no GPU: `tune.with_resources(made, {"CPU": 0.01})`.

    Args:
        function: Trains with one configuration and calls `cotenant.ray.report(step, loss=...)`. What was reported last
            reaches Tune twice a second, under the same names and `step`; so does a mapping that it returns.
        wishes: As for `submit`, or made of a configuration.
    """

    def trial(configuration: Configuration) -> None:
        tune = importlib.import_module("ray.tune")
        job = submit(wishes if isinstance(wishes, str) else wishes(configuration), function, configuration)
        for metrics in reports_of(job):
            tune.report(metrics)

    trial.__name__ = getattr(function, "__name__", "trial")
    return trial


def reports_of(job: SharedJob) -> Iterator[dict[str, Any]]:
    """Yield each new report of a job until it has ended, last what it returned.

    Raises:
        JobStoppedError: It was ended by others.
        Exception: What its function raised.
    """
    told_at_ms = 0
    while not job.has_ended:
        progress = job.progress
        if progress.at_ms > told_at_ms:
            told_at_ms = progress.at_ms
            yield {**progress.metrics, "step": progress.steps}
        system_clock.wait_ms(LOOK_MS)
    returned = job.result(0)
    if isinstance(returned, Mapping):
        yield dict(returned)
