"""What is run: a workload, machines, policies, seeds; and for each seed the scenario that all policies meet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cotenant_simulator.errors import InputError, PolicyFaultError
from cotenant_simulator.readers.chosen_counts import SPEEDUP_POWER, with_gpu_counts
from cotenant_simulator.readers.measured_demands import with_measured_demands
from cotenant_simulator.readers.measured_jobs import MeasuredJobs, read_measured_jobs
from cotenant_simulator.readers.requests import Consent
from cotenant_simulator.readers.trace_file import is_drawn, read_trace
from cotenant_simulator.run.records import RunResult, RunSettings
from cotenant_simulator.run.simulation import Simulation
from cotenant_simulator.truth.cluster import DEFAULT_CLUSTER, Cluster, read_cluster
from cotenant_simulator.truth.predictions import Predictor, TruthPredictor, parse_errors
from cotenant_simulator.truth.trace import Trace
from scheduler_service.core.cluster_view.view import Policy
from scheduler_service.core.engine import MakePolicy
from scheduler_service.core.errors import POLICY_FAULTS, PolicyError
from scheduler_service.core.planning.policy_parameters import require_interval
from scheduler_service.policy_registry import make_policy

OWN_CLUSTER = "own"
SEEDS_MAX = 1_000
POLICIES_MAX = 100
SEED_MAX = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """What shall be run.

    Attributes:
        trace: Its file.
        policies: Names, each once; other policies are compared with the first.
        seeds: Of everything that is drawn, each once; one seed 0 = a drawn workload has its file's own.
        settings: Of every run; policy, parameters and seed are put in.
        cluster: NODESxGPUS, a TOML file or `own`; None = the trace's own machines, or DEFAULT_CLUSTER.
        parameters: By policy.
        own_policies: Policies that no registry knows, by the name that they have here; see `Simulation.make`.
        consent: What owners consent to.
        predictions: oracle, trained, held-out, noise:SIGMA or error:E.
        slowdown_ratio: Of unmeasured pairs; None = as the trace has it.
        measured: Folder of measured jobs that those of the trace are taken for; None = they stay what they are.
        gpu_counts: Numbers of GPUs that every job allows beside its own.
        speedup_power: How fast jobs are on those.
        profiles: Folder of the Pollux family's profiles; None = found above the trace.
        models: State folder of the predictor, for trained and held-out; None = the user's own.
        graphs: Folder of SHA256.onnx files, for trained; None = those of the predictor.
    """

    trace: Path
    policies: Sequence[str]
    seeds: Sequence[int]
    settings: RunSettings
    cluster: str | None = None
    parameters: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    own_policies: Mapping[str, object] = field(default_factory=dict)
    consent: Consent = field(default_factory=Consent)
    predictions: str = "oracle"
    slowdown_ratio: float | None = None
    measured: Path | None = None
    gpu_counts: Sequence[int] = ()
    speedup_power: float = SPEEDUP_POWER
    profiles: Path | None = None
    models: Path | None = None
    graphs: Path | None = None

    @property
    def make_policy(self) -> MakePolicy:
        """What builds a policy from its name and parameters."""
        return _Maker(self.own_policies)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What all policies of one seed meet."""

    trace: Trace
    cluster: Cluster
    predictor: Predictor


class Scenarios:
    """Makes the scenario of every seed; what no seed changes is read once.

    Args:
        experiment: What shall be run.

    Raises:
        InputError: A policy or one of its parameters does not exist.
    """

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        for name in experiment.policies:
            try:
                experiment.make_policy(name, experiment.parameters.get(name, {}))
            except PolicyError as error:
                raise InputError(str(error)) from error
        self._fixed_trace: Trace | None = None
        self._measured: MeasuredJobs | None = None
        self._held_out: Any = None

    def of(self, seed: int) -> Scenario:
        """Return the scenario of a seed.

        Raises:
            InputError: A file or a value is wrong.
        """
        asked = self._experiment
        trace = self._trace(seed)
        cluster = read_cluster(cluster_of(asked, trace), device=trace.device, own_nodes=trace.nodes)
        truth = trace.truth
        if asked.slowdown_ratio is not None:
            truth = replace(truth, slowdown_ratio=asked.slowdown_ratio)
        trace = replace(trace, truth=replace(truth, speeds=cluster.speeds))
        return Scenario(trace=trace, cluster=cluster, predictor=self._predictor(trace, seed))

    def run(
        self, scenario: Scenario, policy: str, seed: int, *, advance: Callable[[int], None] | None = None
    ) -> RunResult:
        """Run one policy.

        Raises:
            PolicyFaultError: The policy raised, or answered what is no decision.
            BrokenSimulationError: An invariant does not hold.
        """
        asked = self._experiment
        settings = replace(asked.settings, policy=policy, parameters=dict(asked.parameters.get(policy, {})), seed=seed)
        simulation = Simulation(
            scenario.trace, scenario.cluster, scenario.predictor, settings, advance=advance, make=asked.make_policy
        )
        result = simulation.run()
        if result.policy_fault:
            raise PolicyFaultError(policy, result.policy_fault)
        return result

    def _trace(self, seed: int) -> Trace:
        trace = self._read(seed)
        measured = self._experiment.measured
        if measured is not None:
            self._measured = self._measured or read_measured_jobs(measured)
            trace = with_measured_demands(self._experiment.trace, trace, self._measured, seed=seed)
        counts = self._experiment.gpu_counts
        return with_gpu_counts(trace, counts, speedup_power=self._experiment.speedup_power) if counts else trace

    def _read(self, seed: int) -> Trace:
        asked = self._experiment
        if self._fixed_trace is not None:
            return self._fixed_trace
        # Of several seeds each draws its own: the file's own seed may be one of the others.
        drawn_from = seed if len(asked.seeds) > 1 else seed or None
        trace = read_trace(asked.trace, asked.consent, seed=drawn_from, profiles=asked.profiles)
        if not is_drawn(asked.trace):
            self._fixed_trace = trace
        return trace

    def _predictor(self, trace: Trace, seed: int) -> Predictor:
        asked = self._experiment
        if asked.predictions == "trained":
            from cotenant_simulator.trained_predictions import trained_predictor

            return trained_predictor(trace, models=asked.models, graphs=asked.graphs)
        if asked.predictions == "held-out":
            from cotenant_simulator.trained_predictions import HeldOutErrors, read_held_out

            self._held_out = self._held_out or read_held_out(asked.models)
            return TruthPredictor(trace.truth, HeldOutErrors(self._held_out, device=trace.device, seed=seed))
        return TruthPredictor(trace.truth, parse_errors(asked.predictions, seed=seed))


def cluster_of(experiment: Experiment, trace: Trace) -> str:
    """Return the machines as the user would write them."""
    if experiment.cluster is not None:
        return experiment.cluster
    return OWN_CLUSTER if trace.nodes else DEFAULT_CLUSTER


class _Maker:
    """Builds policies, those among them that no registry knows."""

    def __init__(self, own: Mapping[str, object]) -> None:
        self._own = own

    def __call__(self, name: str, parameters: Mapping[str, object]) -> Policy:
        if name not in self._own:
            return make_policy(name, parameters)
        own = self._own[name]
        try:
            policy = own(**parameters) if isinstance(own, type) else own
        except POLICY_FAULTS as error:  # whatever a foreign class does
            raise InputError(f"policy {name} cannot be built: {type(error).__name__}: {error}") from error
        require_interval(policy)
        return policy  # type: ignore[return-value]
