"""One learning task, and what a method must be able to do with it.

A learning task is one target of one device type: measured values, and what is known of the jobs behind each of them
before they ran. Importers and profilers write the rows, `learning_task_reader` turns them into learning tasks, methods
learn from them, `evaluation` judges. Nothing that identifies a row (its id, the hash in a job's key) is a feature.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from predictor_service.selection.targets import Target

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
IndexArray = npt.NDArray[np.intp]

LEVELS: Final = ("random_pair", "job", "architecture", "family", "device")
"""What may be held out together, weakest first."""
ALL_DEVICES: Final = "all"
"""Stands for the device type of a learning task that pools several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SoloFigures:
    """What was measured of a job alone in the same campaign; None where unknown.

    Attributes:
        step_ms: One optimizer step, above 0.
        utilization_ratio: 0 to 1.
        dram_activity_ratio: 0 to 1.
        memory_bytes: Held on the device.
    """

    step_ms: float | None = None
    utilization_ratio: float | None = None
    dram_activity_ratio: float | None = None
    memory_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobFacts:
    """What is known of one job before a run.

    Attributes:
        job_key: Equal for equal graph and settings; names the job, never a feature.
        architecture: E.g. resnet50.
        family: E.g. resnet.
        batch: Samples per optimizer step.
        micro_batch_size: Samples per device and micro-step.
        device: Device type.
        optimizer: E.g. adam.
        precision: E.g. fp32.
        input_wait_ratio: Share of a step spent waiting for input, 0 to 1.
        gpus: Devices used.
        raw: Numbers as the data set publishes them.
        graph: Numbers that we computed from the graph or from a description of it.
        labels: Text-valued features, among them mode, share_mode and campaign.
        solo: Measured alone; empty in learning tasks whose target is such a measurement.
    """

    job_key: str
    architecture: str
    family: str
    batch: int
    micro_batch_size: int
    device: str
    optimizer: str
    precision: str
    input_wait_ratio: float
    gpus: int
    raw: Mapping[str, float] = field(default_factory=dict)
    graph: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    solo: SoloFigures = SoloFigures()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LearningTask:
    """Measured values of one target with the jobs behind them.

    Attributes:
        target: What was measured.
        device: Device type, or `ALL_DEVICES`.
        campaign: Campaign of the rows; several are joined by +.
        measured: Shape (n,), finite.
        row_ids: Run of each row, for messages only.
        jobs: The job of each row; for slowdowns the victim.
        others: The jobs co-located with the victim; empty tuples for other targets.
    """

    target: Target
    device: str
    campaign: str
    measured: FloatArray
    row_ids: tuple[str, ...]
    jobs: Sequence[JobFacts]
    others: Sequence[tuple[JobFacts, ...]]

    def __len__(self) -> int:
        return len(self.jobs)

    def subset(self, indices: Sequence[int] | IndexArray) -> LearningTask:
        """Returns the learning task of some rows, in the order of the indices."""
        places = [int(index) for index in indices]
        return dataclasses.replace(
            self,
            measured=self.measured[places],
            row_ids=tuple(self.row_ids[place] for place in places),
            jobs=tuple(self.jobs[place] for place in places),
            others=tuple(self.others[place] for place in places),
        )

    def in_content_order(self) -> LearningTask:
        """Returns the same rows in an order that follows from their content, so that equal seeds draw alike.

        Names of jobs and runs decide between rows that are equal in all else.
        """
        keys = [_content(*row) for row in zip(self.measured.tolist(), self.jobs, self.others, strict=True)]
        order = sorted(range(len(self)), key=lambda row: (keys[row], self.jobs[row].job_key, self.row_ids[row]))
        return self.subset(order)

    def groups(self, level: str) -> Sequence[frozenset[str]]:
        """Groups of each row at one of `LEVELS`.

        A row belongs to the groups of all of its jobs. At `random_pair` a group is the unordered set of its jobs, so
        that neither a repetition nor the other direction of a pair is on both sides of a split; for one job alone
        this is its `job` group.

        Raises:
            ValueError: Another level.
        """
        if level not in LEVELS:
            raise ValueError(f"level {level!r} is none of {', '.join(LEVELS)}")
        rows = zip(self.jobs, self.others, strict=True)
        return [_groups_of((job, *others), level) for job, others in rows]


def _content(measured: float, job: JobFacts, others: Sequence[JobFacts]) -> tuple[object, ...]:
    named = [(one.device, one.architecture, one.batch, one.gpus, sorted(one.labels.items())) for one in (job, *others)]
    return measured, named, sorted(job.raw.items())


def _groups_of(jobs: Sequence[JobFacts], level: str) -> frozenset[str]:
    if level == "random_pair":
        return frozenset({"|".join(sorted(job.job_key for job in jobs))})
    attribute = "job_key" if level == "job" else level
    return frozenset(str(getattr(job, attribute)) for job in jobs)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Forecast:
    """Predictions with bounds, in the target's unit; all arrays have shape (n,).

    Attributes:
        value: Predictions.
        lower_90: Lower end of the central 90 % interval.
        upper_90: Upper end of it.
        upper_99: Bound that 99 % of measured values stay below.
        in_domain: Whether the row resembles the training rows.
    """

    value: FloatArray
    lower_90: FloatArray
    upper_90: FloatArray
    upper_99: FloatArray
    in_domain: BoolArray


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateResult:
    """A line of a method's scored table.

    Attributes:
        name: Of the candidate.
        inner_mae: Mean absolute error over folds inside the training rows, in the target's unit.
        rows_left_out: Training rows that it could not learn from because they are too many for it.
    """

    name: str
    inner_mae: float
    rows_left_out: int = 0


class FittedMethod(Protocol):
    """A method that has learned."""

    @property
    def selected(self) -> str:
        """Name of the candidate that it chose."""
        ...

    @property
    def candidates(self) -> Sequence[CandidateResult]:
        """All candidates, best first."""
        ...

    def predict(self, learning_task: LearningTask) -> Forecast:
        """Predicts every row; it must not look at `measured`."""
        ...


class Method(Protocol):
    """A way to learn a target.

    It selects and calibrates by grouped folds inside the rows that it is given, so the error on rows that it was not
    given is never the error that it selected by.
    """

    @property
    def name(self) -> str:
        """Name of the method."""
        ...

    def fit(self, learning_task: LearningTask, seed: int) -> FittedMethod:
        """Learns from all rows of a learning task."""
        ...
