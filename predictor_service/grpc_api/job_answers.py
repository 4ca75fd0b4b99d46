"""PredictJob between message and use case: what was read and checked before is not done again.

Schedulers ask about one job at many batches: a question that differs from an earlier one in its id and its batch only
is recognised, and its answer is read from curves and written as bytes (`answer_bytes`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cotenant.system_clock import now_ms
from cotenant.v1 import prediction_pb2
from predictor_service.grpc_api.answer_bytes import (
    question_key,
    write_about,
    write_answer,
    write_content,
    write_question,
)
from predictor_service.grpc_api.prediction_owners import asked_by_text
from predictor_service.grpc_api.translate_requests import job_question
from predictor_service.inference.estimator_cache import NODES_MAX
from predictor_service.inference.predictor import Predictor
from predictor_service.inference.prepared_job import PreparedJob
from predictor_service.inference.version_cache import VersionCache
from predictor_service.outcome_journal import OutcomeJournal, PredictionRow

QUESTIONS_MAX: Final = 1_024
QUESTION_BYTES_MAX: Final = 4 << 10
"""Longer ones are answered and not known again."""


@dataclass(slots=True, eq=False)
class _Known:
    """A question read before, and what its answers share.

    Attributes:
        graph: What all its answers state of the graph and the device, written.
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

    def answer(self, request: prediction_pb2.PredictJobRequest) -> bytes:
        """Answers a request by the bytes of a `PredictJobResponse`.

        Raises:
            PredictorError: The question or its graph is refused, see `errors`.
        """
        batch = request.settings.global_batch_size
        if request.HasField("onnx_graph"):
            return self._predict(self._read(request), batch)
        return self._predict(self._recall(request), batch)

    def _recall(self, request: prediction_pb2.PredictJobRequest) -> _Known:
        key = question_key(request)
        known = self._known.find(key, self._predictor.version)
        if known is None:
            known = self._read(request)
            if len(key) <= QUESTION_BYTES_MAX:
                self._known.keep(key, known, known.job.graph.nodes, known.job.version)
        return known

    def _read(self, request: prediction_pb2.PredictJobRequest) -> _Known:
        job = self._predictor.prepare_job(job_question(request))
        return _Known(job, self._about(job), write_question(job))

    def _about(self, job: PreparedJob) -> bytes:
        device, bindings = job.device, job.question.settings.dimension_bindings
        key = (job.graph.graph_sha256, tuple(sorted(bindings.items())), device.device.name, device.is_generic)
        about = self._abouts.find(key, job.version)
        if about is None:
            about = write_about(job.graph, device.device.name, is_generic=device.is_generic)
            self._abouts.keep(key, about, 0, job.version)
        return about

    def _predict(self, known: _Known, batch: int) -> bytes:
        answer = self._predictor.answer_job(known.job, batch)
        row = PredictionRow(
            answer.prediction_id,
            now_ms(),
            "job",
            answer.device,
            answer.model_version,
            write_content(answer, batch, known.text, asked_by=asked_by_text()),
        )
        self._journal.remember_row(row)
        return write_answer(answer, known.graph)
