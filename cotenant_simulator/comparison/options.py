"""What a caller from Python may set of an experiment beside trace, policies and seeds; checked like the flags."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from cotenant_simulator.comparison.experiment import Experiment
from cotenant_simulator.errors import InputError
from cotenant_simulator.readers.chosen_counts import GPU_COUNT_MAX, SPEEDUP_POWER
from cotenant_simulator.readers.requests import Consent
from cotenant_simulator.run.records import HOUR_MS, NodeFailures, OverheadCosts, RunSettings
from scheduler_service.core.records import DEFAULT_MAX_SLOWDOWN_RATIO, Share


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Each means what the flag of its name means (`cotenant simulate --help`).

    Attributes:
        cluster: NODESxGPUS, a TOML file, or own; None = the trace's own machines, or 16x4.
        predictions: oracle, trained, held-out, noise:SIGMA or error:E.
        parameters: Of policies, by their names.
        max_slowdown: That jobs accept when co-located; 0.2 = steps 20 % longer.
        share: never, safe or any.
        no_trials: No job shares on trial.
        slowdown: True slowdown of unmeasured pairs; None = the trace's own.
        measured: Folder of measured jobs (solo.csv, pairs.csv); each job is taken for one of them, by the seed.
        gpu_counts: Numbers of GPUs that all jobs allow beside their own.
        speedup_power: n of these GPUs are n to this power times as fast as one, 0 to 1.
        profiles: Folder of Pollux' profiles; None = the nearest `profiles` above the trace.
        models: State folder of the predictor, for trained and held-out; None = the user's own.
        graphs: Folder of SHA256.onnx files, for trained; None = those of the predictor.
        learn_speeds: Policies see measured step times, as on a live cluster.
        node_failure_hours: Mean time between failures of a node; 0 = never.
        restart_s: What every further attempt of a job costs.
        checkpoint_s: From the order to stop until GPUs are free.
    """

    cluster: str | None = None
    predictions: str = "oracle"
    parameters: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    max_slowdown: float = DEFAULT_MAX_SLOWDOWN_RATIO
    share: str = "safe"
    no_trials: bool = False
    slowdown: float | None = None
    measured: str | PathLike[str] | None = None
    gpu_counts: Sequence[int] = ()
    speedup_power: float = SPEEDUP_POWER
    profiles: str | PathLike[str] | None = None
    models: str | PathLike[str] | None = None
    graphs: str | PathLike[str] | None = None
    learn_speeds: bool = False
    node_failure_hours: float = 0.0
    restart_s: float = 20.0
    checkpoint_s: float = 10.0

    def experiment(
        self, trace: Path, policies: Sequence[str], seeds: Sequence[int], own: Mapping[str, Any]
    ) -> Experiment:
        """Return the experiment.

        Raises:
            InputError: An option has a value without a meaning.
        """
        for name in ("cluster", "predictions"):
            if not isinstance(getattr(self, name), str | None):
                raise InputError(f"{name} is {getattr(self, name)!r}, not a text such as {_EXAMPLES[name]}")
        return Experiment(
            trace=trace,
            policies=policies,
            seeds=seeds,
            settings=self._settings(policies[0]),
            cluster=self.cluster,
            parameters=self._parameters(policies),
            own_policies=own,
            consent=self._consent(),
            predictions=self.predictions,
            slowdown_ratio=None if self.slowdown is None else self._number("slowdown", most=900),
            measured=self._path("measured"),
            gpu_counts=self._counts(),
            speedup_power=self._number("speedup_power", most=1),
            profiles=self._path("profiles"),
            models=self._path("models"),
            graphs=self._path("graphs"),
        )

    def _settings(self, policy: str) -> RunSettings:
        return RunSettings(
            policy=policy,
            charges=OverheadCosts(
                restart_ms=round(self._number("restart_s", most=86_400) * 1_000),
                checkpoint_ms=round(self._number("checkpoint_s", most=86_400) * 1_000),
            ),
            failures=NodeFailures(mean_up_ms=round(self._number("node_failure_hours", most=1e7) * HOUR_MS)),
            learns_speeds=bool(self.learn_speeds),
        )

    def _consent(self) -> Consent:
        try:
            share = Share(self.share)
        except ValueError:
            raise InputError(f"share is {self.share!r}, not never, safe or any") from None
        slowdown_ratio = self._number("max_slowdown", most=1e6)
        return Consent(share=share, max_slowdown_ratio=slowdown_ratio, no_trial=bool(self.no_trials))

    def _parameters(self, policies: Sequence[str]) -> Mapping[str, Mapping[str, object]]:
        found = self.parameters
        if not isinstance(found, Mapping) or not all(isinstance(value, Mapping) for value in found.values()):
            raise InputError(
                f"parameters is {found!r:.100}, not a dictionary for each policy: {{NAME: {{PARAMETER: VALUE}}}}"
            )
        unknown = [name for name in found if name not in policies]
        if unknown:
            raise InputError(f"parameters are for {unknown[0]!r}, which is none of {', '.join(policies)}")
        return found

    def _counts(self) -> Sequence[int]:
        counts: Any = self.gpu_counts
        if isinstance(counts, str) or not isinstance(counts, Sequence):
            raise InputError(f"gpu_counts is {counts!r:.100}, not e.g. [1, 2, 4, 8]")
        if any(not is_whole_number(count) or not 1 <= count <= GPU_COUNT_MAX for count in counts):
            raise InputError(f"gpu_counts holds something else than whole numbers from 1 to {GPU_COUNT_MAX:,}")
        return sorted({int(count) for count in counts})

    def _number(self, name: str, *, most: float) -> float:
        value = getattr(self, name)
        number = float(value) if not isinstance(value, bool) and isinstance(value, Real) else math.nan
        if not 0 <= number <= most:
            raise InputError(f"{name} is {value!r:.100}, not a number from 0 to {most:g}")
        return number

    def _path(self, name: str) -> Path | None:
        value = getattr(self, name)
        if value is None or isinstance(value, str | PathLike):
            return None if value is None else Path(fspath(value))
        raise InputError(f"{name} is {value!r:.100}, not the path of a folder")


_EXAMPLES = {"cluster": "4x8", "predictions": "oracle or noise:0.3"}


def is_whole_number(value: object) -> bool:
    """Whether a caller's value is one: also of numpy, as a range or a column of it holds."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def options_of(given: Mapping[str, Any]) -> Options:
    """Return the options that were given by name.

    Raises:
        InputError: There is none of such a name.
    """
    known = [one.name for one in fields(Options)]
    unknown = [name for name in given if name not in known]
    if unknown:
        raise InputError(f"there is no argument {unknown[0]!r}; there are {', '.join(known)}")
    return Options(**given)
