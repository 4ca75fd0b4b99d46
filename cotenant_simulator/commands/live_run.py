"""Runs under the live engine's rules: flags to settings, runs, report."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cotenant_simulator.commands.progress import Progress
from cotenant_simulator.commands.simulate import CLUSTER
from cotenant_simulator.errors import InputError
from cotenant_simulator.readers.requests import Consent
from cotenant_simulator.readers.trace_file import fingerprint, read_trace
from cotenant_simulator.report.comparability import caveats_of_outcomes, caveats_of_trace
from cotenant_simulator.report.json_report import Question, as_json
from cotenant_simulator.run.records import NodeFailures, OverheadCosts, RunResult, RunSettings
from cotenant_simulator.run.simulation import Simulation
from cotenant_simulator.system_clock import cpu_s
from cotenant_simulator.truth.cluster import Cluster, read_cluster
from cotenant_simulator.truth.predictions import Predictor, TruthPredictor, parse_errors
from cotenant_simulator.truth.trace import Trace
from scheduler_service.core.errors import PolicyError, TenantRulesError
from scheduler_service.core.records import Share
from scheduler_service.core.tenants import TenantRules, parse_tenants
from scheduler_service.policy_registry import make_policy

HOUR_MS = 3_600_000


def run_live(flags: dict[str, Any], names: Sequence[str], timings: dict[str, object]) -> Mapping[str, Any]:
    """Run every policy and return the report.

    Args:
        flags: Of the command line.
        names: The policies.
        timings: Gets the CPU time of reading and of every run.

    Raises:
        SimulatorError: An input is wrong, or an invariant broke.
    """
    began_s = cpu_s()
    every = _settings(flags, names)
    trace, cluster = _inputs(flags)
    predictor = _predictor(flags, trace)
    timings["read"] = {"cpu_s": cpu_s() - began_s}
    caveats = caveats_of_trace(trace, names, is_truth_predicted=flags["predictions"] == "oracle")
    results: list[RunResult] = []
    for settings in every:
        began_s = cpu_s()
        with Progress(settings.policy, len(trace.jobs)) as progress:
            results.append(Simulation(trace, cluster, predictor, settings, advance=progress.advance).run())
        timings[settings.policy] = {"cpu_s": cpu_s() - began_s, "events": results[-1].events}
        if results[-1].rejected_decisions:
            count = results[-1].rejected_decisions
            sys.stderr.write(f"{settings.policy}: {count} of its decisions were impossible and not carried out\n")
    question = Question(
        trace_path=str(flags["trace"]),
        trace_sha256=fingerprint(flags["trace"]),
        trace_jobs=len(trace.jobs),
        cluster=flags["cluster"],
        engine_rules="live",
        predictions=flags["predictions"],
        seed=flags["seed"],
        has_jobs=flags["jobs"] == "all",
    )
    caveats += caveats_of_outcomes(results)
    for caveat in caveats:
        sys.stderr.write(f"warning: {caveat.message}\n")
    report = as_json(question, results, caveats)
    if flags["report"] is not None:
        from cotenant_simulator.report.page import write_page

        write_page(flags["report"], report, results, cluster)
    return report


def _inputs(flags: dict[str, Any]) -> tuple[Trace, Cluster]:
    consent = Consent(
        share=Share(flags["share"]), max_slowdown_ratio=flags["max_slowdown"], no_trial=flags["no_trials"]
    )
    trace = read_trace(flags["trace"], consent, seed=flags["seed"] or None)
    for reason, count in trace.skipped.items():
        sys.stderr.write(f"{flags['trace']}: {count} lines left out, {reason}\n")
    flags["cluster"] = flags["cluster"] or ("own" if trace.nodes else CLUSTER)
    cluster = read_cluster(flags["cluster"], device=trace.device, own_nodes=trace.nodes)
    truth = trace.truth if flags["slowdown"] is None else replace(trace.truth, slowdown_ratio=flags["slowdown"])
    return replace(trace, truth=replace(truth, speeds=cluster.speeds)), cluster


def _predictor(flags: dict[str, Any], trace: Trace) -> Predictor:
    if flags["predictions"] == "trained":
        from cotenant_simulator.trained_predictions import trained_predictor

        return trained_predictor(trace, models=flags["models"], graphs=flags["graphs"])
    return TruthPredictor(trace.truth, parse_errors(flags["predictions"], seed=flags["seed"]))


def _settings(flags: dict[str, Any], names: Sequence[str]) -> list[RunSettings]:
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
    parameters = _parameters(names, flags["parameters"])
    for name in names:
        try:
            make_policy(name, parameters[name])
        except PolicyError as error:
            raise InputError(str(error)) from error
    return [
        RunSettings(
            policy=name,
            parameters=parameters[name],
            seed=flags["seed"],
            charges=charges,
            failures=failures,
            report_interval_ms=round(flags["report_every_s"] * 1_000),
            tenants=_tenants(flags["tenants"]),
            learns_speeds=flags["learn_speeds"],
            keeps_history=flags["report"] is not None,
        )
        for name in names
    ]


def _tenants(path: Path | None) -> TenantRules | None:
    try:
        return parse_tenants(path.read_text(encoding="utf-8")) if path is not None else None
    except (OSError, UnicodeDecodeError, TenantRulesError) as error:
        raise InputError(
            f"the tenants in {path} cannot be read: {error}; correct the file, or leave --tenants out"
        ) from error


def _parameters(names: Sequence[str], texts: tuple[str, ...]) -> dict[str, dict[str, object]]:
    """Sort POLICY.NAME=VALUE by policy; values are JSON, or else text."""
    found: dict[str, dict[str, object]] = {name: {} for name in names}
    for text in texts:
        place, is_set, value = text.partition("=")
        policy, _, name = place.partition(".")
        if not is_set or not name or policy not in found:
            raise InputError(f"--parameter {text!r} is not POLICY.NAME=VALUE of one of {', '.join(names)}")
        try:
            found[policy][name] = json.loads(value)
        except (ValueError, RecursionError):  # no JSON, or more digits or brackets than can be read
            found[policy][name] = value
    return found
