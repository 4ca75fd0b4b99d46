"""A world in which slowdowns are known: jobs take turns by weights that follow from their step times."""

from __future__ import annotations

import numpy as np

from predictor_service.learning.learning_task import FloatArray, JobFacts, LearningTask, SoloFigures
from predictor_service.selection.targets import SLOWDOWN


def turn_taking_job(number: int, step_ms: float, family: str) -> JobFacts:
    """A job that is distinguished from others by its step time and family only."""
    return JobFacts(
        job_key=f"job{number:03d}",
        architecture=f"architecture{number}",
        family=family,
        batch=2 ** (number % 4),
        micro_batch_size=2 ** (number % 4),
        device="invented",
        optimizer="sgd",
        precision="fp32",
        input_wait_ratio=0.0,
        gpus=1,
        labels={"campaign": "invented", "mode": "train"},
        solo=SoloFigures(step_ms=step_ms, utilization_ratio=1.0),
    )


def turn_taking_problem(jobs: int = 12, families: int = 4, seed: int = 0, noise: float = 0.01) -> LearningTask:
    """All ordered pairs of some jobs; the longer the other's step, the larger its turns."""
    random = np.random.default_rng(seed)
    steps = np.exp(random.uniform(0.0, 5.0, jobs))
    facts = [turn_taking_job(number, float(steps[number]), f"family{number % families}") for number in range(jobs)]
    pairs = [(victim, other) for victim in range(jobs) for other in range(jobs)]
    exact = np.array([turn_taking_slowdown(steps[victim], steps[other]) for victim, other in pairs])
    measured: FloatArray = (1.0 + exact) * np.exp(noise * random.standard_normal(len(pairs))) - 1.0
    return LearningTask(
        target=SLOWDOWN,
        device="invented",
        campaign="invented",
        measured=measured,
        row_ids=tuple(f"run{row}" for row in range(len(pairs))),
        jobs=tuple(facts[victim] for victim, _ in pairs),
        others=tuple((facts[other],) for _, other in pairs),
    )


def turn_taking_slowdown(victim_step_ms: float, other_step_ms: float) -> float:
    """Shared over alone, less 1, where a turn lasts as long as the square root of the square root of a step."""
    return float((other_step_ms / victim_step_ms) ** 0.25)
