"""Where the processor time of one PredictJob goes, in one thread and without gRPC, in microseconds as JSON.

The graph and all settings but the batch were asked before, as in `predict_job_warm` of `benchmarks.serving`; what that
costs above `whole` is gRPC and threads. `whole, every setting new` is `predict_job_warm_new_settings`, and the parts
named "new job" are of it. Each figure is the best of five rounds.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import grpc

from benchmarks.serving import GRAPH, job_request
from cotenant.v1 import prediction_pb2 as messages
from predictor_service.features.job_features import tabulate_job
from predictor_service.features.operator_times import rates_of, time_operators
from predictor_service.grpc_api.admission_queue import AdmissionQueue
from predictor_service.grpc_api.answer_bytes import write_about, write_answer
from predictor_service.grpc_api.job_answers import JobAnswers
from predictor_service.grpc_api.metrics import ServiceMetrics
from predictor_service.grpc_api.request_pipeline import RequestPipeline
from predictor_service.grpc_api.translate_requests import job_question
from predictor_service.inference.measured_graph import MeasuredGraph
from predictor_service.inference.predictor import Predictor
from predictor_service.outcome_journal import OutcomeJournal, PredictionRow, write_figures
from tests.support.predictor_service import InProcessDescriber, open_predictor

ROUNDS = 5
CALLS = 4_000
NEW_JOBS = 1_000
POINTS = 10


class Context:
    """A call without a deadline."""

    def time_remaining(self) -> float | None:
        """None: the server's own limit holds."""
        return None


def main() -> dict[str, object]:
    """Measures the whole and its parts."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        predictor, journal, line = (
            open_predictor(folder),
            OutcomeJournal(folder / "journal.sqlite"),
            AdmissionQueue(threads=1),
        )
        try:
            return {"unit": "us of CPU per PredictJob", **measure(predictor, journal, line)}
        finally:
            line.shutdown()
            journal.close()


def measure(predictor: Predictor, journal: OutcomeJournal, line: AdmissionQueue) -> dict[str, float]:
    """Measures the whole and its parts, each at ever other batches."""
    sha256, _, _ = predictor.keep_graph(GRAPH)
    sent = [job_request(number, graph_sha256=sha256).SerializeToString() for number in range(ROUNDS * CALLS)]
    pipeline, answers = RequestPipeline(ServiceMetrics(), line), JobAnswers(predictor, journal)
    context, read = cast("grpc.ServicerContext", Context()), messages.PredictJobRequest.FromString

    def serve(number: int) -> bytes:
        request = read(sent[number])
        return pipeline.answer(context, "PredictJob", request, lambda: answers.answer(request))

    best_us(serve)
    new_job_us = best_us(lambda number: answers.answer(new_job(number, sha256)), NEW_JOBS)
    first = read(sent[0])
    prepared = predictor.prepare_job(job_question(first))
    answer = predictor.answer_job(prepared, 77)
    about = write_about(answer.graph, answer.device, is_generic=answer.device_is_generic)
    written = write_answer(answer, about)
    figures = (*answer.utilization_ratio[:3], *answer.memory_bytes[:3], *answer.step_ms[:3], 1.0)
    row = PredictionRow("p", 1, "job", "d", "v", "x" * 450)
    return {
        "whole": best_us(serve),
        "whole, every setting new": new_job_us,
        **measure_new_job(predictor, sha256),
        "read the question": best_us(lambda number: read(sent[number])),
        "admission, deadline, metrics, log": best_us(
            lambda _: pipeline.answer(context, "PredictJob", first, lambda: written)
        ),
        "use case: curves, intervals, job key": best_us(
            lambda number: predictor.answer_job(prepared, 1 + number % 509)
        ),
        "write the answer": best_us(lambda _: write_answer(answer, about)),
        "write the figures for the journal": best_us(lambda _: write_figures(*figures)),
        "journal": best_us(lambda number: journal.remember_row(row._replace(prediction_id=f"p{number}"))),
    }


def measure_new_job(predictor: Predictor, sha256: str) -> dict[str, float]:
    """Measures what a job costs that was never asked about, of a known graph, at ten batches."""
    question = job_question(new_job(300, sha256))
    device, version = predictor.check_job(question).device, predictor.version
    graph = MeasuredGraph(InProcessDescriber().describe(GRAPH))
    rates = rates_of(question.settings, device)
    table = tabulate_job(graph.table(POINTS), question.settings, device)
    targets = (
        [target for name, target in version.devices[device.name].items() if name != "slowdown_ratio"] if version else []
    )

    def ask_models(_: int) -> None:
        for target in targets:
            target.predict(target.select(table.values), table.roofline_ms)
            target.spread(target.select(table.values))

    return {
        "new job: read, check, name": best_us(
            lambda n: predictor.prepare_job(job_question(new_job(n, sha256))), NEW_JOBS
        ),
        "new job: time the operators, once for a mode and precision": best_us(
            lambda _: time_operators(graph.table(POINTS), rates), NEW_JOBS
        ),
        "new job: features": best_us(
            lambda _: tabulate_job(graph.table(POINTS), question.settings, device, graph.times(POINTS, rates)), NEW_JOBS
        ),
        "new job: models and spreads": best_us(ask_models, NEW_JOBS),
        "new job: domain": best_us(
            lambda _: [target.contains(target.select(table.values[:1])) for target in targets], NEW_JOBS
        ),
    }


def new_job(number: int, sha256: str) -> messages.PredictJobRequest:
    """A question about a job that no number before asked about."""
    return job_request(number, (1 + number) / 10_000, graph_sha256=sha256)


def best_us(call: Callable[[int], object], calls: int = CALLS) -> float:
    """CPU of one call in microseconds: the best of all rounds."""
    rounds_s = []
    for turn in range(ROUNDS):
        before_s = time.thread_time()
        for number in range(turn * calls, (turn + 1) * calls):
            call(number)
        rounds_s.append(time.thread_time() - before_s)
    return round(1e6 * min(rounds_s) / calls, 2)


if __name__ == "__main__":
    print(json.dumps(main(), indent=1))
