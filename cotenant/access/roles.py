"""The one table of who may call what; both services enforce it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class Role(StrEnum):
    """What a certificate or a token makes of its holder."""

    USER = "user"
    VIEWER = "viewer"
    OPERATOR = "operator"
    NODE = "node"
    PREDICTOR = "predictor"
    SCHEDULER = "scheduler"
    OBSERVER = "observer"
    ENGINE = "engine"


ROLE_MEANINGS: Final[Mapping[Role, str]] = MappingProxyType(
    {
        Role.USER: "submits jobs; sees, holds, alters, pauses and cancels its own",
        Role.VIEWER: "reads what is not secret, changes nothing",
        Role.OPERATOR: "acts for all users, chooses policies, drains and forgets nodes, confirms restores, retrains",
        Role.NODE: "the agent of one machine, under that name only",
        Role.PREDICTOR: "serves predictions; calls nothing",
        Role.SCHEDULER: "serves jobs; asks the predictor and reports to it",
        Role.OBSERVER: "reports what it measured to the predictor",
        Role.ENGINE: "another scheduler: decisions, predictions, outcomes of its own predictions",
    }
)

_NOBODY_IS_ASKED: Final = None
_ALL: Final = frozenset(Role)
_OPERATORS: Final = frozenset({Role.OPERATOR})
_OWNERS: Final = frozenset({Role.USER, Role.OPERATOR})
_READERS: Final = _OWNERS | {Role.VIEWER}
_ASKERS: Final = frozenset({Role.USER, Role.OPERATOR, Role.SCHEDULER, Role.ENGINE})
_REPORTERS: Final = frozenset({Role.SCHEDULER, Role.OBSERVER})

RPC_ROLES: Final[Mapping[str, Mapping[str, frozenset[Role] | None]]] = MappingProxyType(
    {
        "cotenant.v1.SchedulingService": {
            "SubmitJob": _OWNERS,
            "GetJob": _READERS,
            "ListJobs": _READERS,
            "CancelJob": _OWNERS,
            "PauseJob": _OWNERS,
            "ResumeJob": _OWNERS,
            "HoldJob": _OWNERS,
            "ReleaseJob": _OWNERS,
            "AlterJob": _OWNERS,
            "RetryJob": _OWNERS,
            "SubmitArray": _OWNERS,
            "CancelArray": _OWNERS,
            "WatchJobs": _READERS,
            "ExplainJob": _READERS,
            "ReadJobLog": _OWNERS,
            "ListNodes": _READERS,
            "ListPolicies": _READERS | {Role.ENGINE},
            "SetPolicy": _OPERATORS,
            "ForgetNode": _OPERATORS,
            "CordonNode": _OPERATORS,
            "UncordonNode": _OPERATORS,
            "ConfirmRestore": _OPERATORS,
            "Decide": frozenset({Role.OPERATOR, Role.ENGINE}),
        },
        "cotenant.v1.NodeAgentService": {
            "Connect": frozenset({Role.NODE}),
            "FetchCheckpoint": frozenset({Role.NODE}),
            "SendCheckpointPiece": frozenset({Role.NODE}),
        },
        "cotenant.v1.PredictionService": {
            "PredictJob": _ASKERS,
            "PredictPairs": _ASKERS,
            "PredictMemoryRisk": _ASKERS,
            "UploadGraph": _ASKERS,
            "RecordOutcomes": _REPORTERS | {Role.ENGINE},
            "RecordMeasurementWindows": _REPORTERS,
            "ListMeasuredPairs": _ASKERS | {Role.VIEWER, Role.OBSERVER},
            "ListDevices": _ASKERS | {Role.VIEWER, Role.OBSERVER},
            "FitLossCurve": _ASKERS,
            "FitSpeedModel": _ASKERS,
        },
        "cotenant.v1.ModelService": {
            "StartRetraining": _OPERATORS,
            "GetRetraining": _OPERATORS | {Role.VIEWER},
            "CancelRetraining": _OPERATORS,
        },
        "grpc.health.v1.Health": {
            "Check": _NOBODY_IS_ASKED,
            "List": _NOBODY_IS_ASKED,
            "Watch": _NOBODY_IS_ASKED,
        },
        "grpc.reflection.v1alpha.ServerReflection": {
            "ServerReflectionInfo": _ALL,
        },
    }
)
"""Service -> method -> who may call it; None = everyone who reaches the port, without a certificate or a token."""


def roles_of(method: str) -> frozenset[Role] | None:
    """Returns who may call a method; no role where the table lacks it.

    Args:
        method: As gRPC names it, /SERVICE/METHOD.

    Returns:
        Roles; None = everyone who reaches the port.
    """
    service, _, name = method.removeprefix("/").partition("/")
    return RPC_ROLES.get(service, {}).get(name, frozenset())
