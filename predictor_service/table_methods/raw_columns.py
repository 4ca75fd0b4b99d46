"""The columns of a learning task as a table: what the set publishes, what the schema names, what was measured alone.

Learned from training rows only, so that a test row cannot add a column.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from predictor_service.learning.learning_task import FloatArray, JobFacts, LearningTask

LABEL_VALUES_MAX: Final = 32
"""A label with more values is a name, not a category."""
COLUMNS_MAX: Final = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RawColumns:
    """Which columns a table has, and how it is filled.

    Attributes:
        numbers: Names of the numeric columns.
        labels: (name, value) of every 0 | 1 column.
        with_graph: Whether our own graph features are among them.
    """

    numbers: tuple[str, ...]
    labels: tuple[tuple[str, str], ...]
    with_graph: bool

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all columns in order."""
        return (*self.numbers, *(f"{name}={value}" for name, value in self.labels))

    def table(self, learning_task: LearningTask) -> FloatArray:
        """Returns shape (rows, columns); NaN where a row lacks a number."""
        table = np.full((len(learning_task), len(self.numbers) + len(self.labels)), np.nan)
        place = {name: index for index, name in enumerate(self.numbers)}
        for row, (numbers, labels) in enumerate(_rows(learning_task, self.with_graph)):
            for name, value in numbers.items():
                if name in place:
                    table[row, place[name]] = value
            offset = len(self.numbers)
            for index, (name, text) in enumerate(self.labels):
                table[row, offset + index] = float(labels.get(name) == text)
        return table


def learn_columns(learning_task: LearningTask, level: str, *, with_graph: bool) -> RawColumns:
    """Chooses the columns that vary over the training rows.

    Args:
        learning_task: Training rows.
        level: What will be unseen, one of `learning_task.LEVELS`. A label whose every value occurs in one group only
            names the group; it carries nothing about an unseen one and is left out.
        with_graph: Whether to use our own graph features in addition to what the set publishes.
    """
    values: dict[str, set[float]] = defaultdict(set)
    groups_of: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for numbers, _ in _rows(learning_task, with_graph):
        for name, value in numbers.items():
            if len(values[name]) < 2:
                values[name].add(value)
    hides_groups = level != "random_pair"  # a held-out pair leaves both of its jobs seen
    for job, others in zip(learning_task.jobs, learning_task.others, strict=True):
        for name, text, group in _labels_with_group(job, others, level if hides_groups else "job"):
            groups_of[name][text].add(group)
    numeric = sorted(name for name, seen in values.items() if len(seen) > 1)[:COLUMNS_MAX]
    chosen = [
        (name, text)
        for name, by_value in sorted(groups_of.items())
        if 2 <= len(by_value) <= LABEL_VALUES_MAX and not (hides_groups and _names_groups(by_value.values()))
        for text in sorted(by_value)
    ]
    return RawColumns(numbers=tuple(numeric), labels=tuple(chosen), with_graph=with_graph)


def _names_groups(groups: Iterable[set[str]]) -> bool:
    return all(len(members) <= 1 for members in groups)


def _labels_with_group(job: JobFacts, others: Sequence[JobFacts], level: str) -> Iterator[tuple[str, str, str]]:
    """Yields (name, value, group of the job that has it)."""
    attribute = "job_key" if level == "job" else level
    for prefix, each in (("victim.", job), ("other.", others[0])) if others else (("", job),):
        for name, text in _labels(each).items():
            yield f"{prefix}{name}", text, str(getattr(each, attribute))


def _rows(learning_task: LearningTask, with_graph: bool) -> Iterator[tuple[Mapping[str, float], Mapping[str, str]]]:
    for job, others in zip(learning_task.jobs, learning_task.others, strict=True):
        numbers, labels = _job(job, with_graph)
        if not others:
            yield numbers, labels
            continue
        co_located = [_job(other, with_graph) for other in others]
        yield (
            {
                **{f"victim.{name}": value for name, value in numbers.items()},
                **{f"other.{name}": value for name, value in _mean([each for each, _ in co_located]).items()},
                "others": float(len(others)),
            },
            {
                **{f"victim.{name}": text for name, text in labels.items()},
                **{f"other.{name}": text for name, text in co_located[0][1].items()},
            },
        )


def _mean(numbers: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = set(numbers[0]).intersection(*numbers[1:])
    return {name: sum(each[name] for each in numbers) / len(numbers) for name in names}


def _job(job: JobFacts, with_graph: bool) -> tuple[dict[str, float], dict[str, str]]:
    alone = {
        "solo.step_ms": job.solo.step_ms,
        "solo.utilization_ratio": job.solo.utilization_ratio,
        "solo.dram_activity_ratio": job.solo.dram_activity_ratio,
        "solo.memory_bytes": job.solo.memory_bytes,
    }
    numbers = {
        **{f"set.{name}": value for name, value in job.raw.items()},
        **({f"graph.{name}": value for name, value in _judged_figures(job)} if with_graph else {}),
        **{name: value for name, value in alone.items() if value is not None},
        "batch": float(job.batch),
        "sub_batch": float(job.micro_batch_size),
        "gpus": float(job.gpus),
        "input_wait_ratio": job.input_wait_ratio,
    }
    return numbers, _labels(job)


def _judged_figures(job: JobFacts) -> Iterator[tuple[str, float]]:
    """Without what the allocator reserves, which served models alone count: these methods were judged without it."""
    return (item for item in job.graph.items() if not item[0].startswith("reserved_bytes"))


def _labels(job: JobFacts) -> dict[str, str]:
    named = {"optimizer": job.optimizer, "precision": job.precision, "family": job.family, "device": job.device}
    return {**job.labels, **named}
