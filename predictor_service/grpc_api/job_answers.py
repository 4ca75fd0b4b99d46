"""PredictJob between message and use case: what was read and checked before is not done again.

Schedulers ask about one job at many batches, and a question that differs from an earlier one in its id and its batch
only costs 20 microseconds without gRPC. Three things here deal in bytes to stay there; measured in microseconds each:

- A question is known by the bytes of its message without id and batch: 0.9; reading it to compare its parts costs 6.6.
- What all answers about a graph share is written once and read as the start of each: 3.5, instead of 6.1 to write it.
- What the journal keeps of all answers to a question is the end of a JSON object, written once: 0.2 instead of 3.5.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from cotenant.v1 import prediction_pb2
from predictor_service.grpc_api.prediction_owners import asked_by_text
from predictor_service.grpc_api.translate_answers import job_response, response_about
from predictor_service.grpc_api.translate_requests import job_question
from predictor_service.inference.estimator_cache import NODES_MAX
from predictor_service.inference.predictor import Predictor
from predictor_service.inference.prepared_job import PreparedJob
from predictor_service.inference.records import JobAnswer
from predictor_service.inference.version_cache import VersionCache
from predictor_service.outcome_journal import OutcomeJournal, PredictionRow, write_figures
from predictor_service.system_clock import now_ms

QUESTIONS_MAX: Final = 1_024
QUESTION_BYTES_MAX: Final = 4 << 10
"""Longer ones are answered and not known again."""


@dataclass(slots=True, eq=False)
class _Known:
    """A question read before, and what its answers share.

    Attributes:
        graph: What all its answers state of the graph; a message that is read is made faster than one that is written.
        text: What the journal keeps of all its answers, the end of a JSON object.
    """

    job: PreparedJob
    graph: bytes
    text: str


class JobAnswers:
    """Answers questions about one job; safe for many threads.

    Args:
        predictor: The use case.
        journal: Remembers every prediction.
        questions_max: Questions that are known again; 0 = none.
    """

    def __init__(self, predictor: Predictor, journal: OutcomeJournal, questions_max: int = QUESTIONS_MAX) -> None:
        self._predictor = predictor
        self._journal = journal
        self._known = VersionCache[bytes, _Known](questions_max, NODES_MAX)
        self._abouts = VersionCache[tuple[object, ...], bytes](questions_max, NODES_MAX)

    def answer(self, request: prediction_pb2.PredictJobRequest) -> prediction_pb2.PredictJobResponse:
        """Answers a request.

        Raises:
            PredictorError: The question or its graph is refused, see `errors`.
        """
        batch = request.settings.global_batch_size
        if request.HasField("onnx_graph"):
            return self._predict(self._read(request), batch)
        return self._predict(self._recall(request), batch)

    def _recall(self, request: prediction_pb2.PredictJobRequest) -> _Known:
        key = _key(request)
        known = self._known.find(key, self._predictor.version)
        if known is None:
            known = self._read(request)
            if len(key) <= QUESTION_BYTES_MAX:
                self._known.keep(key, known, known.job.graph.nodes, known.job.version)
        return known

    def _read(self, request: prediction_pb2.PredictJobRequest) -> _Known:
        job = self._predictor.prepare_job(job_question(request))
        return _Known(job, self._about(job), _question_text(job))

    def _about(self, job: PreparedJob) -> bytes:
        device, bindings = job.device, job.question.settings.dimension_bindings
        key = (job.graph.graph_sha256, tuple(sorted(bindings.items())), device.device.name, device.is_generic)
        about = self._abouts.find(key, job.version)
        if about is None:
            about = response_about(job.graph, device.device.name, is_generic=device.is_generic)
            self._abouts.keep(key, about, 0, job.version)
        return about

    def _predict(self, known: _Known, batch: int) -> prediction_pb2.PredictJobResponse:
        answer = self._predictor.answer_job(known.job, batch)
        self._journal.remember_row(_row(answer, known, batch))
        return job_response(answer, known.graph)


def _key(request: prediction_pb2.PredictJobRequest) -> bytes:
    """Equal for questions about one job that differ in their id and their batch only."""
    question = prediction_pb2.PredictJobRequest()
    question.CopyFrom(request)
    question.request_id = ""
    question.settings.global_batch_size = 0
    return question.SerializeToString(deterministic=True)


def _question_text(job: PreparedJob) -> str:
    """What the journal keeps of a question: enough to make a training row of an answer's outcome."""
    settings, sha256 = job.question.settings, job.graph.graph_sha256
    bindings = json.dumps(dict(settings.dimension_bindings)) if settings.dimension_bindings else "{}"
    # The batch, which differs, goes before these. Words that were checked need no escapes: json costs 20 us more.
    return (
        f'"{settings.mode}", "{settings.precision}", "{settings.optimizer}", {settings.input_wait_ratio!r}],'
        f'"confidence": {job.question.confidence!r}, "graph_sha256": "{sha256}", "bindings": {bindings}}}'
    )


def _row(answer: JobAnswer, known: _Known, batch: int) -> PredictionRow:
    """What was promised, for the drift monitor, and what the job is."""
    memory = answer.memory_bytes
    figures = write_figures(
        *answer.utilization_ratio[:3], *memory[:3], *answer.step_ms[:3], memory.upper_99 or memory.upper
    )
    return PredictionRow(
        prediction_id=answer.prediction_id,
        at_ms=now_ms(),
        kind="job",
        device=answer.device,
        model_version=answer.model_version,
        content=f'{{{asked_by_text()}"job_key":"{answer.job_key}","figures":"{figures}","settings":[{batch},{known.text}',
    )
