"""Pollux under the artifact's clock: the allocation that is fairest in goodput, found without randomness.

Source:
    The Pollux artifact (petuum/adaptdl, branch osdi21-artifact), simulator/pollux.py and simulator.py: speedup over the
    fair share, power mean with p = -1, penalty of a restart, at most twice the GPUs a job has had. It searches with
    a genetic algorithm; what replaces it: docs/pollux_rules.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cotenant_simulator.pollux_rules.cluster import ClusterShape
from cotenant_simulator.pollux_rules.pollux_agent import Agent
from cotenant_simulator.pollux_rules.pollux_packing import Claim, Packing
from cotenant_simulator.pollux_rules.training_job import RESTART_PAUSE_S, Allocation, TrainingJob
from scheduler_service.policies.elasticity.count_choice import cheapest_counts

_SPEEDUP_MIN = 1e-3
"""Added to speedups, so that a job without GPUs costs much but not infinitely much."""


class Pollux:
    """Allocates by what the agents have learned.

    Args:
        cluster: The nodes.
        agents: One per job, by id.
    """

    def __init__(self, cluster: ClusterShape, agents: Mapping[str, Agent]) -> None:
        self._cluster = cluster
        self._agents = agents

    def allocate(self, active: Sequence[TrainingJob], now_s: int) -> Mapping[str, Allocation]:
        """Return the allocations until the next round."""
        fair_gpus = -(-self._cluster.gpus // len(active))
        claims = [self._claim(job, now_s, fair_gpus) for job in active]
        counts = cheapest_counts([claim.costs(self._cluster.gpus_per_node) for claim in claims], self._cluster.gpus)
        places = Packing(self._cluster, claims).place(counts)
        return {job.job_id: place for job, place in zip(active, places, strict=True)}

    def _claim(self, job: TrainingJob, now_s: int, fair_gpus: int) -> Claim:
        """Return what every count costs the job: the inverse of its speedup, since p = -1."""
        agent, application, cluster = self._agents[job.job_id], job.application, self._cluster
        usable = application.gpus_forced_max or application.batch_max // application.local_samples_min
        most = min(max(2 * agent.gpus_seen_max, 1), usable, cluster.gpus)
        near, far = agent.rates(cluster.gpus)
        # Speedups are scaled so that one GPU's share of the cluster times its nodes is the unit, as in the artifact.
        fair = float(near[fair_gpus]) * cluster.gpus / cluster.nodes
        unit = 1 / fair if fair > 0 else 0.0
        age_s = now_s - job.submit_s
        kept_ratio = max(age_s - job.restarts * RESTART_PAUSE_S, 0) / (age_s + RESTART_PAUSE_S)
        held = float((far if len(job.allocation) > 1 else near)[job.gpus_held])
        return Claim(
            allocation=job.allocation,
            near_costs=(1 / (near[: most + 1] * (unit * kept_ratio) + _SPEEDUP_MIN)).tolist(),
            far_costs=(1 / (far[: most + 1] * (unit * kept_ratio) + _SPEEDUP_MIN)).tolist(),
            keep_cost=1 / (held * unit + _SPEEDUP_MIN),
        )
