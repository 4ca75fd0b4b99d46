"""Runs under the rules of a plugged-in engine: one document for each policy, joined to one report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from cotenant.system_clock import cpu_s
from cotenant_simulator.commands.progress import Progress
from cotenant_simulator.errors import InputError


class PluggedRules(Protocol):
    """The port: what an engine with rules of its own has to offer."""

    def __call__(self, trace: Path, profiles: Path | None, policy: str, cluster: str, /) -> dict[str, Any]:
        """Run a workload under one policy.

        Args:
            trace: The workload's file.
            profiles: Folder of measured profiles; None = found by the engine itself.
            policy: One of the engine's own.
            cluster: NODESxGPUS.

        Returns:
            The document `cotenant.simulate/1` with one policy and all its jobs.

        Raises:
            InputError: Something cannot be used; the message states why.
        """


def run_plugged(
    rules: PluggedRules, flags: Mapping[str, Any], names: Sequence[str], timings: dict[str, object], *, cluster: str
) -> Mapping[str, Any]:
    """Run every policy and return the report.

    Args:
        rules: Of the engine.
        flags: Of the command line.
        names: The policies, at least one.
        timings: Gets the CPU time of every run.
        cluster: Where the command line names none.

    Raises:
        InputError: An input is wrong, or what was asked for needs the live engine.
    """
    if flags["report"] is not None:
        raise InputError(f"--report needs --engine-rules live: {flags['engine_rules']} keeps no history")
    if flags["learn_speeds"]:
        raise InputError(
            f"--learn-speeds needs --engine-rules live: {flags['engine_rules']} knows speeds from profiles"
        )
    if flags["tenants"] is not None:
        raise InputError(f"--tenants needs --engine-rules live: {flags['engine_rules']} knows no tenants")
    for name, is_asked in (
        ("--seeds", flags["seeds"] > 1),
        ("--measured", flags["measured"] is not None),
        ("--gpu-counts", bool(flags["gpu_counts"])),
    ):
        if is_asked:
            raise InputError(f"{name} needs --engine-rules live: {flags['engine_rules']} draws nothing")
    documents = []
    for name in names:
        began_s = cpu_s()
        with Progress(name, 1):
            documents.append(rules(flags["trace"], flags["profiles"], name, flags["cluster"] or cluster))
        timings[name] = {"cpu_s": cpu_s() - began_s}
    return {
        **documents[0],
        "policies": [policy for document in documents for policy in document["policies"]],
        "jobs": [job for document in documents for job in document["jobs"]] if flags["jobs"] == "all" else [],
    }
