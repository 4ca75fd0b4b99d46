"""Two tenants that always want more get GPU time by their weights, whatever the policy inside a tenant."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotenant_simulator.readers.requests import Consent
from cotenant_simulator.readers.trace_file import read_trace
from cotenant_simulator.run.records import OverheadCosts, RunSettings
from cotenant_simulator.run.simulation import Simulation
from cotenant_simulator.truth.cluster import read_cluster
from cotenant_simulator.truth.predictions import TruthPredictor, parse_errors
from scheduler_service.core.queue.tenants import TenantRule, TenantRules
from tests.support.cases import sampled

WINDOW_S = 60_000
JOB_S_MAX = 600
"""1 % of the window."""
GPUS = 4
RULES = TenantRules(rules={"small": TenantRule(weight=1), "large": TenantRule(weight=3)}, half_life_ms=3 * 3_600_000)


def write_backlog(folder: Path) -> Path:
    """Both tenants submit at once more than the window holds; the first one's jobs are shorter and come first."""
    lines = ["job_id,submit_time_s,duration_s,num_gpus,tenant"]
    for number in range(620):
        lines.append(f"{2 * number},{number % 7},{JOB_S_MAX // 6 + number * 37 % 400},{1 + (number % 5 == 0)},small")
        lines.append(
            f"{2 * number + 1},{7 + number % 3},{JOB_S_MAX // 3 + number * 53 % 400},{1 + (number % 4 == 0)},large"
        )
    path = folder / "backlog.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("policy", sampled(["sjf_bsbf", "fifo"], 1))
def test_two_tenants_with_a_backlog_get_gpu_time_one_to_three(policy: str, tmp_path: Path) -> None:
    trace = read_trace(write_backlog(tmp_path), Consent(), seed=None)
    cluster = read_cluster(f"1x{GPUS}", device=trace.device, own_nodes=())
    settings = RunSettings(policy=policy, tenants=RULES, charges=OverheadCosts(), keeps_history=True)
    simulation = Simulation(trace, cluster, TruthPredictor(trace.truth, parse_errors("oracle", seed=0)), settings)
    result = simulation.run()
    until_ms = WINDOW_S * 1_000
    tenant_of = {job.request.job_id: job.request.tenant for job in trace.jobs}
    gpu_ms = dict.fromkeys(("small", "large"), 0)
    jobs = set()
    for span in result.spans:
        gpu_ms[tenant_of[span.job_id]] += max(min(span.until_ms, until_ms) - span.from_ms, 0)
        jobs |= {span.job_id} if span.from_ms < until_ms else set()
    assert len(jobs) >= 500
    assert sum(gpu_ms.values()) > 0.95 * until_ms * GPUS, "both have a backlog throughout"
    assert gpu_ms["large"] / sum(gpu_ms.values()) == pytest.approx(0.75, abs=0.03)
