"""PredictionService: translate, ask the use case, translate back."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import grpc

from cotenant.system_clock import now_ms
from cotenant.v1 import prediction_pb2, prediction_pb2_grpc
from predictor_service.errors import GraphLimitError, invalid_field
from predictor_service.features.graphs.graph_limits import DEFAULT_LIMITS, WEIGHTLESS
from predictor_service.grpc_api.convergence_answers import fit_loss_curve, fit_speed_model
from predictor_service.grpc_api.job_answers import JobAnswers
from predictor_service.grpc_api.measurement_window_answers import record_windows
from predictor_service.grpc_api.pages import cut_page
from predictor_service.grpc_api.pair_rows import list_measured_pairs
from predictor_service.grpc_api.prediction_owners import asked_by, foreign_predictions
from predictor_service.grpc_api.request_pipeline import RequestPipeline
from predictor_service.grpc_api.translate_answers import (
    device_message,
    outcome_content,
    pairs_response,
    risk_response,
    upload_response,
)
from predictor_service.grpc_api.translate_requests import job_question, pairs_question, risk_question
from predictor_service.inference.observed_pairs import SHARING
from predictor_service.inference.pair_table import ALONE, write_alone
from predictor_service.inference.predictor import Predictor
from predictor_service.inference.records import PairsAnswer, PairsQuestion
from predictor_service.outcome_journal import OutcomeJournal, PredictionEntry
from predictor_service.profile_store.intake import keep_outcomes
from predictor_service.profile_store.store import ProfileStore
from predictor_service.registry.device_change import DeviceChange
from predictor_service.retraining.restated_rows import restate_outcomes, restate_window

UPLOAD_BYTES_MAX: Final = DEFAULT_LIMITS.graph_bytes
OUTCOMES_MAX: Final = 1_000
_LEARNED_AT_START_MAX: Final = 50_000


class PredictionServicer(prediction_pb2_grpc.PredictionServiceServicer):
    """The service.

    Args:
        predictor: The use case.
        journal: Joins predictions with outcomes.
        pipeline: Handles what all calls have in common.
        profiles: Keeps what was measured of running jobs.
    """

    def __init__(
        self, predictor: Predictor, journal: OutcomeJournal, pipeline: RequestPipeline, profiles: ProfileStore
    ) -> None:
        self._predictor = predictor
        self._journal = journal
        self._pipeline = pipeline
        self._profiles = profiles
        self._jobs = JobAnswers(predictor, journal)
        self.relearn()

    def relearn(self) -> None:
        """Learns what is kept now, and forgets what was deleted from there.

        What was measured before a device changed counts as it would be measured today, as far as the served version
        knows of changes.
        """
        self._changes = changes = self._known_changes()
        newest = _LEARNED_AT_START_MAX
        joined = restate_outcomes(self._journal.recorded(newest=newest), changes)
        stored = (restate_window(item, changes) for item in self._profiles.read(newest=newest))
        self._predictor.relearn(joined, stored)

    def follow_changes(self) -> None:
        """Learns anew where another version is served, which knows of other changes of devices."""
        if self._known_changes() != self._changes:
            self.relearn()

    def _known_changes(self) -> Sequence[DeviceChange]:
        version = self._predictor.version
        return version.manifest.changes if version else ()

    def PredictJob(  # noqa: N802 (named by the contract)
        self, request: prediction_pb2.PredictJobRequest, context: grpc.ServicerContext
    ) -> prediction_pb2.PredictJobResponse:
        """Predicts one job on one type of device."""
        return prediction_pb2.PredictJobResponse.FromString(self.predict_job_bytes(request, context))

    def predict_job_bytes(self, request: prediction_pb2.PredictJobRequest, context: grpc.ServicerContext) -> bytes:
        """Answers PredictJob as the server sends it, see `answer_bytes`."""
        return self._pipeline.answer(context, "PredictJob", request, lambda: self._predict_job(request))

    def PredictPairs(  # noqa: N802 (named by the contract)
        self, request: prediction_pb2.PredictPairsRequest, context: grpc.ServicerContext
    ) -> prediction_pb2.PredictPairsResponse:
        """Predicts how much every job of a list slows down every other one."""
        return self._pipeline.answer(context, "PredictPairs", request, lambda: self._predict_pairs(request))

    def PredictMemoryRisk(  # noqa: N802 (named by the contract)
        self, request: prediction_pb2.PredictMemoryRiskRequest, context: grpc.ServicerContext
    ) -> prediction_pb2.PredictMemoryRiskResponse:
        """Predicts how likely jobs run out of memory together."""
        return self._pipeline.answer(
            context,
            "PredictMemoryRisk",
            request,
            lambda: risk_response(self._predictor.predict_memory_risk(risk_question(request))),
        )

    def UploadGraph(  # noqa: N802 (named by the contract)
        self, request_iterator: Iterator[prediction_pb2.UploadGraphRequest], context: grpc.ServicerContext
    ) -> prediction_pb2.UploadGraphResponse:
        """Stores a graph under its content hash."""
        return self._pipeline.answer(context, "UploadGraph", None, lambda: self._upload(request_iterator))

    def RecordOutcomes(  # noqa: N802 (named by the contract)
        self, request: prediction_pb2.RecordOutcomesRequest, context: grpc.ServicerContext
    ) -> prediction_pb2.RecordOutcomesResponse:
        """Joins measured values to earlier predictions."""
        return self._pipeline.answer(context, "RecordOutcomes", request, lambda: self._record(request))

    def RecordMeasurementWindows(  # noqa: N802 (named by the contract)
        self, request: prediction_pb2.RecordMeasurementWindowsRequest, context: grpc.ServicerContext
    ) -> prediction_pb2.RecordMeasurementWindowsResponse:
        """Keeps what agents measured of running jobs."""
        return self._pipeline.answer(
            context,
            "RecordMeasurementWindows",
            request,
            lambda: record_windows(request, self._profiles, self._predictor.learn_windows),
        )

    def ListMeasuredPairs(  # noqa: N802 (named by the contract)
        self, request: prediction_pb2.ListMeasuredPairsRequest, context: grpc.ServicerContext
    ) -> prediction_pb2.ListMeasuredPairsResponse:
        """Lists the pairs of jobs that were measured while co-located."""
        return self._pipeline.answer(
            context, "ListMeasuredPairs", request, lambda: list_measured_pairs(request, self._predictor)
        )

    def ListDevices(  # noqa: N802 (named by the contract)
        self, request: prediction_pb2.ListDevicesRequest, context: grpc.ServicerContext
    ) -> prediction_pb2.ListDevicesResponse:
        """Lists the device types with a trained model or known peaks."""
        return self._pipeline.answer(context, "ListDevices", request, lambda: self._list_devices(request))

    def FitLossCurve(  # noqa: N802 (named by the contract)
        self, request: prediction_pb2.FitLossCurveRequest, context: grpc.ServicerContext
    ) -> prediction_pb2.FitLossCurveResponse:
        """Predicts when training ends."""
        return self._pipeline.answer(context, "FitLossCurve", request, lambda: fit_loss_curve(request))

    def FitSpeedModel(  # noqa: N802 (named by the contract)
        self, request: prediction_pb2.FitSpeedModelRequest, context: grpc.ServicerContext
    ) -> prediction_pb2.FitSpeedModelResponse:
        """Predicts speeds on other numbers of workers and servers."""
        return self._pipeline.answer(context, "FitSpeedModel", request, lambda: fit_speed_model(request))

    def _predict_job(self, request: prediction_pb2.PredictJobRequest) -> bytes:
        if request.validate_only:
            self._predictor.check_job(job_question(request))
            return b""
        return self._jobs.answer(request)

    def _predict_pairs(self, request: prediction_pb2.PredictPairsRequest) -> prediction_pb2.PredictPairsResponse:
        question = pairs_question(request)
        answer = self._predictor.predict_pairs(question)
        self._journal.remember(_pairs_entry(answer, question))
        return pairs_response(answer)

    def _upload(self, parts: Iterator[prediction_pb2.UploadGraphRequest]) -> prediction_pb2.UploadGraphResponse:
        data, expected_sha256 = bytearray(), ""
        for part in parts:
            expected_sha256 = part.expected_sha256 or expected_sha256
            data += part.chunk
            if len(data) > UPLOAD_BYTES_MAX:
                raise GraphLimitError(f"the upload exceeds {UPLOAD_BYTES_MAX} bytes", remedy=WEIGHTLESS)
        if expected_sha256 and hashlib.sha256(data).hexdigest() != expected_sha256:
            raise invalid_field("expected_sha256", "the bytes received have another hash", "send them again")
        graph_sha256, description, notices = self._predictor.keep_graph(bytes(data))
        return upload_response(graph_sha256, len(data), description, notices)

    def _record(self, request: prediction_pb2.RecordOutcomesRequest) -> prediction_pb2.RecordOutcomesResponse:
        if len(request.outcomes) > OUTCOMES_MAX:
            raise invalid_field("outcomes", f"{len(request.outcomes)} of them", f"send at most {OUTCOMES_MAX}")
        foreign = foreign_predictions(self._journal, [outcome.prediction_id for outcome in request.outcomes])
        outcomes = [
            (outcome.prediction_id, outcome_content(outcome))
            for outcome in request.outcomes
            if outcome.prediction_id not in foreign
        ]
        unknown = [*foreign, *self._journal.record(outcomes, now_ms())]
        self._learn(outcomes)
        recorded = sum(outcome.prediction_id not in unknown for outcome in request.outcomes)
        return prediction_pb2.RecordOutcomesResponse(recorded=recorded, unknown_prediction_ids=unknown)

    def _learn(self, outcomes: Sequence[tuple[str, Mapping[str, object]]]) -> None:
        """Corrects predictions by what was measured at once, and keeps it for training."""
        entries = self._journal.find([prediction_id for prediction_id, _ in outcomes])
        joined = [(entries[name], outcome) for name, outcome in outcomes if name in entries]
        self._predictor.learn_outcomes(joined)
        keep_outcomes(self._profiles, joined, now_ms())

    def _list_devices(self, request: prediction_pb2.ListDevicesRequest) -> prediction_pb2.ListDevicesResponse:
        devices = self._predictor.devices()
        page, token = cut_page(devices, lambda item: item[0].name, request.page_size, request.page_token)
        return prediction_pb2.ListDevicesResponse(
            devices=[device_message(device, trained) for device, trained in page], next_page_token=token
        )


def _pairs_entry(answer: PairsAnswer, question: PairsQuestion) -> PredictionEntry:
    """Values are kept for small questions only: 500 jobs make a quarter of a million of them."""
    content: dict[str, object] = {"job_ids": list(answer.job_ids), **asked_by()}
    keys = [job.key for job in question.jobs]
    if keys != content["job_ids"]:
        content["job_keys"] = keys
    if question.sharing:
        content[SHARING] = question.sharing.label
    if len(answer.job_ids) <= _PAIR_VALUES_MAX:
        content["slowdown_ratio"] = [round(float(value), 4) for value in answer.slowdown_ratio.reshape(-1)]
        if any(job.is_known for job in question.jobs):
            content[ALONE] = write_alone(question.jobs)
    return PredictionEntry(
        prediction_id=answer.prediction_id,
        at_ms=now_ms(),
        kind="pairs",
        device=answer.device,
        model_version=answer.model_version,
        content=content,
    )


_PAIR_VALUES_MAX: Final = 16
