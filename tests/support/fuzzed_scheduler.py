"""Random calls of one role at the scheduler and at its agents' door, inside this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import grpc

from cotenant.access.roles import Role
from cotenant.access.server_rules import access_rules
from cotenant.v1 import node_agent_pb2_grpc, scheduling_pb2, scheduling_pb2_grpc
from scheduler_service.commands import running_scheduler
from scheduler_service.core.records import Phase
from scheduler_service.grpc_api import server
from scheduler_service.settings import Settings
from tests.support.fuzzed_calls import MESSAGES_READ_MAX, methods_of
from tests.support.fuzzed_roles import OWN_ID, OWN_NAME, SCHEDULER, SECRET, CallDetails, Fuzzer, LoopContext, through
from tests.support.scheduler_process import job_spec

_SILENCE_S = 0.02
_CALLS_TOGETHER = 50


async def fuzz_scheduler(
    fuzzer: Fuzzer, folder: Path, callers: Path, alice: Sequence[tuple[str, str]], *, calls: int
) -> None:
    class CapturingServer:
        """In the place of the server: nobody dials, the servicers are called as they stand."""

        address = "in-process"

        def __init__(self, **_: object) -> None:
            """Nothing is bound."""

        def list_faults(self) -> list[str]:
            return []

        async def start(self, scheduling: Any, agents: Any) -> None:
            scheduling_pb2_grpc.add_SchedulingServiceServicer_to_server(scheduling, cast("Any", fuzzer))
            node_agent_pb2_grpc.add_NodeAgentServiceServicer_to_server(agents, cast("Any", fuzzer))

        async def stop(self, **_: object) -> None:
            """Nothing was bound."""

    settings = Settings(
        address="127.0.0.1:0", metrics_address="", predictor="", state_dir=str(folder / "state"), callers_file=callers
    )
    with patch.object(running_scheduler, "GrpcServer", CapturingServer):
        scheduler = running_scheduler.RunningScheduler(settings)
    await scheduler.start()
    try:
        fuzzer.note_reached(is_loop=True)
        interceptors = server.interceptors_for(access_rules(settings))
        for path, handler in fuzzer.handlers.items():
            fuzzer.handlers[path] = await through(interceptors, _finding(handler))(CallDetails(method=path))
        await _submit(fuzzer, alice)
        loop = scheduler._loop
        assert loop is not None
        policy = loop.engine.state.policy
        # Streams of one node come one after the other: a second one beside it is refused before anything is looked at.
        together = 1 if fuzzer.tally.role == Role.NODE else _CALLS_TOGETHER
        for begun in range(0, calls, together):
            count = min(together, calls - begun)
            await asyncio.gather(*(_call(fuzzer) for _ in range(count)))
        if fuzzer.tally.role != Role.OPERATOR:
            state = loop.engine.state
            job = state.jobs[OWN_ID]
            # A node may start it, and tell of its end.
            fuzzer.tally.forbidden_changed += job.phase is Phase.CANCELLED or job.pause is not None
            fuzzer.tally.forbidden_changed += state.policy != policy
    finally:
        await scheduler.stop()


def _finding(handler: Any) -> Callable[[Any], Any]:
    async def find(_: Any) -> Any:
        return handler

    return find


async def _submit(fuzzer: Fuzzer, alice: Sequence[tuple[str, str]]) -> None:
    """Alice hands in what no caller here may see or change; its id is one that random calls name."""
    spec = job_spec(name=OWN_NAME, environment={"KEY": SECRET})
    submit = fuzzer.handlers[f"/{SCHEDULER.full_name}/SubmitJob"].unary_unary
    answer = await submit(scheduling_pb2.SubmitJobRequest(spec=spec), LoopContext(alice))
    assert answer.job.job_id == OWN_ID
    fuzzer.reached.clear()


async def _call(fuzzer: Fuzzer) -> None:
    method = fuzzer.drawn.choice(methods_of((fuzzer.descriptor,)))
    path = f"/{fuzzer.descriptor.full_name}/{method.name}"
    handler, context = fuzzer.handlers[path], LoopContext(fuzzer.metadata)
    decode = handler.request_deserializer
    requests = [decode(content) for content in fuzzer.contents(method)]
    answers: list[bytes] = []
    try:
        if method.server_streaming:
            given = _given(requests) if method.client_streaming else requests[0]
            streaming = handler.stream_stream or handler.unary_stream
            await _read_some(streaming(given, context), handler.response_serializer, answers)
        else:
            answer = await handler.unary_unary(requests[0], context)
            answers.append(handler.response_serializer(answer))
    except grpc.aio.AbortError:
        pass
    except Exception as error:
        context.code, context.details = grpc.StatusCode.UNKNOWN, repr(error)
    fuzzer.count(path, context, answers)


async def _given(requests: Sequence[Any]) -> AsyncIterator[Any]:
    for request in requests:
        yield request


async def _read_some(stream: Any, serialize: Callable[[Any], bytes], answers: list[bytes]) -> None:
    """Read until the stream ends, is silent for a moment or has said a lot."""
    try:
        while len(answers) < MESSAGES_READ_MAX:
            answers.append(serialize(await asyncio.wait_for(anext(stream), _SILENCE_S)))
    except (StopAsyncIteration, TimeoutError):
        pass
    finally:
        await stream.aclose()
