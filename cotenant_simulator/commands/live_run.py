"""Runs under the live engine's rules: flags to settings, runs, report."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cotenant.system_clock import cpu_s
from cotenant_simulator.commands.progress import Progress
from cotenant_simulator.comparison.experiment import Experiment, Scenario, Scenarios
from cotenant_simulator.comparison.runs import Runs, run_all
from cotenant_simulator.comparison.seeds_report import as_seeds_json
from cotenant_simulator.errors import InputError
from cotenant_simulator.readers.chosen_counts import GPU_COUNT_MAX
from cotenant_simulator.readers.requests import Consent
from cotenant_simulator.readers.trace_file import fingerprint
from cotenant_simulator.report.json_report import Question, as_json
from cotenant_simulator.report.text_file import write_text
from cotenant_simulator.run.records import HOUR_MS, NodeFailures, OverheadCosts, RunResult, RunSettings
from scheduler_service.core.errors import TenantRulesError
from scheduler_service.core.queue.tenants import TenantRules, parse_tenants
from scheduler_service.core.records import Share


def run_live(flags: dict[str, Any], names: Sequence[str], timings: dict[str, object]) -> Mapping[str, Any]:
    """Run every policy on every seed and return the report.

    Args:
        flags: Of the command line.
        names: The policies.
        timings: Gets the CPU time of reading and of every policy.

    Raises:
        SimulatorError: An input is wrong, a policy failed, or an invariant broke.
    """
    began_s = cpu_s()
    experiment = _experiment(flags, names)
    scenarios = Scenarios(experiment)
    watched = _Watched(scenarios, timings)
    runs = run_all(experiment, has_jobs=flags["jobs"] == "all", scenarios=scenarios, run_one=watched.run)
    timings["read"] = {"cpu_s": cpu_s() - began_s - watched.cpu_s}
    _tell(flags["trace"], runs)
    question = Question(
        trace_path=str(flags["trace"]),
        trace_sha256=fingerprint(flags["trace"]),
        trace_jobs=runs.trace_jobs,
        cluster=runs.cluster,
        engine_rules="live",
        predictions=flags["predictions"],
        seed=flags["seed"],
        has_jobs=flags["jobs"] == "all",
    )
    if len(experiment.seeds) > 1:
        return as_seeds_json(question, experiment.seeds, runs)
    report = as_json(question, runs.last_results, runs.caveats)
    if flags["report"] is not None:
        from cotenant_simulator.report.page import page

        write_text(flags["report"], page(report, runs.last_results, runs.machines))
    return report


class _Watched:
    """Runs policies with a progress bar and adds their CPU times up.

    Args:
        scenarios: Of the experiment.
        timings: Gets a policy's CPU seconds and events over all seeds.

    Attributes:
        cpu_s: Of all runs.
    """

    def __init__(self, scenarios: Scenarios, timings: dict[str, Any]) -> None:
        self._worlds, self._timings = scenarios, timings
        self.cpu_s = 0.0

    def run(self, scenario: Scenario, policy: str, seed: int) -> RunResult:
        """Run one policy on one seed."""
        began_s = cpu_s()
        with Progress(policy, len(scenario.trace.jobs)) as progress:
            result = self._worlds.run(scenario, policy, seed, advance=progress.advance)
        spent_s = cpu_s() - began_s
        self.cpu_s += spent_s
        before = self._timings.setdefault(policy, {"cpu_s": 0.0, "events": 0})
        before["cpu_s"] += spent_s
        before["events"] += result.events
        return result


def _tell(trace: Path, runs: Runs) -> None:
    """Say on stderr what was left out, what went wrong, and what the comparison cannot show."""
    for reason, count in runs.skipped.items():
        sys.stderr.write(f"{trace}: {count} lines left out, {reason}\n")
    for notice in runs.notices:
        sys.stderr.write(f"{notice}\n")
    for caveat in runs.caveats:
        sys.stderr.write(f"warning: {caveat.message}\n")


def _experiment(flags: dict[str, Any], names: Sequence[str]) -> Experiment:
    if flags["seeds"] > 1 and flags["report"] is not None:
        raise InputError("--report draws one seed; leave --seeds out, or ask for -o json, csv or parquet")
    return Experiment(
        trace=flags["trace"],
        policies=names,
        seeds=range(flags["seed"], flags["seed"] + flags["seeds"]),
        settings=_settings(flags, names[0]),
        cluster=flags["cluster"],
        parameters=_parameters(names, flags["parameters"]),
        consent=Consent(
            share=Share(flags["share"]), max_slowdown_ratio=flags["max_slowdown"], no_trial=flags["no_trials"]
        ),
        predictions=flags["predictions"],
        slowdown_ratio=flags["slowdown"],
        measured=flags["measured"],
        gpu_counts=_gpu_counts(flags["gpu_counts"]),
        speedup_power=flags["speedup_power"],
        profiles=flags["profiles"],
        models=flags["models"],
        graphs=flags["graphs"],
    )


def _gpu_counts(counts: Sequence[int]) -> Sequence[int]:
    if any(not 1 <= count <= GPU_COUNT_MAX for count in counts):
        raise InputError(f"--gpu-counts holds a number outside 1 to {GPU_COUNT_MAX:,}; write for instance 1,2,4,8")
    return sorted(set(counts))


def _settings(flags: dict[str, Any], policy: str) -> RunSettings:
    prepared_s: float | None = flags["prepared_restart_s"]
    charges = OverheadCosts(
        launch_ms=round(flags["launch_s"] * 1_000),
        restart_ms=round(flags["restart_s"] * 1_000),
        checkpoint_ms=round(flags["checkpoint_s"] * 1_000),
        checkpoint_interval_ms=round(flags["checkpoint_every_s"] * 1_000),
        prepared_restart_ms=None if prepared_s is None else round(prepared_s * 1_000),
        prepare_ms=round(flags["prepare_s"] * 1_000),
    )
    failures = NodeFailures(
        mean_up_ms=round(flags["node_failure_hours"] * HOUR_MS), repair_ms=round(flags["node_repair_s"] * 1_000)
    )
    return RunSettings(
        policy=policy,
        charges=charges,
        failures=failures,
        report_interval_ms=round(flags["report_every_s"] * 1_000),
        tenants=_tenants(flags["tenants"]),
        learns_speeds=flags["learn_speeds"],
        keeps_history=flags["report"] is not None,
    )


def _tenants(path: Path | None) -> TenantRules | None:
    try:
        return parse_tenants(path.read_text(encoding="utf-8")) if path is not None else None
    except (OSError, UnicodeDecodeError, TenantRulesError) as error:
        cause = getattr(error, "strerror", None) or error
        raise InputError(
            f"the tenants in {path} cannot be read: {cause}; correct the file, or leave --tenants out"
        ) from error


def _parameters(names: Sequence[str], texts: tuple[str, ...]) -> dict[str, dict[str, object]]:
    """Sort POLICY.NAME=VALUE by policy; values are JSON, or else text."""
    found: dict[str, dict[str, object]] = {name: {} for name in names}
    for text in texts:
        place, is_set, value = text.partition("=")
        policy, _, name = place.partition(".")
        if not is_set or not name or policy not in found:
            form = f"is not POLICY.NAME=VALUE of one of {', '.join(names)}"
            raise InputError(f"--parameter {text!r} {form}; write for instance fifo.overtaking=true")
        try:
            found[policy][name] = json.loads(value)
        except (ValueError, RecursionError):  # no JSON, or more digits or brackets than can be read
            found[policy][name] = value
    return found
