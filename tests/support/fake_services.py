"""A scheduler and a predictor that answer from memory, behind real gRPC on loopback."""

# ruff: noqa: N802 - method names are those of the protos

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field

import grpc
from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from cotenant.graph_file import graph_sha256
from cotenant.v1 import (
    prediction_pb2,
    prediction_pb2_grpc,
    resources_pb2,
    scheduling_pb2,
    scheduling_pb2_grpc,
)

GIB = 2**30


def refuse(context: grpc.ServicerContext, code: int, message: str, *, reason: str, remedy: str = "") -> None:
    """Aborts a call as our services do: status, ErrorInfo with the reason, the remedy in its metadata."""
    packed = any_pb2.Any()
    packed.Pack(error_details_pb2.ErrorInfo(reason=reason, domain="cotenant", metadata={"remedy": remedy}))
    status = status_pb2.Status(code=code, message=message, details=[packed])
    context.abort_with_status(rpc_status.to_status(status))


def _not_faked(context: grpc.ServicerContext) -> LookupError:
    """Answer as a server without this method does."""
    context.set_code(grpc.StatusCode.UNIMPLEMENTED)
    return LookupError("no test asks this fake for it")


@dataclass
class FakeScheduler(scheduling_pb2_grpc.SchedulingServiceServicer):
    """Answers with what the test put in.

    Attributes:
        jobs: Known jobs by id.
        nodes: Known nodes.
        policies: Known policies.
        logs: Job id -> what it printed.
        changes: What a watch sends after its snapshot; the watch then ends.
        refusals: Method -> (code, message, reason, remedy).
        seen: Requests in order.
        warnings: What is said of every submission.
        standstill: Why no order is given; `troubles` are what an operator should look after.
    """

    jobs: dict[str, scheduling_pb2.Job] = field(default_factory=dict)
    nodes: Sequence[scheduling_pb2.Node] = ()
    policies: Sequence[scheduling_pb2.Policy] = ()
    explanations: dict[str, scheduling_pb2.ExplainJobResponse] = field(default_factory=dict)
    logs: dict[str, bytes] = field(default_factory=dict)
    changes: list[scheduling_pb2.Job] = field(default_factory=list)
    refusals: dict[str, tuple[int, str, str, str]] = field(default_factory=dict)
    seen: list[object] = field(default_factory=list)
    warnings: list[resources_pb2.Warning] = field(default_factory=list)
    standstill: list[resources_pb2.Warning] = field(default_factory=list)
    troubles: list[resources_pb2.Warning] = field(default_factory=list)

    def _note(self, request: object, context: grpc.ServicerContext) -> None:
        self.seen.append(request)
        method = type(request).__name__.removesuffix("Request")
        if method in self.refusals:
            code, message, reason, remedy = self.refusals[method]
            refuse(context, code, message, reason=reason, remedy=remedy)

    def _job(self, job_id: str, context: grpc.ServicerContext) -> scheduling_pb2.Job:
        if job_id not in self.jobs:
            refuse(context, code_pb2.NOT_FOUND, f"no job {job_id!r}", reason="JOB_NOT_FOUND")
        return self.jobs[job_id]

    def SubmitJob(
        self, request: scheduling_pb2.SubmitJobRequest, context: grpc.ServicerContext
    ) -> scheduling_pb2.SubmitJobResponse:
        self._note(request, context)
        job = scheduling_pb2.Job(job_id=f"job-{len(self.jobs) + 1}", spec=request.spec, submitted_at_ms=1)
        job.phase = scheduling_pb2.JOB_PHASE_PENDING
        if not request.validate_only:
            self.jobs[job.job_id] = job
        return scheduling_pb2.SubmitJobResponse(job=job, warnings=self.warnings)

    def GetJob(
        self, request: scheduling_pb2.GetJobRequest, context: grpc.ServicerContext
    ) -> scheduling_pb2.GetJobResponse:
        self._note(request, context)
        return scheduling_pb2.GetJobResponse(job=self._job(request.job_id, context))

    def ListJobs(
        self, request: scheduling_pb2.ListJobsRequest, context: grpc.ServicerContext
    ) -> scheduling_pb2.ListJobsResponse:
        """Gives one job a page, so that every listing has to turn pages."""
        self._note(request, context)
        jobs = [job for job in self.jobs.values() if not request.phases or job.phase in request.phases]
        start = int(request.page_token or 0)
        more = str(start + 1) if start + 1 < len(jobs) else ""
        return scheduling_pb2.ListJobsResponse(jobs=jobs[start : start + 1], next_page_token=more)

    def CancelJob(
        self, request: scheduling_pb2.CancelJobRequest, context: grpc.ServicerContext
    ) -> scheduling_pb2.CancelJobResponse:
        self._note(request, context)
        job = self._job(request.job_id, context)
        job.phase = scheduling_pb2.JOB_PHASE_CANCELLED
        return scheduling_pb2.CancelJobResponse(job=job)

    def PauseJob(
        self, request: scheduling_pb2.PauseJobRequest, context: grpc.ServicerContext
    ) -> scheduling_pb2.PauseJobResponse:
        self._note(request, context)
        job = self._job(request.job_id, context)
        job.pause.since_ms = 1
        return scheduling_pb2.PauseJobResponse(job=job)

    def ResumeJob(
        self, request: scheduling_pb2.ResumeJobRequest, context: grpc.ServicerContext
    ) -> scheduling_pb2.ResumeJobResponse:
        self._note(request, context)
        job = self._job(request.job_id, context)
        job.ClearField("pause")
        return scheduling_pb2.ResumeJobResponse(job=job)

    def WatchJobs(
        self, request: scheduling_pb2.WatchJobsRequest, context: grpc.ServicerContext
    ) -> Iterator[scheduling_pb2.WatchJobsResponse]:
        self._note(request, context)
        for job in list(self.jobs.values()):
            yield scheduling_pb2.WatchJobsResponse(job=job)
        yield scheduling_pb2.WatchJobsResponse(snapshot_end=True)
        if self.changes:
            job = self.changes.pop(0)
            self.jobs[job.job_id] = job
            yield scheduling_pb2.WatchJobsResponse(job=job)
        refuse(context, code_pb2.UNAVAILABLE, "restarting", reason="DRAINING")

    def ExplainJob(
        self, request: scheduling_pb2.ExplainJobRequest, context: grpc.ServicerContext
    ) -> scheduling_pb2.ExplainJobResponse:
        self._note(request, context)
        self._job(request.job_id, context)
        return self.explanations[request.job_id]

    def ReadJobLog(
        self, request: scheduling_pb2.ReadJobLogRequest, context: grpc.ServicerContext
    ) -> Iterator[scheduling_pb2.ReadJobLogResponse]:
        self._note(request, context)
        text = self.logs.get(request.job_id, b"")[-request.tail_bytes or None :]
        for start in range(0, len(text), 10):
            yield scheduling_pb2.ReadJobLogResponse(chunk=text[start : start + 10])

    def ListNodes(
        self, request: scheduling_pb2.ListNodesRequest, context: grpc.ServicerContext
    ) -> scheduling_pb2.ListNodesResponse:
        self._note(request, context)
        return scheduling_pb2.ListNodesResponse(nodes=self.nodes, warnings=self.standstill, troubles=self.troubles)

    def ForgetNode(
        self, request: scheduling_pb2.ForgetNodeRequest, context: grpc.ServicerContext
    ) -> scheduling_pb2.ForgetNodeResponse:
        self._note(request, context)
        return scheduling_pb2.ForgetNodeResponse(lost_job_ids=["job-000001"])

    def ConfirmRestore(
        self, request: scheduling_pb2.ConfirmRestoreRequest, context: grpc.ServicerContext
    ) -> scheduling_pb2.ConfirmRestoreResponse:
        self._note(request, context)
        return scheduling_pb2.ConfirmRestoreResponse(incarnation_id="a" * 32, ancestor_ids=["b" * 32])

    def ListPolicies(
        self, request: scheduling_pb2.ListPoliciesRequest, context: grpc.ServicerContext
    ) -> scheduling_pb2.ListPoliciesResponse:
        self._note(request, context)
        return scheduling_pb2.ListPoliciesResponse(policies=self.policies)

    def SetPolicy(
        self, request: scheduling_pb2.SetPolicyRequest, context: grpc.ServicerContext
    ) -> scheduling_pb2.SetPolicyResponse:
        self._note(request, context)
        return scheduling_pb2.SetPolicyResponse(policy=request.policy, effective_parameters=request.parameters)

    def Decide(
        self, request: scheduling_pb2.DecideRequest, context: grpc.ServicerContext
    ) -> scheduling_pb2.DecideResponse:
        self._note(request, context)
        return scheduling_pb2.DecideResponse()

    def AlterJob(
        self, request: scheduling_pb2.AlterJobRequest, context: grpc.ServicerContext
    ) -> scheduling_pb2.AlterJobResponse:
        raise _not_faked(context)

    def CancelArray(
        self, request: scheduling_pb2.CancelArrayRequest, context: grpc.ServicerContext
    ) -> scheduling_pb2.CancelArrayResponse:
        self._note(request, context)
        tasks = [job_id for job_id, job in self.jobs.items() if job.spec.array_id == request.array_id]
        return scheduling_pb2.CancelArrayResponse(job_ids=tasks)

    def CordonNode(
        self, request: scheduling_pb2.CordonNodeRequest, context: grpc.ServicerContext
    ) -> scheduling_pb2.CordonNodeResponse:
        self._note(request, context)
        return scheduling_pb2.CordonNodeResponse()

    def HoldJob(
        self, request: scheduling_pb2.HoldJobRequest, context: grpc.ServicerContext
    ) -> scheduling_pb2.HoldJobResponse:
        raise _not_faked(context)

    def ReleaseJob(
        self, request: scheduling_pb2.ReleaseJobRequest, context: grpc.ServicerContext
    ) -> scheduling_pb2.ReleaseJobResponse:
        raise _not_faked(context)

    def RetryJob(
        self, request: scheduling_pb2.RetryJobRequest, context: grpc.ServicerContext
    ) -> scheduling_pb2.RetryJobResponse:
        raise _not_faked(context)

    def SubmitArray(
        self, request: scheduling_pb2.SubmitArrayRequest, context: grpc.ServicerContext
    ) -> scheduling_pb2.SubmitArrayResponse:
        self._note(request, context)
        job_ids = [f"job-{len(self.jobs) + place}" for place, _ in enumerate(request.tasks, start=1)]
        return scheduling_pb2.SubmitArrayResponse(array_id="array-1", job_ids=job_ids)

    def UncordonNode(
        self, request: scheduling_pb2.UncordonNodeRequest, context: grpc.ServicerContext
    ) -> scheduling_pb2.UncordonNodeResponse:
        self._note(request, context)
        return scheduling_pb2.UncordonNodeResponse()


@dataclass
class FakePredictor(prediction_pb2_grpc.PredictionServiceServicer):
    """Answers every question with the same prediction.

    Attributes:
        answer: What PredictJob says.
        graphs: What was uploaded, by hash.
    """

    answer: prediction_pb2.PredictJobResponse = field(default_factory=lambda: sample_prediction(fits=True))
    graphs: dict[str, bytes] = field(default_factory=dict)
    seen: list[object] = field(default_factory=list)
    pairs: prediction_pb2.PredictPairsResponse | None = None
    risk: prediction_pb2.PredictMemoryRiskResponse = field(
        default_factory=lambda: prediction_pb2.PredictMemoryRiskResponse(bounds_fit=True)
    )

    def PredictJob(
        self, request: prediction_pb2.PredictJobRequest, context: grpc.ServicerContext
    ) -> prediction_pb2.PredictJobResponse:
        self.seen.append(request)
        return self.answer

    def PredictPairs(
        self, request: prediction_pb2.PredictPairsRequest, context: grpc.ServicerContext
    ) -> prediction_pb2.PredictPairsResponse:
        """Expects every job to be 10 % slower with every other one, unless something else was put in."""
        self.seen.append(request)
        if self.pairs is not None:
            return self.pairs
        ids = [job.job_id for job in request.jobs]
        cells = len(ids) ** 2
        return prediction_pb2.PredictPairsResponse(
            job_ids=ids, slowdown_ratio=[0.1] * cells, lower=[0.0] * cells, upper=[0.2] * cells
        )

    def RecordOutcomes(
        self, request: prediction_pb2.RecordOutcomesRequest, context: grpc.ServicerContext
    ) -> prediction_pb2.RecordOutcomesResponse:
        return prediction_pb2.RecordOutcomesResponse(recorded=len(request.outcomes))

    def RecordMeasurementWindows(
        self, request: prediction_pb2.RecordMeasurementWindowsRequest, context: grpc.ServicerContext
    ) -> prediction_pb2.RecordMeasurementWindowsResponse:
        return prediction_pb2.RecordMeasurementWindowsResponse(recorded=len(request.measurement_windows))

    def ListMeasuredPairs(
        self, request: prediction_pb2.ListMeasuredPairsRequest, context: grpc.ServicerContext
    ) -> prediction_pb2.ListMeasuredPairsResponse:
        """Knows that two jobs harm each other unequally."""
        self.seen.append(request)
        pairs = [
            prediction_pb2.MeasuredPair(
                device="cpu-standin",
                victim_job_key=victim * 32,
                other_job_key=other * 32,
                slowdown_ratio=slowdown_ratio,
                lower=slowdown_ratio / 2,
                upper=slowdown_ratio * 2,
                times_measured=3,
                victim_graph_sha256=victim * 32,
                victim_global_batch_size=16,
                other_graph_sha256=other * 32,
                other_global_batch_size=16,
                sharing=sharing,
            )
            for victim, other, slowdown_ratio, sharing in (
                ("ab", "cd", 0.1, resources_pb2.DEVICE_SHARING_MPS),
                ("cd", "ab", 0.8, resources_pb2.DEVICE_SHARING_TIME_SLICING),
            )
        ]
        return prediction_pb2.ListMeasuredPairsResponse(pairs=pairs)

    def ListDevices(
        self, request: prediction_pb2.ListDevicesRequest, context: grpc.ServicerContext
    ) -> prediction_pb2.ListDevicesResponse:
        device = prediction_pb2.Device(name="cpu-standin", memory_bytes=2 * GIB, trained=True)
        return prediction_pb2.ListDevicesResponse(devices=[device])

    def UploadGraph(
        self, request_iterator: Iterator[prediction_pb2.UploadGraphRequest], context: grpc.ServicerContext
    ) -> prediction_pb2.UploadGraphResponse:
        data = b"".join(part.chunk for part in request_iterator)
        sha256 = graph_sha256(data)
        self.graphs[sha256] = data
        return prediction_pb2.UploadGraphResponse(graph_sha256=sha256, stored_bytes=len(data))

    def PredictMemoryRisk(
        self, request: prediction_pb2.PredictMemoryRiskRequest, context: grpc.ServicerContext
    ) -> prediction_pb2.PredictMemoryRiskResponse:
        return self.risk

    def FitLossCurve(
        self, request: prediction_pb2.FitLossCurveRequest, context: grpc.ServicerContext
    ) -> prediction_pb2.FitLossCurveResponse:
        self.seen.append(request)
        return prediction_pb2.FitLossCurveResponse()

    def FitSpeedModel(
        self, request: prediction_pb2.FitSpeedModelRequest, context: grpc.ServicerContext
    ) -> prediction_pb2.FitSpeedModelResponse:
        self.seen.append(request)
        return prediction_pb2.FitSpeedModelResponse()


@contextmanager
def serving(*servicers: FakeScheduler | FakePredictor) -> Iterator[str]:
    """Serves on a free loopback port and yields its address."""
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=8))
    for servicer in servicers:
        if isinstance(servicer, FakeScheduler):
            scheduling_pb2_grpc.add_SchedulingServiceServicer_to_server(servicer, server)
        else:
            prediction_pb2_grpc.add_PredictionServiceServicer_to_server(servicer, server)
    checker = health.HealthServicer()
    checker.set("", health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(checker, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        stopped: threading.Event = server.stop(grace=None)
        stopped.wait()


def sample_estimate(value: float, spread: float = 0.1, *, upper_99: float | None = None) -> resources_pb2.Estimate:
    """Builds an estimate with an interval of plus and minus a part of the value."""
    estimate = resources_pb2.Estimate(
        value=value,
        lower=value * (1 - spread),
        upper=value * (1 + spread),
        confidence=0.9,
        level=resources_pb2.ESTIMATE_LEVEL_GRAPH,
        in_domain=True,
    )
    if upper_99 is not None:
        estimate.upper_99 = upper_99
    return estimate


def sample_prediction(*, fits: bool) -> prediction_pb2.PredictJobResponse:
    """Builds a prediction of a job that needs 1.2 GiB, on a device of 2 GiB or of 1 GiB."""
    return prediction_pb2.PredictJobResponse(
        prediction_id="p-1",
        model_version="3",
        utilization_ratio=sample_estimate(0.41),
        utilization_metric=resources_pb2.UTILIZATION_METRIC_BUSY_TIME,
        memory_bytes=sample_estimate(1.1 * GIB, upper_99=1.2 * GIB),
        step_ms=sample_estimate(20.5),
        fits=fits,
        largest_batch_size_that_fits=96 if fits else 24,
        device_memory_bytes=2 * GIB if fits else 1 * GIB,
        graph=resources_pb2.GraphSummary(parameters=123_456, forward_macs_per_sample=7_890_000, nodes=12),
    )
