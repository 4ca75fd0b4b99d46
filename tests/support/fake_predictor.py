"""A predictor whose answers a test states; it speaks the real contract over a real port."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType

import grpc

from cotenant.v1 import prediction_pb2, prediction_pb2_grpc, resources_pb2
from predictor_service.grpc_api.convergence_answers import fit_loss_curve, fit_speed_model

MIB = 1024 * 1024


@dataclass
class FakePredictor(prediction_pb2_grpc.PredictionServiceServicer):
    """Answers every question with the same numbers and remembers what it was asked.

    Attributes:
        slowdown_ratio: Of every pair.
        calibrated: Whether the range of its memory was ever checked.
        failure: When it returns a status, the call ends with it.
    """

    utilization_ratio: float = 0.4
    memory_bytes: int = 100 * MIB
    sample_bytes: int = 0
    step_ms: float = 50.0
    slowdown_ratio: float = 0.05
    calibrated: bool = True
    failure: Callable[[], grpc.StatusCode | None] = lambda: None
    job_questions: list[prediction_pb2.PredictJobRequest] = field(default_factory=list)
    pair_questions: list[prediction_pb2.PredictPairsRequest] = field(default_factory=list)
    outcomes: list[prediction_pb2.Outcome] = field(default_factory=list)
    speed_questions: list[prediction_pb2.FitSpeedModelRequest] = field(default_factory=list)
    windows: list[resources_pb2.MeasurementWindow] = field(default_factory=list)
    address: str = ""

    def __enter__(self) -> FakePredictor:
        self._server = grpc.server(ThreadPoolExecutor(4))
        prediction_pb2_grpc.add_PredictionServiceServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop(None).wait()

    def PredictJob(  # noqa: N802
        self, request: prediction_pb2.PredictJobRequest, context: grpc.ServicerContext
    ) -> prediction_pb2.PredictJobResponse:
        self.job_questions.append(request)
        self._fail(context)
        answer = prediction_pb2.PredictJobResponse(
            prediction_id=f"p-{len(self.job_questions)}",
            model_version="fake-1",
            utilization_ratio=estimate(self.utilization_ratio),
            memory_bytes=estimate(self.memory_bytes_of(request.settings.global_batch_size)),
            step_ms=estimate(self.step_ms),
            fits=True,
            micro_batches=[
                prediction_pb2.MicroBatchEstimate(
                    micro_batch_size=size,
                    accumulation_steps=1,
                    memory_bytes=estimate(self.memory_bytes_of(size)),
                    step_ms=estimate(self.step_ms),
                )
                for size in request.micro_batch_sizes
            ],
        )
        answer.memory_bytes.range_not_calibrated = not self.calibrated
        return answer

    def memory_bytes_of(self, samples: int) -> int:
        """Return the memory of so many samples at once."""
        return self.memory_bytes + self.sample_bytes * samples

    def PredictPairs(  # noqa: N802
        self, request: prediction_pb2.PredictPairsRequest, context: grpc.ServicerContext
    ) -> prediction_pb2.PredictPairsResponse:
        self.pair_questions.append(request)
        self._fail(context)
        cells = len(request.jobs) ** 2
        return prediction_pb2.PredictPairsResponse(
            job_ids=[job.job_id for job in request.jobs],
            slowdown_ratio=[self.slowdown_ratio] * cells,
            lower=[0.0] * cells,
            upper=[self.slowdown_ratio] * cells,
            level=[resources_pb2.ESTIMATE_LEVEL_GRAPH] * cells,
            in_domain=[True] * cells,
            model_version="fake-1",
        )

    def RecordOutcomes(  # noqa: N802
        self, request: prediction_pb2.RecordOutcomesRequest, context: grpc.ServicerContext
    ) -> prediction_pb2.RecordOutcomesResponse:
        self._fail(context)
        self.outcomes.extend(request.outcomes)
        return prediction_pb2.RecordOutcomesResponse(recorded=len(request.outcomes))

    def RecordMeasurementWindows(  # noqa: N802
        self, request: prediction_pb2.RecordMeasurementWindowsRequest, context: grpc.ServicerContext
    ) -> prediction_pb2.RecordMeasurementWindowsResponse:
        self._fail(context)
        self.windows.extend(request.measurement_windows)
        return prediction_pb2.RecordMeasurementWindowsResponse(recorded=len(request.measurement_windows))

    def ListMeasuredPairs(  # noqa: N802
        self, request: prediction_pb2.ListMeasuredPairsRequest, context: grpc.ServicerContext
    ) -> prediction_pb2.ListMeasuredPairsResponse:
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "the scheduler lists no pairs")

    def UploadGraph(  # noqa: N802
        self, request_iterator: Iterator[prediction_pb2.UploadGraphRequest], context: grpc.ServicerContext
    ) -> prediction_pb2.UploadGraphResponse:
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "the scheduler uploads nothing")

    def ListDevices(  # noqa: N802
        self, request: prediction_pb2.ListDevicesRequest, context: grpc.ServicerContext
    ) -> prediction_pb2.ListDevicesResponse:
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "the scheduler asks for no devices")

    def PredictMemoryRisk(  # noqa: N802
        self, request: prediction_pb2.PredictMemoryRiskRequest, context: grpc.ServicerContext
    ) -> prediction_pb2.PredictMemoryRiskResponse:
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "the scheduler asks for no risk")

    def FitLossCurve(  # noqa: N802
        self, request: prediction_pb2.FitLossCurveRequest, context: grpc.ServicerContext
    ) -> prediction_pb2.FitLossCurveResponse:
        self._fail(context)
        return fit_loss_curve(request)

    def FitSpeedModel(  # noqa: N802
        self, request: prediction_pb2.FitSpeedModelRequest, context: grpc.ServicerContext
    ) -> prediction_pb2.FitSpeedModelResponse:
        self.speed_questions.append(request)
        self._fail(context)
        return fit_speed_model(request)

    def _fail(self, context: grpc.ServicerContext) -> None:
        code = self.failure()
        if code is not None:
            context.abort(code, "told to fail")


class GenericPredictor(FakePredictor):
    """Knows nothing of any device type."""

    def PredictJob(  # noqa: N802
        self, request: prediction_pb2.PredictJobRequest, context: grpc.ServicerContext
    ) -> prediction_pb2.PredictJobResponse:
        answer = super().PredictJob(request, context)
        answer.device, answer.device_is_generic = request.device, True
        return answer


def estimate(value: float) -> resources_pb2.Estimate:
    return resources_pb2.Estimate(
        value=value,
        lower=value * 0.9,
        upper=value * 1.1,
        confidence=0.9,
        upper_99=value * 1.2,
        level=resources_pb2.ESTIMATE_LEVEL_GRAPH,
        in_domain=True,
    )
