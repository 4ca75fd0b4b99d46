"""The simulator from Python: policies and seeds in, data frames out.

    >>> import cotenant_simulator
    >>> import pandas
    >>> trace = pandas.DataFrame({"submit_time_s": 0, "duration_s": [600, 60, 300, 60], "num_gpus": 1})
    >>> found = cotenant_simulator.simulate(trace, "fifo,sjf", cluster="1x1")
    >>> found.runs.jct_mean_s.to_list()
    [810.0, 750.0]
    >>> found.jobs.columns[:3].to_list()
    ['seed', 'policy', 'job_id']

Several seeds give every figure of every policy with its 95 % interval, alone and over the first policy's:

    >>> wrong = cotenant_simulator.simulate(trace, "fifo,sjf", seeds=5, cluster="1x1", predictions="noise:1.5")
    >>> sjf = wrong.policies.query("figure == 'jct_mean_s'").iloc[1]
    >>> bool(sjf.ratio_low < sjf.ratio < sjf.ratio_high)
    True
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cotenant.extras import missing_extra_line
from cotenant_simulator.comparison.experiment import POLICIES_MAX, SEED_MAX, SEEDS_MAX, Scenarios
from cotenant_simulator.comparison.figures import JOB_COLUMNS, POLICY_COLUMNS, job_row, policy_rows, run_row
from cotenant_simulator.comparison.options import is_whole_number, options_of
from cotenant_simulator.comparison.runs import Runs, run_all
from cotenant_simulator.errors import InputError, TraceError

if TYPE_CHECKING:
    import pandas

_FRAME_FILE = "data frame.csv"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Comparison:
    """What policies did to a workload.

    Attributes:
        jobs: One row per job, policy and seed; times in ms of the simulated clock, or s; missing = never.
        runs: One row per policy and seed, a column per figure with its unit last in the name.
        policies: One row per policy and figure: its mean over the seeds with the 95 % interval (`low`, `high`), the
            `difference` to the first policy and the `ratio` over it, seed by seed, with their intervals.
        warnings: What the comparison cannot show, and what went wrong in single runs, one sentence each.
    """

    jobs: pandas.DataFrame
    runs: pandas.DataFrame
    policies: pandas.DataFrame
    warnings: tuple[str, ...]


def simulate(
    trace: str | PathLike[str] | pandas.DataFrame,
    policies: Any,  # noqa: ANN401 (names, classes, objects, one of them or several)
    *,
    seeds: int | Iterable[int] = 1,
    **options: Any,  # noqa: ANN401 (those of `Options`)
) -> Comparison:
    """Run a workload under policies.

    Args:
        trace: A file of any format that docs/simulate.md lists, or a data frame with the columns of a job list;
            submit_time_s, duration_s and num_gpus are enough.
        policies: Names (a list, or one text with commas), or classes or objects with `decide(view)`; the first is what
            others are compared with.
        seeds: How many, counted from 0, or the seeds themselves; 1 to 1,000 of them.
        options: cluster, predictions, parameters, max_slowdown, measured, gpu_counts and others: the attributes of
            `cotenant_simulator.comparison.options.Options`, each named like its flag.

    Raises:
        InputError: A file or an argument is wrong; the message says what and why.
        SimulatorError: A policy failed, or the simulator contradicts itself.
    """
    frames = _pandas()
    own = _named(policies)
    unregistered = {name: policy for name, policy in own.items() if not isinstance(policy, str)}
    chosen = options_of(options)
    with tempfile.TemporaryDirectory(prefix="cotenant-simulate-") as folder:
        path = _written(frames, trace, Path(folder))
        experiment = chosen.experiment(path, list(own), _seeds(seeds), unregistered)
        try:
            runs = run_all(experiment, has_jobs=True, scenarios=Scenarios(experiment))
        except TraceError as error:
            told = str(error).replace(str(Path(folder) / _FRAME_FILE), "the data frame")
            raise InputError(f"{_with_rows(told)}{_columns_needed(trace)}") from error
    return _as_frames(frames, runs)


def _as_frames(frames: Any, runs: Runs) -> Comparison:  # noqa: ANN401 (the module)
    rows = [run_row(seed, policy) for seed, policy in runs.policies]
    jobs = [job_row(seed, job) for seed, job in runs.jobs]
    skipped = (f"{count} lines left out, {reason}" for reason, count in runs.skipped.items())
    return Comparison(
        jobs=frames.DataFrame(jobs, columns=list(JOB_COLUMNS)),
        runs=frames.DataFrame(rows),
        policies=frames.DataFrame(policy_rows(rows), columns=list(POLICY_COLUMNS)),
        warnings=(*skipped, *runs.notices, *(caveat.message for caveat in runs.caveats)),
    )


def _pandas() -> Any:  # noqa: ANN401 (the module, which an extra brings)
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise InputError(missing_extra_line("cotenant_simulator", error).removeprefix("error: ")) from error
    return pandas


def _written(frames: Any, trace: Any, folder: Path) -> Path:  # noqa: ANN401 (what the caller has)
    """Return the file of a trace; a data frame becomes one, its jobs numbered where it has no ids."""
    if isinstance(trace, str | PathLike):
        return Path(fspath(trace))
    if not isinstance(trace, frames.DataFrame):
        raise InputError(f"the trace is {type(trace).__name__}, neither the path of a file nor a data frame")
    path = folder / _FRAME_FILE
    numbered = trace if "job_id" in trace.columns else trace.assign(job_id=range(len(trace)))
    numbered.to_csv(path, index=False)
    return path


def _with_rows(told: str) -> str:
    """Return a complaint about lines of the file, of which the first is the header, as one about rows of the frame."""
    told = re.sub(r"^the data frame:(\d+): ", lambda found: f"the data frame, iloc[{int(found[1]) - 2}]: ", told)
    return re.sub(r"stands in line (\d+) too", lambda found: f"stands in iloc[{int(found[1]) - 2}] too", told)


def _columns_needed(trace: Any) -> str:  # noqa: ANN401 (what the caller has)
    """Return what to add where a data frame lacks every column by which a format is known; empty = it has one."""
    lacks = not isinstance(trace, str | PathLike) and not {"submit_time_s", "duration_s"} <= set(trace.columns)
    return "; a job list needs the columns submit_time_s, duration_s and num_gpus" if lacks else ""


def _named(policies: Any) -> Mapping[str, Any]:  # noqa: ANN401 (what the caller has)
    """Return the policies by name, each once: a name stands for itself, a class or an object for its class's name."""
    asked = [name.strip() for name in policies.split(",")] if isinstance(policies, str) else policies
    if isinstance(asked, type) or not isinstance(asked, Iterable):
        asked = [asked]
    found: dict[str, Any] = {}
    for policy in asked:
        kind = policy if isinstance(policy, type) else type(policy)
        if not isinstance(policy, str) and not callable(getattr(policy, "decide", None)):
            raise InputError(f"{policy!r:.100} is neither the name of a policy nor a class with decide(view)")
        name = policy if isinstance(policy, str) else kind.__name__
        if found.setdefault(name, policy) is not policy and found[name] != policy:
            raise InputError(f"two policies are called {name}; rename one of the classes")
    names = [name for name in found if name]
    if not names or len(names) > POLICIES_MAX:
        raise InputError(f"{len(names)} policies are named; name 1 to {POLICIES_MAX} of `cotenant policies list`")
    return {name: found[name] for name in names}


def _seeds(seeds: Any) -> Sequence[int]:  # noqa: ANN401 (what the caller has)
    asked = range(min(int(seeds), SEEDS_MAX + 1)) if is_whole_number(seeds) else seeds
    if isinstance(asked, str | bytes) or not isinstance(asked, Iterable):
        raise InputError(f"seeds is {seeds!r:.100}, neither a number of seeds nor a list of them")
    found: dict[int, None] = {}
    for seed in asked:
        if not is_whole_number(seed) or not 0 <= seed <= SEED_MAX:
            raise InputError(f"seeds holds {seed!r:.100}, not a whole number from 0 to {SEED_MAX:,}")
        found[int(seed)] = None
        if len(found) > SEEDS_MAX:
            break
    if not 1 <= len(found) <= SEEDS_MAX:
        raise InputError(f"{seeds!r:.100} are not 1 to {SEEDS_MAX:,} seeds")
    return list(found)
