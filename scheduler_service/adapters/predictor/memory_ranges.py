"""Asks how much memory a job will take before it is accepted: quickly, never twice at once, and never many at once."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from scheduler_service.adapters.predictor.predictor_client import PredictorClient
from scheduler_service.adapters.system_clock import read_monotonic_ns
from scheduler_service.core.commands import RequestPrediction
from scheduler_service.core.records import MemoryRange
from scheduler_service.errors import PredictorError

# Questions under way; a submission beyond it is accepted unseen, so that a flood of new graphs does not slow itself.
QUESTIONS_MAX = 32
ANSWERS_KEPT_MAX = 1_000
# Outcomes of running jobs change answers.
ANSWER_AGE_MS_MAX = 30_000
_OVERLOADED = "too many questions about memory wait already"
_TOO_LATE = "the predictor did not answer in time"


@dataclass(slots=True, kw_only=True)
class _Answer:
    task: asyncio.Task[MemoryRange]
    asked_at_ms: int


class MemoryRanges:
    """Questions about memory on their way, and their newest answers.

    Args:
        predictor: Client of the predictor that is asked.
        deadline_s: Of one question; a caller may give up sooner, the answer is kept for the next one.
    """

    def __init__(self, predictor: PredictorClient, *, deadline_s: float) -> None:
        self._predictor = predictor
        self._deadline_s = deadline_s
        self._answers: dict[Hashable, _Answer] = {}

    async def ask(
        self, questions: Mapping[str, RequestPrediction], *, patience_s: float
    ) -> Mapping[str, MemoryRange | PredictorError]:
        """Return the memory of one job on each device type, or why it is not known.

        Args:
            questions: By device type; the memory of the smallest micro-batch named in one, else of the batch, is meant.
            patience_s: How long to wait for all of them together.
        """
        tasks = {device: self._task(question) for device, question in questions.items()}
        waiting = [task for task in tasks.values() if task is not None]
        if waiting:
            await asyncio.wait(waiting, timeout=patience_s)
        return {device: _outcome(task) for device, task in tasks.items()}

    def _task(self, question: RequestPrediction) -> asyncio.Task[MemoryRange] | None:
        now_ms = read_monotonic_ns() // 1_000_000
        name = (question.graph_sha256, repr(question.settings), question.device, question.device_memory_bytes,
                question.micro_batch_sizes, question.calibration, question.facts)  # fmt: skip
        known = self._answers.get(name)
        if known is not None and now_ms - known.asked_at_ms <= ANSWER_AGE_MS_MAX and not _has_failed(known.task):
            return known.task
        if sum(not answer.task.done() for answer in self._answers.values()) >= QUESTIONS_MAX:
            return None
        task = asyncio.get_running_loop().create_task(
            self._predictor.predict_memory(question, deadline_s=self._deadline_s)
        )
        # A question without a waiting caller may fail in silence.
        task.add_done_callback(_has_failed)
        self._answers.pop(name, None)
        self._answers[name] = _Answer(task=task, asked_at_ms=now_ms)
        while len(self._answers) > ANSWERS_KEPT_MAX:
            self._answers.pop(next(iter(self._answers))).task.cancel()
        return task

    async def close(self) -> None:
        """End the questions that are under way."""
        tasks = [answer.task for answer in self._answers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _has_failed(task: asyncio.Task[MemoryRange]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


def _outcome(task: asyncio.Task[MemoryRange] | None) -> MemoryRange | PredictorError:
    if task is None:
        return PredictorError(_OVERLOADED, code="PREDICTOR_BUSY")
    if not task.done() or task.cancelled():
        return PredictorError(_TOO_LATE, code="PREDICTOR_TIMEOUT")
    error = task.exception()
    if isinstance(error, PredictorError):
        return error
    if error is not None:
        raise error
    return task.result()
