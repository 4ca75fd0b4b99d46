"""A trace: jobs with their arrival times, and their ground truth. Every reader ends here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cotenant.job_settings import JobSettings
from cotenant_simulator.truth.kinds import GroundTruth
from scheduler_service.core.records import JobRequest, Node

GIB = 2**30
GPU_MEMORY_BYTES = 16 * GIB
"""Memory of a GPU where neither trace nor cluster states it."""
JOB_MEMORY_BYTES = 6 * GIB
"""Memory of a job where its trace states none: two fit on a GPU of unknown size, three do not."""
REFERENCE_DEVICE = "gpu"
"""Device type of clusters that name none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceJob:
    """One job of a trace.

    Attributes:
        submitted_at_ms: From the start of the trace.
        request: What its owner asks for; `key` names its ground truth.
        graph_sha256: The job's own ONNX graph, where the trace has one.
        settings: How its steps are configured, where the trace contains it.
    """

    submitted_at_ms: int
    request: JobRequest
    graph_sha256: str = ""
    settings: JobSettings | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A workload with its ground truth.

    Attributes:
        format: Name of the format it was read from.
        jobs: By submission; equal instants in the order of the file.
        truth: Ground truth of the jobs.
        device: Device type that clusters without one get.
        nodes: The machines that the trace itself names; empty = it names none.
        skipped: Rows that are no jobs on GPUs, by reason.
    """

    format: str
    jobs: Sequence[TraceJob]
    truth: GroundTruth
    device: str = REFERENCE_DEVICE
    nodes: Sequence[Node] = ()
    skipped: dict[str, int] = field(default_factory=dict)
