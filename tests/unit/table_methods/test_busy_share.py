"""The share of a step in which a device is busy follows from parts whose coefficients are the machine's."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from predictor_service.learning.learning_task import FloatArray
from predictor_service.table_methods.analytical_estimate import fit_analytical_model
from predictor_service.table_methods.busy_share import PARTS, fit_shares, read_shares, share_parts
from predictor_service.table_methods.solo_columns import at_batches
from tests.support.solo_learning_tasks import utilization_problem

TRUE = np.array([2.0, 1.5, 1.0, 0.3, 0.0, 3.0, 0.5, 2.0, 1.0, 0.95, 1.0])


def invented_parts(rows: int, seed: int, largest: float = 3.0) -> FloatArray:
    """Milliseconds between a microsecond and what is asked for."""
    return np.exp(np.random.default_rng(seed).uniform(np.log(1e-3), np.log(largest), (rows, PARTS)))


def test_coefficients_of_one_machine_answer_for_jobs_unlike_those_they_were_fitted_to() -> None:
    small, large = invented_parts(300, 0, largest=1.0), invented_parts(300, 1, largest=30.0)
    fitted = fit_shares(small, read_shares(small, TRUE))
    assert fitted is not None
    error = np.abs(read_shares(large, fitted) - read_shares(large, TRUE))
    assert error.mean() < 0.03


def test_runs_that_stalled_do_not_move_the_others() -> None:
    parts = invented_parts(400, 2)
    measured = read_shares(parts, TRUE)
    measured[::20] = 0.0
    fitted = fit_shares(parts, measured)
    assert fitted is not None
    assert np.median(np.abs(read_shares(parts, fitted) - read_shares(parts, TRUE))) < 0.02


@pytest.mark.parametrize("overlap", [1.0, 2.0, 6.0])
def test_shares_rise_with_work_on_the_device_and_fall_with_work_on_the_host(overlap: float) -> None:
    parts = invented_parts(50, 3)
    coefficients = np.array([*TRUE[:-1], overlap])
    busier, slower = parts.copy(), parts.copy()
    busier[:, 0] *= 10
    slower[:, -1] *= 10
    shares = read_shares(parts, coefficients)
    assert (read_shares(busier, coefficients) >= shares).all()
    assert (read_shares(slower, coefficients) <= shares).all()
    assert shares.min() > 0.0
    assert shares.max() <= 1.0


def test_too_few_rows_are_not_fitted() -> None:
    parts = invented_parts(10, 4)
    assert fit_shares(parts, read_shares(parts, TRUE)) is None


def test_without_a_graph_or_a_known_device_there_are_no_parts() -> None:
    job = at_batches(utilization_problem()).jobs[0]
    assert share_parts(dataclasses.replace(job, graph={})) is None
    assert share_parts(dataclasses.replace(job, device="of another world")) is None


def test_rows_without_facts_are_answered_typically_among_rows_with_them() -> None:
    learning_task = at_batches(utilization_problem(architectures=20))
    facts = {"saved_for_backward_bytes": 1e7, "nodes": 10.0, "input_bytes": 1e6}
    jobs = [dataclasses.replace(job, graph={**job.graph, **facts}) for job in learning_task.jobs]
    jobs[3] = dataclasses.replace(jobs[3], graph={})
    analytical_model = fit_analytical_model(dataclasses.replace(learning_task, jobs=tuple(jobs)))
    analytical_estimate = analytical_model.analytical_estimate(dataclasses.replace(learning_task, jobs=tuple(jobs)))
    assert analytical_estimate[3] == pytest.approx(analytical_model.typical)
    assert np.abs(np.delete(analytical_estimate - learning_task.measured, 3)).mean() < 0.1
    assert analytical_model.decode(
        analytical_model.encode(learning_task.measured, analytical_estimate), analytical_estimate
    ) == pytest.approx(learning_task.measured)
