"""Our engine under Pollux' rules against the rules written down a second time, on unpublished workloads."""

from __future__ import annotations

import random

import pytest

from cotenant_simulator.pollux_rules.cluster import ClusterShape
from cotenant_simulator.pollux_rules.simulation import simulate
from cotenant_simulator.pollux_rules.workload import SubmittedJob, read_workload
from tests.support.cases import for_each
from tests.support.literal_pollux import LiteralJob, LiteralRun
from tests.support.pollux_family import applications, family_folder


def new_workload(seed: int) -> list[SubmittedJob]:
    """Jobs of published workloads at other times: together, at ticks, and not in the order of the file."""
    generator = random.Random(seed)
    folder = family_folder() / "workloads"
    known = [
        job
        for path in sorted(folder.glob("load-[01].*/workload-[12].csv"))
        for job in read_workload(path, applications())
    ]
    jobs, at_s = [], 0
    for number, job in enumerate(generator.sample(known, (1, 6, 20, 45)[seed % 4])):
        at_s = generator.choice((at_s, at_s + generator.randrange(120), at_s + 60, generator.randrange(7_200)))
        jobs.append(SubmittedJob(f"j{number}", at_s, job.application, job.gpus, job.batch))
    return jobs


@pytest.mark.parametrize("policy", ["tiresias", "optimus"])
@for_each("seed", range(6))
def test_every_job_of_a_new_workload_ends_at_its_second(policy: str, seed: int) -> None:
    submitted = new_workload(seed)
    found = [job.finished_s for job in simulate(submitted, policy, ClusterShape(16, 4))]
    literal = LiteralRun(policy, [LiteralJob(job, order) for order, job in enumerate(submitted)])
    assert found == literal.finish_times_s()
