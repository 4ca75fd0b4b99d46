"""Every error of the scheduler service; the class names the side at fault.

SchedulerServiceError
├── CallerError                      the request must change
│   ├── InvalidRequestError
│   │   └── UnknownPolicyError
│   ├── UnknownJobError
│   ├── UnknownNodeError
│   ├── UnknownBaseError
│   ├── NodeHeardError
│   ├── RequestConflictError
│   ├── WrongJobPhaseError
│   ├── NotPausableError
│   ├── NoNodeRunsItError
│   ├── FitsNoDeviceError
│   ├── QuotaTooSmallError
│   ├── UnidentifiedCallerError
│   ├── NotPermittedError
│   └── SettingsError
│       └── RestoreRefusedError
├── PeerError                        another program did not answer
│   ├── NodeUnreachableError
│   ├── CheckpointMissingError
│   ├── PredictorError
│   ├── AgentProtocolError
│   ├── SecondInstanceError
│   ├── LateHelloError
│   ├── ForeignClusterError
│   ├── GpuTakenError
│   └── AttemptsMissingError
└── ServiceError                     this service or its machine
    ├── NotReadyError
    ├── StandstillError
    ├── OverloadedError
    └── StateError
        ├── StateUnwritableError
        │   └── StateFullError
        ├── StateDamagedError
        ├── StateMissingError
        ├── StateLockedError
        └── StateFromNewerVersionError

Each carries a message with reason and remedy. Status codes are chosen in `grpc_api.status_codes` only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


class SchedulerServiceError(Exception):
    """Anything that this service reports.

    Attributes:
        metadata: Names and numbers behind the message, for programs.
    """

    def __init__(self, message: str, *, metadata: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.metadata: Mapping[str, str] = dict(metadata or {})


class CallerError(SchedulerServiceError):
    """The request must change before it can succeed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldViolation:
    """What is wrong with one field; the path uses the proto's names."""

    field: str
    description: str


class InvalidRequestError(CallerError):
    """Fields of the request break their rules; all of them are listed."""

    def __init__(self, *violations: FieldViolation) -> None:
        super().__init__("; ".join(f"{violation.field}: {violation.description}" for violation in violations))
        self.violations = violations


class UnknownPolicyError(InvalidRequestError):
    """No such policy; the message lists the valid names."""


class UnknownJobError(CallerError):
    """No job has this id."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"no job {job_id!r}; list the jobs to see which exist", metadata={"job_id": job_id})


class UnknownNodeError(CallerError):
    """No node has this name."""

    def __init__(self, node_id: str) -> None:
        super().__init__(f"no node {node_id!r}; list the nodes to see which exist", metadata={"node_id": node_id})


class UnknownBaseError(CallerError):
    """The part of a snapshot that a call goes on from is not kept any more."""

    def __init__(self, token: str) -> None:
        shown = token[:16]
        super().__init__(
            f"snapshot.base_token {shown!r} names nothing that is kept here: only the newest are, until a restart; "
            "send the snapshot as a whole, with keep_base for the next call",
            metadata={"base_token": shown},
        )


class NodeHeardError(CallerError):
    """The node is heard, so it cannot be given up."""


class RequestConflictError(CallerError):
    """The request id was used before with another body."""

    def __init__(self, request_id: str) -> None:
        super().__init__(
            f"request_id {request_id!r} was used before with another body; choose a new one for a new request",
            metadata={"request_id": request_id},
        )


class WrongJobPhaseError(CallerError):
    """The job is not in a phase in which this can be asked."""


class NotPausableError(CallerError):
    """The job runs where it cannot be paused."""


class NoNodeRunsItError(CallerError):
    """Every connected node lacks something that the job asks for."""


class FitsNoDeviceError(CallerError):
    """The job needs more memory than the largest device has."""


class QuotaTooSmallError(CallerError):
    """The job asks for more GPUs at once than its tenant may ever hold."""


class UnidentifiedCallerError(CallerError):
    """The caller is unknown."""


class NotPermittedError(CallerError):
    """The caller is known and may not do this."""


class SettingsError(CallerError):
    """A setting, flag or file of the command line is unusable."""


class RestoreRefusedError(SettingsError):
    """A restore would overwrite a state, or its source is not a whole backup."""


class PeerError(SchedulerServiceError):
    """Another program did not answer as it should."""


class NodeUnreachableError(PeerError):
    """The node's agent is not connected or went away during the answer."""


class CheckpointMissingError(PeerError):
    """The node has no whole checkpoint of that attempt, or sends none."""


class PredictorError(PeerError):
    """The predictor did not answer; `code` is its status or error reason."""

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message, metadata={"code": code})
        self.code = code


class AgentProtocolError(PeerError):
    """An agent broke the protocol of its stream."""


class SecondInstanceError(PeerError):
    """An agent wants to speak for a node for which another living agent speaks."""


class LateHelloError(PeerError):
    """An agent's Hello came after a later one of the same process, or of a later boot: what it says may be over."""


class ForeignClusterError(PeerError):
    """A node belongs to another cluster than this scheduler's, or claims what no scheduler of it ever said."""


class GpuTakenError(PeerError):
    """A node offers a GPU that another node still has."""


class AttemptsMissingError(PeerError):
    """A node joins without what it was given to run; `retry_ms` later nothing of that runs any more."""

    def __init__(self, message: str, *, retry_ms: int = 0) -> None:
        super().__init__(message)
        self.retry_ms = retry_ms


class ServiceError(SchedulerServiceError):
    """This service or its machine is at fault; asking again later may help."""


class NotReadyError(ServiceError):
    """The service is starting, stopping or has given up."""


class StandstillError(ServiceError):
    """The scheduler gives no orders: its state is not the newest, or was restored and not confirmed."""


class OverloadedError(ServiceError):
    """A bounded queue is full."""


class StateError(ServiceError):
    """The state directory cannot be used."""


class StateUnwritableError(StateError):
    """A write to the state directory failed; nothing of it was stored."""


class StateFullError(StateUnwritableError):
    """The disk of the state directory is full; nothing of the write was stored."""


class StateDamagedError(StateError):
    """The event log is not whole."""


class StateMissingError(StateError):
    """Jobs were accepted in the directory, but the database that holds them is not there."""


class StateLockedError(StateError):
    """Another scheduler uses the state directory."""


class StateFromNewerVersionError(StateError):
    """The state was written by a newer version of this program."""
