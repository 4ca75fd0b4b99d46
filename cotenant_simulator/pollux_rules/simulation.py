"""One run under Pollux' rules: jobs of a workload to their ends, under one policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from cotenant_simulator.pollux_rules.cluster import ClusterShape
from cotenant_simulator.pollux_rules.engine import RoundPolicy, run_rounds
from cotenant_simulator.pollux_rules.exclusive import Exclusive
from cotenant_simulator.pollux_rules.optimus import Optimus
from cotenant_simulator.pollux_rules.tiresias import Tiresias
from cotenant_simulator.pollux_rules.training_job import TrainingJob
from cotenant_simulator.pollux_rules.workload import SubmittedJob

ELASTIC_POLICIES = ("optimus", "pollux")
"""Policies that choose the GPU count and ignore that of the file."""

_SIMPLE_POLICIES: Mapping[str, Callable[[ClusterShape], RoundPolicy]] = {
    "tiresias": Tiresias,
    "optimus": Optimus,
    "fifo": lambda cluster: Exclusive(cluster, shortest_first=False, skips=False),
    "sjf": lambda cluster: Exclusive(cluster, shortest_first=True, skips=False),
    "fifo_skip": lambda cluster: Exclusive(cluster, shortest_first=False, skips=True),
    "sjf_skip": lambda cluster: Exclusive(cluster, shortest_first=True, skips=True),
}

POLICIES = (*_SIMPLE_POLICIES, "pollux")


def simulate(submitted: Sequence[SubmittedJob], policy: str, cluster: ClusterShape) -> list[TrainingJob]:
    """Run jobs to their ends and return them in file order.

    Args:
        submitted: The jobs of a workload.
        policy: One of `POLICIES`.
        cluster: The nodes.

    Raises:
        PolluxRulesError: The profiles lack what a job needs.
    """
    if policy == "pollux":
        # The only policy that needs numpy, whose import costs more than a whole run of the others.
        from cotenant_simulator.pollux_rules.pollux import Pollux
        from cotenant_simulator.pollux_rules.pollux_agent import Agent

        agents = {job.job_id: Agent() for job in submitted}
        jobs = [TrainingJob(job, order, agents[job.job_id]) for order, job in enumerate(submitted)]
        run_rounds(jobs, Pollux(cluster, agents))
        return jobs
    jobs = [TrainingJob(job, order) for order, job in enumerate(submitted)]
    run_rounds(jobs, _SIMPLE_POLICIES[policy](cluster))
    return jobs
