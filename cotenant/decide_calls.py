"""Decisions on snapshots of other clusters, whose nodes and predictions are sent once as long as they stay the same."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from cotenant.client_errors import ServiceError
from cotenant.v1 import scheduling_pb2

if TYPE_CHECKING:
    from cotenant.v1.scheduling_pb2_grpc import SchedulingServiceStub

_Answer = TypeVar("_Answer")
_UNKNOWN_BASE: Final = "UNKNOWN_BASE"


@dataclass(frozen=True, slots=True, kw_only=True)
class _SentBase:
    """What seldom changes of the newest snapshot.

    Attributes:
        rows: A snapshot of its nodes and predictions alone.
        token: Under which the scheduler keeps them; empty = it does not.
    """

    rows: scheduling_pb2.Snapshot = field(default_factory=scheduling_pb2.Snapshot)
    token: str = ""


class DecideCalls(ABC):
    """A part of `SchedulerClient`, which has the stub and translates errors."""

    _stub: SchedulingServiceStub
    _sent_base = _SentBase()

    @abstractmethod
    def _ask(self, call: Callable[[float], _Answer]) -> _Answer:
        """Call with a time limit in seconds."""

    def decide(self, request: scheduling_pb2.DecideRequest) -> scheduling_pb2.DecideResponse:
        """Decides on a snapshot of another cluster; no job of it is stored.

        Nodes and predictions that come a second time are kept by the scheduler, and from the third time on the jobs
        alone are sent; a scheduler that has lost them is sent the whole again. A request with `keep_base`, or with a
        `base_token`, is sent as it is.

        Raises:
            ServiceError: The scheduler refused or could not be reached.
        """
        snapshot = request.snapshot
        if request.keep_base or snapshot.base_token or snapshot.removed_node_ids:
            return self._decide(request)
        # Read once: another thread may ask meanwhile.
        sent = self._sent_base
        is_known = bool(snapshot.nodes) and _has_rows(snapshot, sent.rows)
        answer = self._decide_on_jobs(request, sent.token) if is_known and sent.token else None
        return answer or self._decide_on_whole(request, sent if is_known else None)

    def _decide_on_jobs(
        self, request: scheduling_pb2.DecideRequest, base_token: str
    ) -> scheduling_pb2.DecideResponse | None:
        """Send the jobs alone; None = the scheduler keeps the rest no more."""
        sent = scheduling_pb2.DecideRequest()
        sent.CopyFrom(request)
        for name in ("nodes", "job_predictions", "pair_predictions"):
            sent.snapshot.ClearField(name)
        sent.snapshot.base_token = base_token
        try:
            return self._decide(sent)
        except ServiceError as error:
            if error.reason != _UNKNOWN_BASE:
                raise
        return None

    def _decide_on_whole(
        self, request: scheduling_pb2.DecideRequest, known: _SentBase | None
    ) -> scheduling_pb2.DecideResponse:
        """Send everything, to be kept where it has come before: what changes from call to call is not worth it."""
        if known is None:
            self._sent_base = _SentBase(rows=_rows_of(request.snapshot))
            return self._decide(request)
        sent = scheduling_pb2.DecideRequest()
        sent.CopyFrom(request)
        sent.keep_base = True
        answer = self._decide(sent)
        self._sent_base = _SentBase(rows=known.rows, token=answer.base_token)
        answer.ClearField("base_token")
        return answer

    def _decide(self, request: scheduling_pb2.DecideRequest) -> scheduling_pb2.DecideResponse:
        return self._ask(lambda timeout: self._stub.Decide(request, timeout=timeout))


def _has_rows(snapshot: scheduling_pb2.Snapshot, rows: scheduling_pb2.Snapshot) -> bool:
    return (
        snapshot.nodes == rows.nodes
        and snapshot.job_predictions == rows.job_predictions
        and snapshot.pair_predictions == rows.pair_predictions
    )


def _rows_of(snapshot: scheduling_pb2.Snapshot) -> scheduling_pb2.Snapshot:
    return scheduling_pb2.Snapshot(
        nodes=snapshot.nodes,
        job_predictions=snapshot.job_predictions,
        pair_predictions=snapshot.pair_predictions,
    )
