"""Speed functions where the paper says nothing: all-reduce, few samples, numbers that cannot be."""

import numpy as np
import pytest

from predictor_service.convergence.training_speed import Resources, SpeedSample, Synchrony, fit_speed
from predictor_service.errors import InvalidRequestError


def step_s(workers: int, batch: int) -> float:
    """Compute that is affine in the batch of one worker, and a ring."""
    exchange = 0.0 if workers == 1 else 0.02 + 0.06 * 2 * (workers - 1) / workers + 0.001 * workers
    return 0.002 * batch / workers + 0.03 + exchange


def sample(workers: int, batch: int) -> SpeedSample:
    return SpeedSample(
        resources=Resources(workers=workers, servers=1, batch=batch), steps_per_s=1 / step_s(workers, batch)
    )


def test_an_all_reduce_job_is_predicted_on_more_workers_than_were_tried() -> None:
    tried = [sample(workers, batch) for workers in (1, 2, 4, 8) for batch in (64, 256)]
    model = fit_speed(tried, Synchrony.ALL_REDUCE)
    for workers in (3, 16, 32):
        asked = Resources(workers=workers, servers=1, batch=512)
        assert model.steps_per_s(asked) == pytest.approx(1 / step_s(workers, 512), rel=0.1)


def test_one_worker_never_seems_infinitely_fast_though_only_many_were_tried() -> None:
    tried = [sample(workers, 8 * workers) for workers in (8, 16, 32)]
    model = fit_speed(tried, Synchrony.ALL_REDUCE)
    alone = model.steps_per_s(Resources(workers=1, servers=1, batch=8))
    assert alone <= 20 * max(item.steps_per_s for item in tried)


@pytest.mark.parametrize("synchrony", list(Synchrony))
def test_one_sample_gives_its_own_speed_back(synchrony: Synchrony) -> None:
    model = fit_speed([sample(2, 64)], synchrony)
    assert model.steps_per_s(sample(2, 64).resources) == pytest.approx(sample(2, 64).steps_per_s, rel=0.02)
    assert model.left_out_error_ratio is None


@pytest.mark.parametrize("synchrony", list(Synchrony))
def test_coefficients_are_never_negative_whatever_was_measured(synchrony: Synchrony) -> None:
    random = np.random.default_rng(5)
    for _ in range(20):
        measured = [
            SpeedSample(
                resources=Resources(workers=int(w), servers=int(p), batch=int(b)),
                steps_per_s=float(random.exponential()),
            )
            for w, p, b in random.integers(1, 30, (6, 3))
        ]
        assert min(fit_speed(measured, synchrony).coefficients) >= 0


def test_numbers_that_cannot_be_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="steps_per_s"):
        fit_speed([SpeedSample(resources=sample(1, 1).resources, steps_per_s=float("nan"))], Synchrony.ALL_REDUCE)
    with pytest.raises(InvalidRequestError, match="workers"):
        fit_speed(
            [SpeedSample(resources=Resources(workers=0, servers=1, batch=1), steps_per_s=1.0)], Synchrony.ALL_REDUCE
        )
    with pytest.raises(InvalidRequestError, match="samples"):
        fit_speed([], Synchrony.SYNCHRONOUS)
