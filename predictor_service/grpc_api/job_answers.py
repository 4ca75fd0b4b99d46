"""PredictJob between message and use case: what was read, checked or answered before is not done again.

Schedulers ask about one job at many batches and again at the same ones. A request is known by its bytes but for id and
batch; the same batch again gets the same answer, prediction_id included, until the model or what was measured changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from cotenant.v1 import prediction_pb2, resources_pb2
from predictor_service.grpc_api.translate_answers import graph_summary, job_response
from predictor_service.grpc_api.translate_requests import job_question
from predictor_service.inference.kept_by_version import KeptByVersion
from predictor_service.inference.kept_estimators import NODES_MAX
from predictor_service.inference.predictor import Predictor
from predictor_service.inference.prepared_job import PreparedJob
from predictor_service.inference.records import JobAnswer
from predictor_service.outcome_journal import PREDICTIONS_MAX, OutcomeJournal, PredictionEntry
from predictor_service.system_clock import now_ms

QUESTIONS_MAX: Final = 1_024
BATCHES_MAX: Final = 16
"""Answers kept of one question; then all of them are forgotten."""
_REUSED_WITHIN: Final = PREDICTIONS_MAX // 4
"""Predictions after which an answer is made anew, so that the journal still knows every prediction_id that is given."""

Epoch = tuple[int, int]


@dataclass(slots=True, eq=False)
class _Known:
    """A question read before, what its answers share, and some of them by batch, each with its epoch."""

    job: PreparedJob
    graph: resources_pb2.GraphSummary
    answers: dict[int, tuple[Epoch, prediction_pb2.PredictJobResponse]] = field(default_factory=dict)


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
        self._known = KeptByVersion[bytes, _Known](questions_max, NODES_MAX)

    def answer(self, request: prediction_pb2.PredictJobRequest) -> prediction_pb2.PredictJobResponse:
        """Answers a request.

        Args:
            request: Its request_id is emptied.

        Raises:
            PredictorError: The question or its graph is refused, see `errors`.
        """
        batch = request.settings.batch_size
        if request.HasField("onnx_graph"):
            return self._predict(self._read(request), batch)
        known = self._recall(request, batch)
        epoch = (self._predictor.outcomes_learned, self._journal.remembered // _REUSED_WITHIN)
        kept = known.answers.get(batch)
        if kept is not None and kept[0] == epoch:
            return kept[1]
        made = self._predict(known, batch)
        if len(known.answers) >= BATCHES_MAX:
            known.answers.clear()
        known.answers[batch] = (epoch, made)
        return made

    def _recall(self, request: prediction_pb2.PredictJobRequest, batch: int) -> _Known:
        request.request_id = ""
        request.settings.batch_size = 0
        key = request.SerializeToString(deterministic=True)
        request.settings.batch_size = batch
        known = self._known.find(key, self._predictor.version)
        if known is None:
            known = self._read(request)
            self._known.keep(key, known, known.job.graph.nodes, known.job.version)
        return known

    def _read(self, request: prediction_pb2.PredictJobRequest) -> _Known:
        job = self._predictor.prepare_job(job_question(request))
        return _Known(job, graph_summary(job.graph))

    def _predict(self, known: _Known, batch: int) -> prediction_pb2.PredictJobResponse:
        answer = self._predictor.answer_job(known.job, batch)
        self._journal.remember(_entry(answer, known.job, batch))
        return job_response(answer, known.graph)


def _entry(answer: JobAnswer, job: PreparedJob, batch: int) -> PredictionEntry:
    """What was promised, for the drift monitor, and what the job is, so that its outcome can become a training row."""
    question, settings = job.question, job.question.settings
    utilization, memory, step = answer.utilization_ratio, answer.memory_bytes, answer.step_ms
    return PredictionEntry(
        prediction_id=answer.prediction_id,
        at_ms=now_ms(),
        kind="job",
        device=question.device,
        model_version=answer.model_version,
        content={
            "job_key": answer.job_key,
            "utilization_ratio": utilization.value,
            "memory_bytes": memory.value,
            "memory_upper_99_bytes": memory.upper_99,
            "step_ms": step.value,
            "intervals": [
                [utilization.lower, utilization.upper], [memory.lower, memory.upper], [step.lower, step.upper]
            ],
            "confidence": question.confidence,
            "graph_sha256": answer.graph.graph_sha256,
            "settings": [batch, settings.mode, settings.precision, settings.optimizer, settings.input_wait_ratio],
            "bindings": dict(settings.dimension_bindings),
        },
    )  # fmt: skip
