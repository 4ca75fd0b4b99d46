"""Random calls of one role at a service inside this process: what they hold, and what is counted of them.

Decoding, access, errors and servicers are the real ones. Only the transport is left out, so that tens of thousands of
calls of each role take minutes; the same calls over gRPC are in `fuzzed_calls`.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from cotenant.access.roles import RPC_ROLES, Role, roles_of
from cotenant.v1 import models_pb2, node_agent_pb2, prediction_pb2, scheduling_pb2
from tests.support.fuzzed_calls import ANSWER_BYTES_MAX, random_content, random_message

SCHEDULER = scheduling_pb2.DESCRIPTOR.services_by_name["SchedulingService"]
AGENTS = node_agent_pb2.DESCRIPTOR.services_by_name["NodeAgentService"]
PREDICTOR = prediction_pb2.DESCRIPTOR.services_by_name["PredictionService"]
MODELS = models_pb2.DESCRIPTOR.services_by_name["ModelService"]
SERVICES = {"scheduler": SCHEDULER, "agents": AGENTS, "predictor": PREDICTOR, "models": MODELS}
SECRET = "only-alice-knows-this"
OWN_NAME, OWN_ID = "a-job-of-alice", "job-1"
"""Of the job that alice has handed in before any other call."""
DETAILS_CHARACTERS_MAX = 16_384
_FAILURES = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)


@dataclass
class RoleTally:
    """What the calls of one role at one service came to; all but `calls`, `refused` and `answered` must stay 0.

    Attributes:
        refused: Calls that the table forbids, refused before a servicer saw them.
        answered: Calls that ended in order.
        tracebacks: Log records with one, and answers that blame the service.
        unbounded: Answers or refusals beyond their bound.
        forbidden_reached: Calls that reached a servicer although the table forbids it.
        leaked: Answers with another user's secret, or with another user's job for a user.
        forbidden_changed: Whether another user's job, or the policy, was changed by a role that may not.
        first_traceback: Of those, what it said at its end.
    """

    service: str
    role: str
    calls: int = 0
    refused: int = 0
    answered: int = 0
    tracebacks: int = 0
    unbounded: int = 0
    forbidden_reached: int = 0
    leaked: int = 0
    forbidden_changed: int = 0
    cpu_s: float = 0.0
    first_traceback: str = ""

    @property
    def faults(self) -> int:
        """What must not be."""
        return self.tracebacks + self.unbounded + self.forbidden_reached + self.leaked + self.forbidden_changed

    def note_traceback(self, text: str) -> None:
        """Count one, and keep what the first one said."""
        self.tracebacks += 1
        self.first_traceback = self.first_traceback or text[:500]


def check_tally(tally: RoleTally, *, calls: int) -> None:
    """Asserts that all calls were made, nothing that must not be was seen, and what the table forbids was refused."""
    assert tally.calls == calls
    assert tally.faults == 0, tally
    table = RPC_ROLES[SERVICES[tally.service].full_name]
    has_forbidden = any(allowed is not None and tally.role not in allowed for allowed in table.values())
    assert (tally.refused > 0) == has_forbidden


class AbortedError(Exception):
    """What a context raises that has ended its call."""


@dataclass
class CallContext:
    """One call as a servicer sees it, of both kinds of server."""

    metadata: Sequence[tuple[str, str]]
    code: grpc.StatusCode = grpc.StatusCode.OK
    details: str = ""

    def peer(self) -> str:
        return "ipv4:10.0.0.9:4711"

    def auth_context(self) -> dict[str, Sequence[bytes]]:
        return {}

    def invocation_metadata(self) -> Sequence[tuple[str, str]]:
        return self.metadata

    def time_remaining(self) -> float:
        return 10.0

    def is_active(self) -> bool:
        return True

    def cancel(self) -> None:
        """A call of a moment needs no end from outside."""

    def abort_with_status(self, status: Any) -> None:
        self.code, self.details = status.code, status.details
        raise AbortedError


class LoopContext(CallContext):
    """The same for the server of the event loop."""

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: object = ()) -> None:
        self.code, self.details = code, details
        raise grpc.aio.AbortError("ended")


@dataclass
class Fuzzer:
    """One role at one service.

    Attributes:
        handlers: /SERVICE/METHOD -> its handler, behind all interceptors.
        reached: Methods whose servicer has seen a call.
    """

    tally: RoleTally
    metadata: Sequence[tuple[str, str]]
    drawn: random.Random
    handlers: dict[str, Any] = field(default_factory=dict)
    reached: list[str] = field(default_factory=list)

    @property
    def descriptor(self) -> ServiceDescriptor:
        return SERVICES[self.tally.service]

    # --- registration, in the place of a gRPC server ------------------------------------------------------------------

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        """Every method is registered by its name as well."""

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        for name, handler in handlers.items():
            self.handlers[f"/{service}/{name}"] = handler

    def note_reached(self, *, is_loop: bool) -> None:
        """Put a note of what reached the servicer around every method; interceptors come around it."""
        for path, handler in self.handlers.items():
            self.handlers[path] = self._noting(path, handler, is_loop=is_loop)

    def _noting(self, path: str, handler: Any, *, is_loop: bool) -> Any:
        kind = next(
            kind
            for kind in ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
            if getattr(handler, kind) is not None
        )
        method = getattr(handler, kind)

        def plain(request: object, context: object) -> object:
            self.reached.append(path)
            return method(request, context)

        async def awaited(request: object, context: object) -> object:
            self.reached.append(path)
            return await method(request, context)

        async def streamed(request: object, context: object) -> AsyncIterator[object]:
            self.reached.append(path)
            async for message in method(request, context):
                yield message

        of_loop: Any = streamed if kind.endswith("_stream") else awaited
        make = getattr(grpc, f"{kind}_rpc_method_handler")
        return make(
            of_loop if is_loop else plain,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    # --- calls ----------------------------------------------------------------------------------------------------

    def contents(self, method: MethodDescriptor) -> list[bytes]:
        """The requests of one call; some ask for alice's job, most streams of agents begin with a good Hello."""
        if "job_id" in method.input_type.fields_by_name and self.drawn.random() < 0.3:
            return [GetMessageClass(method.input_type)(job_id=OWN_ID).SerializeToString()]
        count = self.drawn.choice((1, 1, 3)) if method.client_streaming else 1
        contents = [random_content(method.input_type, self.drawn) for _ in range(count)]
        if method.containing_service is AGENTS and self.drawn.random() < 0.6:
            contents.insert(0, self._hello())
        return contents

    def _hello(self) -> bytes:
        drawn = random_message(node_agent_pb2.Hello.DESCRIPTOR, self.drawn)
        hello = node_agent_pb2.Hello()
        hello.MergeFrom(cast("node_agent_pb2.Hello", drawn))
        hello.node_id = f"{self.tally.role}-1"
        del hello.gpus[:]
        # Not healthy: a job that was started there would keep out whoever does not list it.
        hello.gpus.add(gpu_id="g0", device="d")
        hello.machine_id, hello.installation_id, hello.instance_id, hello.session_secret = "m", "f", "i", ""
        for name in ("seen", "rack_id", "agent_version", "enforcements"):
            hello.ClearField(name)
        for status in hello.attempts:
            status.key.job_id, status.key.incarnation_id = OWN_ID, ""
        return node_agent_pb2.ConnectRequest(hello=hello).SerializeToString()

    def count(self, path: str, context: CallContext, answers: Sequence[bytes]) -> None:
        """Note how one call ended."""
        tally, roles = self.tally, roles_of(path)
        tally.calls += 1
        tally.answered += context.code is grpc.StatusCode.OK
        is_permitted = roles is None or tally.role in roles
        tally.refused += context.code is grpc.StatusCode.PERMISSION_DENIED and not is_permitted
        if context.code in _FAILURES or "Traceback" in context.details:
            tally.note_traceback(f"{path}: {context.details}")
        size_bytes = sum(map(len, answers))
        tally.unbounded += size_bytes > ANSWER_BYTES_MAX or len(context.details) > DETAILS_CHARACTERS_MAX
        seen = b"".join(answers) + context.details.encode("utf-8", "replace")
        # A node is sent what it is to run.
        is_told = tally.role != Role.NODE and SECRET.encode() in seen
        tally.leaked += is_told or (tally.role == Role.USER and OWN_NAME.encode() in seen)

    def judge_reached(self) -> None:
        """Count the calls that came through although the table forbids them."""
        for path in self.reached:
            roles = roles_of(path)
            self.tally.forbidden_reached += roles is not None and self.tally.role not in roles


@dataclass(frozen=True)
class CallDetails:
    """What an interceptor is told of a call before its method is found."""

    method: str
    invocation_metadata: Sequence[tuple[str, str]] = ()


def through(interceptors: Sequence[Any], find: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns what finds a method behind all interceptors; the first one is the outermost."""
    for interceptor in reversed(interceptors):
        find = partial(interceptor.intercept_service, find)
    return find


class _Tracebacks(logging.Handler):
    """Counts log records with a traceback."""

    def __init__(self, tally: RoleTally) -> None:
        super().__init__()
        self._tally = tally

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self._tally.note_traceback(f"{record.getMessage()}: {record.exc_info[1]!r}")
        elif record.name == "asyncio" and record.levelno >= logging.ERROR:
            self._tally.note_traceback(record.getMessage())


@contextmanager
def watching_log(tally: RoleTally) -> Iterator[None]:
    """Counts tracebacks in the log, and processor seconds, until the block ends."""
    handler, started_s = _Tracebacks(tally), time.process_time()
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
        tally.cpu_s = round(time.process_time() - started_s, 2)
