"""Rules of requests. All violations of a request are found at once; each states what would be right."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from typing import Protocol

from google.protobuf import json_format
from google.protobuf.message import Message

from cotenant.job_settings import DDP_BUCKET_BYTES_MAX, SHARDED_RANKS_MAX, find_wait_fault
from cotenant.names import NAME_PATTERN
from cotenant.rank_launchers import flags_of_nodes, spans_nodes
from cotenant.v1 import resources_pb2, scheduling_pb2
from scheduler_service.core.records import PAUSED_MS_MAX
from scheduler_service.errors import FieldViolation, InvalidRequestError
from scheduler_service.grpc_api.queue.queue_validation import single_job_violations, terms_violations
from scheduler_service.grpc_api.replica_validation import replica_violations

REQUEST_ID_PATTERN = re.compile(r"[A-Za-z0-9._:-]{1,128}")
ENVIRONMENT_NAME_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
GRAPH_SHA256_PATTERN = re.compile(r"[0-9a-f]{64}")
GPUS_MAX = 1_024
BATCH_MAX = 1_000_000
STEPS_MAX = 10**12
LOSS_MAX = 1e12
MAX_SLOWDOWN_RATIO_MAX = 10.0
ARGUMENTS_MAX = 1_000
# As many bytes as Linux takes for one argument, and a sixteenth of what it takes in all.
COMMAND_BYTES_MAX = 131_072
ENVIRONMENT_ENTRIES_MAX = 200
ENVIRONMENT_BYTES_MAX = 65_536
PATH_CHARACTERS_MAX = 4_096
# As many as agents take.
REGEX_CHARACTERS_MAX = 512
BYTES_MAX = 2**60
CHECKPOINT_MS_MAX = 24 * 3_600_000
RESTART_LIMIT_MAX = 1_000
PAGE_SIZE_DEFAULT = 100
PAGE_SIZE_MAX = 1_000
WATCHED_JOBS_MAX = 1_000
# Pending jobs times GPUs of a snapshot: a table for every job takes some seconds and 100 MB then.
EXPLAINED_LOOKS_MAX = 200_000


def require(violations: Iterator[FieldViolation]) -> None:
    """Raise when there is any violation.

    Raises:
        InvalidRequestError: With all of them.
    """
    found = tuple(violations)
    if found:
        raise InvalidRequestError(*found)


def node_order_violations(
    request: scheduling_pb2.ForgetNodeRequest | scheduling_pb2.CordonNodeRequest | scheduling_pb2.UncordonNodeRequest,
) -> Iterator[FieldViolation]:
    """Yield what is wrong with an order about a node."""
    yield from request_id_violations(request.request_id)
    if not NAME_PATTERN.fullmatch(request.node_id):
        yield FieldViolation(field="node_id", description="must be 1 to 63 letters, digits or . _ -")


def body_sha256(request: Message) -> str:
    """Hash what a request asks for, its request id left out."""
    body = type(request)()
    body.CopyFrom(request)
    body.ClearField("request_id")
    text = json.dumps(json_format.MessageToDict(body, preserving_proto_field_name=True), sort_keys=True)
    return hashlib.sha256(f"{request.DESCRIPTOR.name}\n{text}".encode()).hexdigest()


def request_id_violations(request_id: str) -> Iterator[FieldViolation]:
    """Check the id of a repeatable request; empty is allowed and repeats nothing."""
    if request_id and not REQUEST_ID_PATTERN.fullmatch(request_id):
        yield FieldViolation(
            field="request_id", description="must be at most 128 letters, digits or . _ : -, e.g. a UUID"
        )


def job_id_violations(job_id: str) -> Iterator[FieldViolation]:
    """Check that a job is named."""
    if not NAME_PATTERN.fullmatch(job_id):
        yield FieldViolation(field="job_id", description="must name a job, e.g. job-7")


def array_id_violations(array_id: str) -> Iterator[FieldViolation]:
    """Check that an array is named."""
    if not NAME_PATTERN.fullmatch(array_id):
        yield FieldViolation(field="array_id", description="must name an array, e.g. array-7")


def submission_violations(request: scheduling_pb2.SubmitJobRequest) -> Iterator[FieldViolation]:
    """Check a whole submission."""
    yield from request_id_violations(request.request_id)
    yield from spec_violations(request.spec)
    yield from single_job_violations(request.spec)


class JobOrder(Protocol):
    """A request about one job."""

    @property
    def request_id(self) -> str:
        """Of the request."""

    @property
    def job_id(self) -> str:
        """Of the job."""


def job_order_violations(request: JobOrder) -> Iterator[FieldViolation]:
    """Check which job an order is about."""
    yield from request_id_violations(request.request_id)
    yield from job_id_violations(request.job_id)


def pause_violations(request: scheduling_pb2.PauseJobRequest) -> Iterator[FieldViolation]:
    """Check a whole order to pause."""
    yield from job_order_violations(request)
    if not 0 <= request.paused_ms_max <= PAUSED_MS_MAX:
        yield FieldViolation(
            field="paused_ms_max", description=f"{request.paused_ms_max} is not 0 to {PAUSED_MS_MAX} (0 = the longest)"
        )


def spec_violations(spec: scheduling_pb2.JobSpec) -> Iterator[FieldViolation]:
    """Check what a user asks for."""
    yield from _name_violations(spec)
    yield from _command_violations(spec)
    yield from _environment_violations(spec)
    yield from _size_violations(spec)
    yield from _gpu_violations(spec)
    yield from replica_violations(spec)
    yield from terms_violations(spec)
    yield from settings_violations(spec.settings, field="spec.settings", is_needed=_needs_settings(spec))
    if spec.graph_sha256 and not GRAPH_SHA256_PATTERN.fullmatch(spec.graph_sha256):
        yield _violation(
            "spec.graph_sha256", "must be 64 lower-case hexadecimal digits, as UploadGraph of the predictor returns"
        )


def _needs_settings(spec: scheduling_pb2.JobSpec) -> bool:
    return bool(spec.graph_sha256) or spec.HasField("settings")


def _violation(field: str, description: str) -> FieldViolation:
    return FieldViolation(field=field, description=description)


def _name_violations(spec: scheduling_pb2.JobSpec) -> Iterator[FieldViolation]:
    rule = "must be at most 63 letters, digits or . _ -"
    if spec.name and not NAME_PATTERN.fullmatch(spec.name):
        yield _violation("spec.name", rule)
    if spec.tenant and not NAME_PATTERN.fullmatch(spec.tenant):
        yield _violation("spec.tenant", rule)
    if spec.owner and not NAME_PATTERN.fullmatch(spec.owner):
        yield _violation("spec.owner", rule)


def _command_violations(spec: scheduling_pb2.JobSpec) -> Iterator[FieldViolation]:
    if not spec.command or not spec.command[0]:
        yield _violation("spec.command", "must name a program; give it and its arguments as a list")
    if len(spec.command) > ARGUMENTS_MAX:
        yield _violation("spec.command", f"must have at most {ARGUMENTS_MAX} arguments, not {len(spec.command)}")
    size_bytes = sum(len(argument.encode()) + 1 for argument in spec.command)
    if size_bytes > COMMAND_BYTES_MAX:
        yield _violation("spec.command", f"must have at most {COMMAND_BYTES_MAX} bytes, not {size_bytes}")
    if any("\0" in argument for argument in spec.command):
        yield _violation("spec.command", "must not contain a zero byte")
    if len(spec.working_directory) > PATH_CHARACTERS_MAX or "\0" in spec.working_directory:
        yield _violation("spec.working_directory", f"must be a path of at most {PATH_CHARACTERS_MAX} characters")
    if spec.working_directory and not spec.working_directory.startswith("/"):
        yield _violation("spec.working_directory", "must be an absolute path on the nodes")
    yield from _regex_violations(spec.progress_regex)


def _regex_violations(pattern: str) -> Iterator[FieldViolation]:
    if not pattern:
        return
    if len(pattern) > REGEX_CHARACTERS_MAX:
        yield _violation("spec.progress_regex", f"must have at most {REGEX_CHARACTERS_MAX} characters")
        return
    try:
        groups = re.compile(pattern).groupindex
    except (re.error, RecursionError, OverflowError) as error:
        yield _violation("spec.progress_regex", f"must be a regular expression: {error}")
        return
    if "step" not in groups:
        yield _violation("spec.progress_regex", "must have a group named step, e.g. step (?P<step>[0-9]+)")


def _environment_violations(spec: scheduling_pb2.JobSpec) -> Iterator[FieldViolation]:
    if len(spec.environment) > ENVIRONMENT_ENTRIES_MAX:
        yield _violation("spec.environment", f"must have at most {ENVIRONMENT_ENTRIES_MAX} entries")
    if (
        sum(len(name.encode()) + len(value.encode()) for name, value in spec.environment.items())
        > ENVIRONMENT_BYTES_MAX
    ):
        remedy = "write large values to a file, and name that in a variable"
        yield _violation("spec.environment", f"must have at most {ENVIRONMENT_BYTES_MAX} bytes; {remedy}")
    for name, value in sorted(spec.environment.items()):
        if not ENVIRONMENT_NAME_PATTERN.fullmatch(name) or "\0" in value:
            yield _violation(
                "spec.environment", f"{name[:40]!r} must be a variable name with a value without zero bytes"
            )
        elif name.startswith("COTENANT_"):
            yield _violation("spec.environment", f"{name} belongs to the node agent; choose a name without COTENANT_")


def _size_violations(spec: scheduling_pb2.JobSpec) -> Iterator[FieldViolation]:
    limits = (
        ("steps_total", spec.steps_total, 0, STEPS_MAX),
        ("batches_per_step", spec.batches_per_step, 0, 1_000_000),
        ("cpu_cores", spec.cpu_cores, 0, 100_000),
        ("host_memory_bytes", spec.host_memory_bytes, 0, BYTES_MAX),
        ("memory_bytes", spec.memory_bytes, 0, BYTES_MAX),
        ("checkpoint_ms", spec.checkpoint_ms, 0, CHECKPOINT_MS_MAX),
        ("collective_timeout_ms", spec.collective_timeout_ms, 0, CHECKPOINT_MS_MAX),
        ("restart_limit", spec.restart_limit, 0, RESTART_LIMIT_MAX),
        ("max_slowdown_ratio", spec.max_slowdown_ratio, 0, MAX_SLOWDOWN_RATIO_MAX),
        ("target_loss", spec.target_loss, 0, LOSS_MAX),
    )
    for name, value, least, most in limits:
        # A number that is not a number fails both comparisons.
        if not least <= value <= most:
            yield _violation(f"spec.{name}", f"must be from {least:,} to {most:,}, not {value:,}")
    if spec.target_loss and not (spec.steps_total or spec.time_limit_ms):
        yield _violation(
            "spec.target_loss", "needs a bound: state steps_total (--steps) or time_limit_ms (--time-limit)"
        )
    if spec.share not in resources_pb2.ShareMode.values():
        yield _violation("spec.share", "must be one of SHARE_MODE_NEVER, SHARE_MODE_SAFE, SHARE_MODE_ANY")


def _gpu_violations(spec: scheduling_pb2.JobSpec) -> Iterator[FieldViolation]:
    gpus = spec.gpus or 1
    if not 1 <= gpus <= GPUS_MAX:
        yield _violation("spec.gpus", f"must be from 1 to {GPUS_MAX:,}, not {gpus:,}")
    if len(spec.allowed_gpus) > 64 or any(not 1 <= count <= GPUS_MAX for count in spec.allowed_gpus):
        yield _violation("spec.allowed_gpus", f"must be at most 64 counts from 1 to {GPUS_MAX:,}")
    elif spec.allowed_gpus and gpus not in spec.allowed_gpus:
        yield _violation("spec.allowed_gpus", f"must contain gpus ({gpus}) or be empty")
    if spec.ranks not in (0, gpus):
        yield _violation("spec.ranks", f"must be 0 or gpus ({gpus}), one process per GPU, not {spec.ranks:,}")
    yield from _spanning_violations(spec)


def batch_violations(spec: scheduling_pb2.JobSpec) -> Iterator[FieldViolation]:
    """Check that every GPU gets a sample; asked only where a node has so many GPUs, which is the nearer cause."""
    gpus, batch = spec.gpus or 1, spec.settings.global_batch_size
    if spec.HasField("settings") and batch < gpus:
        yield _violation(
            "spec.settings.global_batch_size",
            f"is {batch}, and each of {gpus} GPUs needs a sample: a larger --batch-size, or fewer GPUs",
        )


def _spanning_violations(spec: scheduling_pb2.JobSpec) -> Iterator[FieldViolation]:
    if not spec.across_nodes or spec.ranks:
        return
    if not spans_nodes(spec.command):
        description = "needs ranks, or torchrun as the command: another process sees the GPUs of one node only"
        yield _violation("spec.across_nodes", description)
    elif flags := flags_of_nodes(spec.command):
        yield _violation("spec.command", f"leave out {', '.join(flags)[:200]}: the nodes tell torchrun of each other")


def _sharding_violations(settings: resources_pb2.JobSettings, field: str) -> Iterator[FieldViolation]:
    if settings.sharded_ranks == 1 or not 0 <= settings.sharded_ranks <= SHARDED_RANKS_MAX:
        yield _violation(f"{field}.sharded_ranks", f"must be from 2 to {SHARDED_RANKS_MAX:,}, or 0: whole on each")
    if not 0 <= settings.gathered_ratio <= 1:
        yield _violation(f"{field}.gathered_ratio", "must be from 0 to 1")


def settings_violations(
    settings: resources_pb2.JobSettings, *, field: str, is_needed: bool = True
) -> Iterator[FieldViolation]:
    """Check settings of a job."""
    if not is_needed:
        return
    if not 1 <= settings.global_batch_size <= BATCH_MAX:
        yield _violation(
            f"{field}.global_batch_size", f"must be from 1 to {BATCH_MAX:,}, not {settings.global_batch_size:,}"
        )
    if not 0 <= settings.input_wait_ratio < 1:
        yield _violation(f"{field}.input_wait_ratio", "must be from 0 to below 1")
    if fault := find_wait_fault(settings.input_wait_ms, settings.input_wait_ratio):
        yield _violation(f"{field}.input_wait_ms", "; ".join(fault))
    if settings.HasField("ddp_bucket_bytes") and not 1 <= settings.ddp_bucket_bytes <= DDP_BUCKET_BYTES_MAX:
        yield _violation(f"{field}.ddp_bucket_bytes", f"must be from 1 to {DDP_BUCKET_BYTES_MAX}, or absent")
    yield from _sharding_violations(settings, field)
    if len(settings.dimension_bindings) > 64 or any(
        not 1 <= size <= 2**31 for size in settings.dimension_bindings.values()
    ):
        yield _violation(f"{field}.dimension_bindings", "must be at most 64 sizes from 1 to 2,147,483,648")
    for name, value, enum in (
        ("mode", settings.mode, resources_pb2.RunMode),
        ("precision", settings.precision, resources_pb2.Precision),
        ("optimizer", settings.optimizer, resources_pb2.Optimizer),
    ):
        if value not in enum.values():
            valid = ", ".join(enum.keys())
            yield _violation(f"{field}.{name}", f"must be one of {valid}")
