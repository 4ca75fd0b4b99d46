"""What a Pollux job knows of itself: step times fitted to what it has seen, gradient noise, and the goodput from both.

Source:
    The Pollux artifact (petuum/adaptdl, branch osdi21-artifact), simulator/goodput.py: goodput = throughput x
    statistical efficiency, step times with an overlap exponent gamma, priors for what was not observed yet. It fits by
    gradients; here every gamma of a short list has its least squares in closed form, and the best gamma wins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cotenant_simulator.pollux_rules.applications import Application
from cotenant_simulator.pollux_rules.batch_plan import BatchPlan

Floats = npt.NDArray[np.float64]

_OVERLAPS = (1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
_NOTHING_S = 1e-8
_BATCHES_TRIED = 50
_OVERLAP_PENALTY = 1e-3
_FORGIVEN = 1e-8


class Observation(NamedTuple):
    """One measured configuration; times in seconds of one pass."""

    nodes: int
    gpus: int
    local_samples: int
    step_s: float
    sync_s: float


@dataclass(frozen=True, slots=True)
class StepModel:
    """Step time in seconds: computing is linear in the samples, exchanging in the GPUs beyond two.

    Attributes:
        fixed_s: Computing, per pass.
        per_sample_s: Computing, per sample and GPU.
        near: Exchanging inside a node: (seconds, seconds per GPU beyond two).
        far: Exchanging between nodes.
        overlap: 1 = one after the other; large = the longer of both.
    """

    fixed_s: float
    per_sample_s: float
    near: tuple[float, float]
    far: tuple[float, float]
    overlap: float

    def pass_s(self, local_samples: Floats) -> Floats:
        """Return the time of a pass that exchanges nothing."""
        return self.fixed_s + self.per_sample_s * local_samples

    def exchange_s(self, gpus: Floats, is_far: npt.NDArray[np.bool_]) -> Floats:
        """Return the time of exchanging gradients, before overlap."""
        more = np.maximum(gpus - 2, 0.0)
        near = np.where(gpus > 1, self.near[0] + self.near[1] * more, _NOTHING_S)
        return np.where(is_far, self.far[0] + self.far[1] * more, near)

    def step_s(self, local_samples: Floats, accumulations: Floats, exchange_s: Floats) -> Floats:
        """Return the time of one step."""
        pass_s = self.pass_s(local_samples)
        last_s = (pass_s**self.overlap + exchange_s**self.overlap) ** (1 / self.overlap)
        return accumulations * pass_s + last_s


def fit_step_model(observations: list[Observation]) -> StepModel:
    """Fit the model to what was seen; what was never seen counts as free, and nodes are never nearer than GPUs.

    Args:
        observations: At least one.
    """
    table = np.array(observations, dtype=float)
    nodes, gpus, samples, step_s, sync_s = table.T
    pass_s = np.maximum(step_s - sync_s, _NOTHING_S)
    if (samples == samples[0]).all():
        fixed_s = float(pass_s.mean()) / 2
        per_sample_s = fixed_s / float(samples[0])
    else:
        fixed_s, per_sample_s = _line(samples, pass_s)
    fitted_s = fixed_s + per_sample_s * samples
    far = nodes > 1
    near = ~far & (gpus > 1)
    best: tuple[float, StepModel] | None = None
    for overlap in _OVERLAPS if (gpus > 1).any() else (1.0,):
        exchange_s = np.maximum(step_s**overlap - pass_s**overlap, 0.0) ** (1 / overlap)
        inside = _exchange(gpus[near], exchange_s[near])
        between = _exchange(gpus[far], exchange_s[far])
        if not far.any():
            between = (max(between[0], inside[0] * 1.1), max(between[1], inside[1] * 1.1))
        model = StepModel(fixed_s, per_sample_s, inside, between, overlap)
        predicted_s = (fitted_s**overlap + model.exchange_s(gpus, far) ** overlap) ** (1 / overlap)
        error = float(np.sqrt(np.mean(np.log(predicted_s / step_s) ** 2))) + _OVERLAP_PENALTY * (overlap - 1) ** 2
        if best is None or error < best[0]:
            best = error, model
    assert best is not None  # the list of overlaps is not empty
    return best[1]


def _exchange(gpus: Floats, seconds: Floats) -> tuple[float, float]:
    if len(gpus) == 0:
        return _NOTHING_S, _NOTHING_S
    if (gpus <= 2).all():
        return max(float(seconds.mean()), _NOTHING_S), _NOTHING_S
    if (gpus == gpus[0]).all():
        # One count does not show growth: all of it counts as constant.
        return max(float(seconds.mean()), _NOTHING_S), _NOTHING_S
    return _line(np.maximum(gpus - 2, 0.0), np.maximum(seconds, _NOTHING_S))


def _line(places: Floats, values: Floats) -> tuple[float, float]:
    """Return (constant, slope), neither negative, with the least squared relative error."""
    ones, slopes = 1 / values, places / values
    a, b, c = float(ones @ ones), float(ones @ slopes), float(slopes @ slopes)
    d, e = float(ones.sum()), float(slopes.sum())
    determinant = a * c - b * b
    if determinant > 1e-12 * a * c:
        constant, slope = (c * d - b * e) / determinant, (a * e - b * d) / determinant
        if constant >= 0 and slope >= 0:
            return max(constant, _NOTHING_S), max(slope, _NOTHING_S)
        if slope < 0:
            return max(d / a, _NOTHING_S), _NOTHING_S
    return _NOTHING_S, max(e / c if c > 0 else 0.0, _NOTHING_S)


class Goodput:
    """The best goodput of a job at any GPU count, with the batch that reaches it.

    Args:
        application: Application that sets the bounds.
        model: Step times.
        gradient: (|g|^2, tr(Var[g])) as last seen.
    """

    def __init__(self, application: Application, model: StepModel, gradient: tuple[float, float]) -> None:
        self._application = application
        self.model = model
        self._gradient = gradient

    def best(self, gpus: Floats, is_far: npt.NDArray[np.bool_]) -> tuple[Floats, Floats, Floats]:
        """Return (progress per second, samples per GPU and pass, accumulations) for every count.

        Args:
            gpus: Counts from 1.
            is_far: Whether each spans nodes.
        """
        app = self._application
        least = np.minimum(np.maximum(app.initial_batch, app.local_samples_min * gpus), app.batch_max)
        batches = least * (app.batch_max / least) ** np.linspace(0.0, 1.0, _BATCHES_TRIED)[:, None]
        local = batches / gpus
        accumulations = np.ceil(local / app.local_samples_max - _FORGIVEN) - 1
        alone = (gpus == 1) & (local > app.initial_batch + _FORGIVEN)
        accumulations = np.where(alone, np.maximum(accumulations, 1), accumulations)
        samples = np.ceil(local / (accumulations + 1) - _FORGIVEN)
        scale = gpus * samples * (accumulations + 1) / app.initial_batch
        square, variance = self._gradient
        gain = (variance + square) / (variance / scale + square)
        exchange_s = self.model.exchange_s(gpus, is_far)
        rate = gain / self.model.step_s(samples, accumulations, exchange_s)
        rate = np.where((samples >= app.local_samples_min) & (samples <= app.local_samples_max), rate, 0.0)
        rows = rate.argmax(axis=0)
        columns = np.arange(len(gpus))
        return rate[rows, columns], samples[rows, columns], accumulations[rows, columns]

    def plan(self, gpus: int, is_far: bool) -> BatchPlan:
        """Return the best split at one count."""
        _, samples, accumulations = self.best(np.array([float(gpus)]), np.array([is_far]))
        return BatchPlan(gpus, int(samples[0]), int(accumulations[0]))
