"""Learning tasks of jobs alone whose true values are known, so that tests can ask for more than a small error."""

from __future__ import annotations

import dataclasses

import numpy as np

from predictor_service.features.devices import DEVICE_TYPES
from predictor_service.learning.learning_task import JobFacts, LearningTask
from predictor_service.selection.targets import MEMORY, STEP, UTILIZATION, Target

GIBIBYTE = 1 << 30
A100 = "NVIDIA A100-SXM4-40GB"


def memory_problem(architectures: int = 24, seed: int = 0, size: float = 1.0) -> LearningTask:
    """Memory of jobs at three batches each.

    What an architecture holds beyond its parts is its own: rows of one architecture err alike.

    Args:
        architectures: Four to a family.
        seed: Of everything drawn.
        size: Factor on what a sample keeps.
    """
    random = np.random.default_rng(seed)
    jobs, measured = [], []
    for number in range(architectures):
        parameters = float(random.uniform(1e6, 1e8))
        saved = float(random.uniform(1e7, 3e8)) * size
        own = float(np.exp(random.normal(0.0, 0.08)))
        for batch in (8, 32, 128):
            facts = {
                "parameters": parameters,
                "saved_for_backward_bytes_per_sample": saved,
                "widest_activation_bytes_per_sample": saved / 20,
                "input_bytes_per_sample": 6e5,
                "noise": float(random.uniform()),
            }
            jobs.append(_job(f"net{number}", f"family{number // 4}", batch, facts))
            measured.append(own * (1.5 * GIBIBYTE + 16 * parameters + 1.3 * saved * batch))
    return _learning_task(MEMORY, jobs, np.array(measured))


def utilization_problem(architectures: int = 12, seed: int = 0) -> LearningTask:
    """Utilization that saturates with the work of a step."""
    random = np.random.default_rng(seed)
    jobs, measured = [], []
    for number in range(architectures):
        macs = float(10 ** random.uniform(6, 10))
        for batch in (4, 16, 64, 256):
            work = macs * batch / 1e10
            facts = {"parameters": 1e6, "forward_macs_per_sample": macs}
            jobs.append(_job(f"net{number}", f"family{number % 3}", batch, facts))
            measured.append(0.95 * work / (1.0 + work) + random.normal(0, 0.01))
    return _learning_task(UTILIZATION, jobs, np.clip(measured, 0.0, 1.0))


def step_problem(device: str, architectures: int = 16, seed: int = 0) -> LearningTask:
    """Step times of which each device reaches the same share of its own peaks."""
    random = np.random.default_rng(seed)
    peaks = DEVICE_TYPES[device]
    jobs, measured = [], []
    for number in range(architectures):
        macs, kept = float(10 ** random.uniform(8, 10)), float(10 ** random.uniform(6, 8))
        for batch in (8, 64):
            facts = {"parameters": 1e7, "forward_macs_per_sample": macs, "allocated_bytes_per_sample": kept}
            jobs.append(_job(f"net{number}", f"family{number % 3}", batch, facts, device))
            arithmetic_ms = 6e3 * macs * batch / peaks.peak("fp32")
            traffic_ms = 2e3 * kept * batch / peaks.memory_bytes_per_s
            measured.append(2.0 + 2.0 * arithmetic_ms + 1.5 * traffic_ms)
    return _learning_task(STEP, jobs, np.array(measured))


def joined(first: LearningTask, second: LearningTask) -> LearningTask:
    """The rows of both."""
    return dataclasses.replace(
        first,
        measured=np.concatenate([first.measured, second.measured]),
        row_ids=(*first.row_ids, *second.row_ids),
        jobs=(*first.jobs, *second.jobs),
        others=(*first.others, *second.others),
    )


def without_graphs(learning_task: LearningTask, every: int) -> LearningTask:
    """The same rows, every n-th of a job whose graph is not known."""
    jobs = [
        dataclasses.replace(job, graph={}) if place % every == 0 else job
        for place, job in enumerate(learning_task.jobs)
    ]
    return dataclasses.replace(learning_task, jobs=tuple(jobs))


def _job(architecture: str, family: str, batch: int, facts: dict[str, float], device: str = A100) -> JobFacts:
    return JobFacts(
        job_key=f"{architecture}-{batch}", architecture=architecture, family=family, batch=batch,
        micro_batch_size=batch, device=device, optimizer="adam", precision="fp32", input_wait_ratio=0.0, gpus=1,
        graph=facts,
    )  # fmt: skip


def _learning_task(
    target: Target, jobs: list[JobFacts], measured: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> LearningTask:
    return LearningTask(
        target=target, device=jobs[0].device, campaign="made", measured=measured,
        row_ids=tuple(str(row) for row in range(len(jobs))), jobs=tuple(jobs), others=((),) * len(jobs),
    )  # fmt: skip
