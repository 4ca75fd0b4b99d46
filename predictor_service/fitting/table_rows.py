"""Jobs of public tables as a service would describe them: the vector of features made of a table's figures.

A job with its graph file has the whole vector already. One whose table holds what its graph computes and keeps gets the
same vector from these figures; settings that the table does not state are taken as usual ones.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Final

from cotenant.job_settings import OPTIMIZERS, PRECISIONS, JobSettings
from predictor_service.errors import CallerError
from predictor_service.features.devices import find_device_type
from predictor_service.features.graphs.described_graph import describe_figures, is_describable
from predictor_service.features.job_features import FEATURES, build_features
from predictor_service.features.job_settings import check_settings
from predictor_service.learning.learning_task import JobFacts

_VECTOR: Final = frozenset({"roofline_ms", "analytical_memory_bytes", *(feature.name for feature in FEATURES)})
_USUAL_OPTIMIZER: Final = "adam"


def has_vector(job: JobFacts) -> bool:
    """Whether the job came with its graph file: the whole vector is among its figures."""
    if not job.graph.keys() >= _VECTOR or not all(math.isfinite(job.graph[name]) for name in _VECTOR):
        return False
    return min(job.graph["roofline_ms"], job.graph["analytical_memory_bytes"], 1.0 - job.input_wait_ratio) > 0


def is_described(job: JobFacts) -> bool:
    """Whether the vector is known or can be made, on a device type with peaks."""
    if has_vector(job):
        return True
    if find_device_type(job.device) is None or not has_usual_settings(job):
        return False
    return is_describable(job.graph, job.micro_batch_size)


def has_usual_settings(job: JobFacts) -> bool:
    """Whether a job could be submitted with these settings; an optimizer that is not published may be any."""
    try:
        stated_settings(job)
    except CallerError:
        return False
    return job.precision in PRECISIONS


def served_figures(job: JobFacts) -> JobFacts:
    """The job, of which `is_described` holds, with its whole vector among its figures."""
    device = find_device_type(job.device)
    graph = None if has_vector(job) else describe_figures(job.graph, job.micro_batch_size)
    if graph is None or device is None:
        return job
    built = build_features(graph, stated_settings(job), device)
    named = zip((feature.name for feature in FEATURES), built.values.tolist(), strict=True)
    vector = {
        **dict(named),
        "roofline_ms": built.roofline_ms,
        "analytical_memory_bytes": built.analytical_memory_bytes,
    }
    return dataclasses.replace(job, graph={**job.graph, **vector})


def stated_settings(job: JobFacts) -> JobSettings:
    """The settings of a row as published; of an optimizer that no job can state, the usual one, of none the least.

    Raises:
        CallerError: `has_usual_settings` denies it.
    """
    mode = job.labels.get("mode", "train")
    known, updates = job.optimizer in OPTIMIZERS, mode != "infer" and job.optimizer != "none"
    return check_settings(
        JobSettings(
            global_batch_size=job.batch,
            mode=mode,
            precision=job.precision,
            optimizer="sgd" if not updates else job.optimizer if known else _USUAL_OPTIMIZER,
            input_wait_ratio=job.input_wait_ratio,
        )
    )
