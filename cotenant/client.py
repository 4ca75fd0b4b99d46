"""Python client of the predictor and the scheduler.

Every method has a deadline, every error is one of cotenant.client_errors, and only requests that may safely
be repeated are retried (reads, and writes that carry a request_id).
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import grpc
from google.protobuf.struct_pb2 import Struct
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cotenant.access.token_calls import open_with_token
from cotenant.call_retries import service_config
from cotenant.client_errors import InputError, explain_mismatch, service_error
from cotenant.decide_calls import DecideCalls
from cotenant.grpc_credentials import channel_credentials, client_tls_files
from cotenant.job_settings import find_wait_fault
from cotenant.listing_pages import LIST_PAGE_SIZE, read_pages
from cotenant.measurement_calls import MeasurementCalls
from cotenant.node_calls import NodeCalls
from cotenant.queue_calls import QueueCalls
from cotenant.tls_probe import TlsFiles
from cotenant.v1 import (
    prediction_pb2,
    prediction_pb2_grpc,
    resources_pb2,
    scheduling_pb2,
    scheduling_pb2_grpc,
)

UPLOAD_CHUNK_BYTES = 512 * 1024
MESSAGE_LIMIT_BYTES = 32 * 1024 * 1024
"""As much as the scheduler takes and answers in one message."""
READ_CALL_DEADLINE_S = 24 * 3600.0

# The port is looked for from the right: an address of IPv6 has colons of its own.
_ADDRESS = re.compile(r"unix:\S+|\S+:[0-9]{1,5}")

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelOptions:
    """Where a service listens and how to trust it.

    Attributes:
        address: host:port or unix:PATH.
        tls_ca_file: Certificate authority of the server; None = plain text.
        tls_certificate_file: Own certificate, for servers that ask for one.
        tls_key_file: Key of the own certificate.
        token_file: Token to show; None = none.
    """

    address: str
    tls_ca_file: Path | None = None
    tls_certificate_file: Path | None = None
    tls_key_file: Path | None = None
    token_file: Path | None = None

    def tls_files(self) -> TlsFiles:
        """Returns the files as a look at the port needs them."""
        return client_tls_files(self)


def open_channel(options: ChannelOptions) -> grpc.Channel:
    """Returns a channel; nothing is dialled before the first call.

    Raises:
        InputError: The address is none, a TLS file is missing or cannot be read, or the token cannot be shown.
    """
    if not _ADDRESS.fullmatch(options.address):
        raise InputError(f"{options.address!r} is not an address", remedy="write HOST:PORT, e.g. 127.0.0.1:7071")
    settings = [
        ("grpc.service_config", json.dumps(service_config())),
        ("grpc.max_receive_message_length", MESSAGE_LIMIT_BYTES),
        ("grpc.max_send_message_length", MESSAGE_LIMIT_BYTES),
        # A scheduler that restarts is back within seconds; the default backoff grows to two minutes.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
    ]
    return open_with_token(options.address, channel_credentials(options), settings, options.token_file)


def is_serving(channel: grpc.Channel, *, timeout_s: float) -> bool:
    """Asks the standard health service; False without an answer in time."""
    try:
        answer = health_pb2_grpc.HealthStub(channel).Check(  # type: ignore[attr-defined]  # the stubs lack it
            health_pb2.HealthCheckRequest(), timeout=timeout_s, wait_for_ready=True
        )
    except grpc.RpcError:
        return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


class SchedulerClient(DecideCalls, NodeCalls, QueueCalls):
    """Jobs, nodes and policies of one cluster."""

    def __init__(
        self, channel: grpc.Channel, *, address: str = "", timeout_s: float = 15.0, tls: TlsFiles | None = None
    ) -> None:
        self._stub = scheduling_pb2_grpc.SchedulingServiceStub(channel)
        self._address = address
        self._tls = tls
        self._timeout_s = timeout_s

    def submit_job(self, spec: scheduling_pb2.JobSpec, *, request_id: str = "") -> scheduling_pb2.Job:
        """Hands a job in; as `submit`, without the warnings."""
        return self.submit(spec, request_id=request_id).job

    def submit(
        self, spec: scheduling_pb2.JobSpec, *, request_id: str = "", validate_only: bool = False, force: bool = False
    ) -> scheduling_pb2.SubmitJobResponse:
        """Hands a job in, which is on the scheduler's disk then, and returns it with what may keep it from starting.

        Args:
            spec: What to run.
            request_id: Reuse it to repeat a submission safely; empty = a new one.
            validate_only: Checks without submitting.
            force: Accepts what no connected node can run, or what fits on no device.

        Raises:
            NotFeasibleError: No connected node can run it, or it fits on no device.
            ServiceError: The scheduler refused or could not be reached.
        """
        request = scheduling_pb2.SubmitJobRequest(
            request_id=request_id or str(uuid.uuid4()), validate_only=validate_only, spec=spec, force=force
        )
        return self._ask(lambda timeout: self._stub.SubmitJob(request, timeout=timeout))

    def get_job(self, job_id: str) -> scheduling_pb2.Job:
        """Returns one job.

        Raises:
            NotFoundError: No such job.
        """
        request = scheduling_pb2.GetJobRequest(job_id=job_id)
        return self._ask(lambda timeout: self._stub.GetJob(request, timeout=timeout)).job

    def list_jobs(
        self, *, phases: Sequence[scheduling_pb2.JobPhase.ValueType] = (), tenant: str = ""
    ) -> list[scheduling_pb2.Job]:
        """Returns all jobs in these phases (none named = all), newest first."""

        def read_page(token: str) -> tuple[Sequence[scheduling_pb2.Job], str]:
            request = scheduling_pb2.ListJobsRequest(
                page_size=LIST_PAGE_SIZE, page_token=token, phases=phases, tenant=tenant
            )
            page = self._ask(lambda timeout: self._stub.ListJobs(request, timeout=timeout))
            return page.jobs, page.next_page_token

        return read_pages(read_page)

    def cancel_job(self, job_id: str) -> scheduling_pb2.Job:
        """Stops a job or takes it off the queue; repeating it is harmless."""
        request = scheduling_pb2.CancelJobRequest(request_id=str(uuid.uuid4()), job_id=job_id)
        return self._ask(lambda timeout: self._stub.CancelJob(request, timeout=timeout)).job

    def explain_job(
        self, job_id: str, *, expected_start: bool = False, changes: Mapping[str, str] | None = None
    ) -> scheduling_pb2.ExplainJobResponse:
        """Returns why a job is where it is; `changes` (policy, batch_size ...) tell when it would start otherwise."""
        request = scheduling_pb2.ExplainJobRequest(job_id=job_id, expected_start=expected_start, changes=changes)
        return self._ask(lambda timeout: self._stub.ExplainJob(request, timeout=timeout))

    def list_policies(self) -> list[scheduling_pb2.Policy]:
        """Returns the policies that this scheduler knows."""

        def read_page(token: str) -> tuple[Sequence[scheduling_pb2.Policy], str]:
            request = scheduling_pb2.ListPoliciesRequest(page_size=LIST_PAGE_SIZE, page_token=token)
            page = self._ask(lambda timeout: self._stub.ListPolicies(request, timeout=timeout))
            return page.policies, page.next_page_token

        return read_pages(read_page)

    def set_policy(
        self, policy: str, parameters: Mapping[str, float | str | bool], *, validate_only: bool = False
    ) -> scheduling_pb2.SetPolicyResponse:
        """Chooses the policy of the running cluster.

        Raises:
            RejectedError: Unknown policy or parameter; the message has the valid names.
        """
        values = Struct()
        values.update(parameters)
        request = scheduling_pb2.SetPolicyRequest(
            request_id=str(uuid.uuid4()), validate_only=validate_only, policy=policy, parameters=values
        )
        return self._ask(lambda timeout: self._stub.SetPolicy(request, timeout=timeout))

    def read_job_log(
        self,
        job_id: str,
        *,
        attempt: int = 0,
        follow: bool = False,
        tail_bytes: int = 0,
        rank: int = 0,
        server: int | None = None,
    ) -> Iterator[bytes]:
        """Yields what a job printed.

        Args:
            job_id: Which job.
            attempt: Which launch of it; 0 = the newest.
            follow: Goes on until the job has ended.
            tail_bytes: Starts this many bytes before the end; 0 = at the beginning that is kept.
            rank: Which process of a job with ranks.
            server: Which of its parameter servers instead.
        """
        request = scheduling_pb2.ReadJobLogRequest(
            job_id=job_id, attempt=attempt, follow=follow, tail_bytes=tail_bytes, rank=rank, server=server
        )
        with _translated("scheduler", self._address, self._tls):
            for answer in self._stub.ReadJobLog(request, timeout=READ_CALL_DEADLINE_S):
                yield answer.chunk

    def open_watch(self, job_ids: Sequence[str] = ()) -> Iterator[scheduling_pb2.WatchJobsResponse]:
        """Streams a snapshot of the jobs, many in a response (`jobs`), then every change, until the connection breaks.

        `cotenant.job_watch.watch_jobs` goes on where this ends.
        """
        request = scheduling_pb2.WatchJobsRequest(job_ids=job_ids, in_batches=True, changes_in_batches=True)
        with _translated("scheduler", self._address, self._tls):
            yield from self._stub.WatchJobs(request, timeout=READ_CALL_DEADLINE_S)

    def _ask(self, call: Callable[[float], Answer]) -> Answer:
        with _translated("scheduler", self._address, self._tls):
            return call(self._timeout_s)


class PredictorClient(MeasurementCalls):
    """Predictions about jobs before they run."""

    def __init__(
        self, channel: grpc.Channel, *, address: str = "", timeout_s: float = 30.0, tls: TlsFiles | None = None
    ) -> None:
        self._stub = prediction_pb2_grpc.PredictionServiceStub(channel)
        self._address = address
        self._tls = tls
        self._timeout_s = timeout_s

    def upload_graph(self, graph: bytes) -> prediction_pb2.UploadGraphResponse:
        """Stores a graph under its content hash.

        Args:
            graph: ONNX file without weights (cotenant.graph_file.read_graph strips them).

        Raises:
            RejectedError: Not a graph that the predictor can read; the reason says why.
        """
        with _translated("predictor", self._address, self._tls):
            return self._stub.UploadGraph(_upload_parts(graph), timeout=self._timeout_s)

    def predict_job(self, request: prediction_pb2.PredictJobRequest) -> prediction_pb2.PredictJobResponse:
        """Predicts one job on one type of device; fills in a request_id when there is none."""
        request.request_id = request.request_id or str(uuid.uuid4())
        return self._ask(lambda timeout: self._stub.PredictJob(request, timeout=timeout))

    def predict_pairs(self, request: prediction_pb2.PredictPairsRequest) -> prediction_pb2.PredictPairsResponse:
        """Predicts how much every job slows down every other one on one device."""
        request.request_id = request.request_id or str(uuid.uuid4())
        return self._ask(lambda timeout: self._stub.PredictPairs(request, timeout=timeout))

    def predict_memory_risk(
        self, request: prediction_pb2.PredictMemoryRiskRequest
    ) -> prediction_pb2.PredictMemoryRiskResponse:
        """Predicts how likely jobs run out of one device's memory together."""
        request.request_id = request.request_id or str(uuid.uuid4())
        return self._ask(lambda timeout: self._stub.PredictMemoryRisk(request, timeout=timeout))

    def fit_loss_curve(self, request: prediction_pb2.FitLossCurveRequest) -> prediction_pb2.FitLossCurveResponse:
        """Predicts from a job's own curve when its training ends."""
        request.request_id = request.request_id or str(uuid.uuid4())
        return self._ask(lambda timeout: self._stub.FitLossCurve(request, timeout=timeout))

    def fit_speed_model(self, request: prediction_pb2.FitSpeedModelRequest) -> prediction_pb2.FitSpeedModelResponse:
        """Predicts from short runs how fast a job steps on other resources."""
        request.request_id = request.request_id or str(uuid.uuid4())
        return self._ask(lambda timeout: self._stub.FitSpeedModel(request, timeout=timeout))

    def list_devices(self) -> list[prediction_pb2.Device]:
        """Returns the device types with a trained model or known peaks."""

        def read_page(token: str) -> tuple[Sequence[prediction_pb2.Device], str]:
            request = prediction_pb2.ListDevicesRequest(page_size=LIST_PAGE_SIZE, page_token=token)
            page = self._ask(lambda timeout: self._stub.ListDevices(request, timeout=timeout))
            return page.devices, page.next_page_token

        return read_pages(read_page)

    def _ask(self, call: Callable[[float], Answer]) -> Answer:
        with _translated("predictor", self._address, self._tls):
            return call(self._timeout_s)


def job_settings(
    *,
    batch_size: int,
    precision: str = "fp32",
    optimizer: str = "sgd",
    mode: str = "train",
    input_wait_ratio: float = 0.0,
    dimension_bindings: Mapping[str, int] | None = None,
    channels_last: bool = False,
    activation_checkpointing: bool = False,
    ddp_bucket_bytes: int | None = None,
    input_wait_ms: float = 0.0,
    sharded_ranks: int = 0,
    gathered_ratio: float = 0.0,
) -> resources_pb2.JobSettings:
    """Builds settings from the short names that users type.

    Raises:
        InputError: A name that no enum has, whose message lists the valid ones; or a wait that cannot be.
    """
    if fault := find_wait_fault(input_wait_ms, input_wait_ratio):
        raise InputError(fault[0], remedy=fault[1])
    return resources_pb2.JobSettings(
        global_batch_size=batch_size,
        precision=resources_pb2.Precision.Value(enum_name(resources_pb2.Precision.keys(), "PRECISION_", precision)),
        optimizer=resources_pb2.Optimizer.Value(enum_name(resources_pb2.Optimizer.keys(), "OPTIMIZER_", optimizer)),
        mode=resources_pb2.RunMode.Value(enum_name(resources_pb2.RunMode.keys(), "RUN_MODE_", mode)),
        input_wait_ratio=input_wait_ratio,
        dimension_bindings=dict(dimension_bindings or {}),
        channels_last=channels_last,
        activation_checkpointing=activation_checkpointing,
        ddp_bucket_bytes=ddp_bucket_bytes,
        input_wait_ms=input_wait_ms,
        sharded_ranks=sharded_ranks,
        gathered_ratio=gathered_ratio,
    )


def enum_name(names: Sequence[str], prefix: str, short: str) -> str:
    """Returns the enum value for a short name, e.g. ("PRECISION_", "bf16") -> PRECISION_BF16.

    Raises:
        InputError: No such value.
    """
    full = prefix + short.upper()
    if full not in names or full.endswith("_UNSPECIFIED"):
        valid = ", ".join(name.removeprefix(prefix).lower() for name in names if not name.endswith("_UNSPECIFIED"))
        raise InputError(f"unknown {prefix.rstrip('_').lower()} {short!r}", remedy=f"one of: {valid}")
    return full


@contextmanager
def _translated(peer: str, address: str, tls: TlsFiles | None) -> Iterator[None]:
    try:
        yield
    except grpc.RpcError as error:
        raise explain_mismatch(service_error(error, peer=peer, address=address), peer, address, tls) from error


def _upload_parts(graph: bytes) -> Iterator[prediction_pb2.UploadGraphRequest]:
    for start in range(0, max(1, len(graph)), UPLOAD_CHUNK_BYTES):
        yield prediction_pb2.UploadGraphRequest(chunk=graph[start : start + UPLOAD_CHUNK_BYTES])
