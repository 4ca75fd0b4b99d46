"""Step times that were foreseen wrongly cost less once the policy sees what simulated jobs report."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cotenant_simulator.run.records import OverheadCosts, RunSettings
from cotenant_simulator.run.simulation import Simulation
from cotenant_simulator.truth.cluster import read_cluster
from cotenant_simulator.truth.predictions import NoErrors, TruthPredictor
from scheduler_service.core.commands import RequestPrediction
from scheduler_service.core.records import JobPrediction
from tests.support.simulated_runs import mean, trace_job, trace_of


class LinearPredictor(TruthPredictor):
    """Foresees that n GPUs are n times as fast as one: exchanging gradients counts as free."""

    def job(self, question: RequestPrediction) -> JobPrediction | None:
        found = super().job(question)
        if found is None:
            return None
        return replace(found, step_ms={shape: step_ms / shape[0] for shape, step_ms in found.step_ms.items()})


COSTS = OverheadCosts(launch_ms=0, restart_ms=100_000, checkpoint_ms=10_000, checkpoint_interval_ms=60_000)
ALONE_S = 600.0


def mean_s(policy: str, predictor: type[TruthPredictor], *, learns_speeds: bool, **parameters: object) -> float:
    """Mean time from submission to end of 12 jobs of one key on four GPUs; none is faster on several GPUs."""
    jobs = (
        trace_job(f"j{n}", at_s=200.0 * n, seconds=ALONE_S, allowed_gpus=(1, 2, 4), global_batch_size=4)
        for n in range(12)
    )
    trace = trace_of(*jobs)
    settings = RunSettings(policy=policy, charges=COSTS, learns_speeds=learns_speeds, parameters=parameters)
    cluster = read_cluster("1x4", device=trace.device)
    done = Simulation(trace, cluster, predictor(trace.truth, NoErrors()), settings).run().jobs
    assert all(job.outcome == "finished" for job in done)
    return mean([(job.finished_at_ms - job.submitted_at_ms) / 1_000 for job in done])


@pytest.mark.parametrize(("policy", "won_back_ratio"), [("optimus", 0.1), ("elastic", 0.5), ("pollux", 0.5)])
def test_jobs_end_sooner_when_measured_speeds_take_the_place_of_foreseen_ones(
    policy: str, won_back_ratio: float
) -> None:
    kept, learned = (mean_s(policy, LinearPredictor, learns_speeds=learns) for learns in (False, True))
    assert kept - learned >= won_back_ratio * (kept - ALONE_S) > 0


def test_measured_speeds_that_agree_with_foreseen_ones_change_nothing() -> None:
    assert mean_s("optimus", TruthPredictor, learns_speeds=True) == ALONE_S


def test_a_short_run_on_a_second_count_tells_optimus_at_once_what_it_would_learn_late() -> None:
    late = mean_s("optimus", LinearPredictor, learns_speeds=True)
    explored = mean_s("optimus", LinearPredictor, learns_speeds=True, explored_counts=2)
    assert explored <= 1.05 * ALONE_S < 1.3 * ALONE_S < late
