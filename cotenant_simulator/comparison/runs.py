"""All policies on all seeds, seed by seed; of a run only its figures are kept, unless its jobs are asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cotenant_simulator.comparison.experiment import Experiment, Scenario, Scenarios, cluster_of
from cotenant_simulator.comparison.figures import Document
from cotenant_simulator.errors import InputError
from cotenant_simulator.report.comparability import Caveat, Fate, caveats_of_outcomes, caveats_of_trace, fate_of
from cotenant_simulator.report.json_report import as_job, as_policy
from cotenant_simulator.run.records import RunResult
from cotenant_simulator.truth.cluster import Cluster

JOB_ROWS_MAX = 2_000_000
RunOne = Callable[[Scenario, str, int], RunResult]


@dataclass(slots=True)
class Runs:
    """What all runs left.

    Attributes:
        trace_jobs: In the workload.
        cluster: As the user would write it.
        policies: A seed and the sums of one run, each.
        jobs: A seed and one job of one run, each; only if asked for.
        caveats: What the comparison cannot show.
        notices: What was wrong in single runs: jobs that did not finish, decisions that were impossible.
        skipped: Rows of the trace that are no jobs, by reason.
        machines: The cluster.
        last_results: Of the newest seed.
    """

    trace_jobs: int = 0
    cluster: str = ""
    policies: list[tuple[int, Document]] = field(default_factory=list)
    jobs: list[tuple[int, Document]] = field(default_factory=list)
    caveats: list[Caveat] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)
    machines: Cluster = field(default_factory=lambda: Cluster(name="", nodes=()))
    last_results: Sequence[RunResult] = ()


def run_all(experiment: Experiment, *, has_jobs: bool, scenarios: Scenarios, run_one: RunOne | None = None) -> Runs:
    """Run every policy on every seed.

    Args:
        experiment: What shall be run.
        has_jobs: Keep every job of every run.
        scenarios: Of the experiment.
        run_one: Instead of `scenarios.run`, for callers that want to watch.

    Raises:
        SimulatorError: An input is wrong, a policy failed, or an invariant broke.
    """
    found, fates = Runs(), {name: list[Fate]() for name in experiment.policies}
    for seed in experiment.seeds:
        scenario = scenarios.of(seed)
        if not found.policies:
            _begin(found, experiment, scenario, has_jobs=has_jobs)
        results = [(run_one or scenarios.run)(scenario, policy, seed) for policy in experiment.policies]
        for result in results:
            fates[result.policy].append(fate_of(result))
            found.policies.append((seed, as_policy(result)))
            found.notices += _notices(result, seed if len(experiment.seeds) > 1 else None)
            if has_jobs:
                found.jobs += [(seed, as_job(result.policy, job)) for job in result.jobs]
        found.machines, found.last_results = scenario.cluster, results
    found.caveats += caveats_of_outcomes(fates)
    return found


def _begin(found: Runs, experiment: Experiment, scenario: Scenario, *, has_jobs: bool) -> None:
    """Take down what is the same for all seeds, and refuse more rows than fit into memory."""
    policies, trace = experiment.policies, scenario.trace
    rows = len(trace.jobs) * len(policies) * len(experiment.seeds)
    if has_jobs and rows > JOB_ROWS_MAX:
        raise InputError(
            f"{len(trace.jobs):,} jobs under {len(policies)} policies and {len(experiment.seeds)} seeds are {rows:,} "
            f"rows, more than {JOB_ROWS_MAX:,}; name fewer policies or seeds, or leave the list of all jobs out"
        )
    found.trace_jobs, found.skipped, found.cluster = len(trace.jobs), trace.skipped, cluster_of(experiment, trace)
    is_truth_predicted = experiment.predictions == "oracle"
    found.caveats += caveats_of_trace(
        trace, policies, is_truth_predicted=is_truth_predicted, own=experiment.own_policies
    )


def _notices(result: RunResult, seed: int | None) -> list[str]:
    at_seed = "" if seed is None else f", seed {seed}"
    found = []
    if result.rejected_decisions:
        found.append(
            f"{result.policy}{at_seed}: {result.rejected_decisions} of its decisions were impossible and not carried "
            f"out, the first: {result.first_rejection}"
        )
    if result.unfinished:
        held = ", ".join(f"{code} {count}" for code, count in result.held_reasons.items())
        why = f"; what jobs were first held for: {held}" if held else ""
        found.append(f"{result.policy}{at_seed}: {result.unfinished} of {len(result.jobs)} jobs did not finish{why}")
    return found
