"""A scheduler that does nothing of its own: it welcomes agents, keeps what they send and sends what a test asks for."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any, TypeVar

import grpc

from cotenant.v1 import node_agent_pb2 as messages
from cotenant.v1 import node_agent_pb2_grpc, resources_pb2, scheduling_pb2
from tests.support.daemons import free_ports

Found = TypeVar("Found")


class FakeScheduler(node_agent_pb2_grpc.NodeAgentServiceServicer):
    """Serves Connect on a loopback port, which it keeps; use it as a context manager."""

    def __init__(
        self,
        *,
        lease_ms: int = 30_000,
        grace_ms: int = 2_000,
        heartbeat_ms: int = 200,
        certificate: tuple[Path, Path] | None = None,
        client_ca: Path | None = None,
    ) -> None:
        self._certificate = certificate
        self._client_ca = client_ca
        self.rules = messages.Welcome(heartbeat_ms=heartbeat_ms, lease_ms=lease_ms, grace_ms=grace_ms)
        self.received: list[messages.ConnectRequest] = []
        self.renew = True
        self.store_ends = True
        self.port = 0
        self._changed = threading.Condition()
        self._outgoing: queue.Queue[messages.ConnectResponse | None] = queue.Queue()
        self._server: grpc.Server | None = None

    def __enter__(self) -> FakeScheduler:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Serve, on the port of the last time if there was one."""
        self._server = grpc.server(futures.ThreadPoolExecutor(max_workers=4), options=(("grpc.so_reuseport", 0),))
        node_agent_pb2_grpc.add_NodeAgentServiceServicer_to_server(self, self._server)
        self.port = self.port or free_ports(1)[0]
        target = f"127.0.0.1:{self.port}"
        credentials = self._credentials()
        if credentials is None:
            self.port = self._server.add_insecure_port(target)
        else:
            self.port = self._server.add_secure_port(target, credentials)
        self._server.start()

    def stop(self) -> None:
        """Vanish at once, as kill -9 would."""
        if self._server is not None:
            self._outgoing.put(None)
            self._server.stop(grace=None).wait()
            self._server = None

    @property
    def address(self) -> str:
        return f"{'127.0.0.1' if self._certificate is None else 'localhost'}:{self.port}"

    def Connect(  # noqa: N802
        self, request_iterator: Iterator[messages.ConnectRequest], context: Any
    ) -> Iterator[messages.ConnectResponse]:
        outgoing: queue.Queue[messages.ConnectResponse | None] = queue.Queue()
        self._outgoing = outgoing
        context.add_callback(lambda: outgoing.put(None))
        threading.Thread(target=self._listen, args=(request_iterator, outgoing), daemon=True).start()
        yield messages.ConnectResponse(welcome=self.rules)
        while (message := outgoing.get()) is not None:
            yield message

    def FetchCheckpoint(  # noqa: N802
        self, request: messages.FetchCheckpointRequest, context: Any
    ) -> Iterator[messages.FetchCheckpointResponse]:
        """Has none."""
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no checkpoint")
        yield messages.FetchCheckpointResponse()

    def SendCheckpointPiece(  # noqa: N802
        self, request: messages.SendCheckpointPieceRequest, context: Any
    ) -> messages.SendCheckpointPieceResponse:
        """Nobody waits for it."""
        return messages.SendCheckpointPieceResponse(is_over=True)

    def send(self, **message: Any) -> None:
        """Send one message to the agent that connected last."""
        self._outgoing.put(messages.ConnectResponse(**message))

    def wait_for(self, find: Callable[[messages.ConnectRequest], Found | None], timeout_s: float = 240.0) -> Found:
        """The first thing that `find` finds in a message, past or to come."""
        until = time.monotonic() + timeout_s
        position = 0
        with self._changed:
            while True:
                for message in self.received[position:]:
                    found = find(message)
                    if found is not None:
                        return found
                position = len(self.received)
                if not self._changed.wait(until - time.monotonic()):
                    raise AssertionError(f"nothing of the kind among {position} messages in {timeout_s} s")

    def forget(self) -> None:
        """Look at later messages only."""
        with self._changed:
            self.received.clear()

    def wait_for_hello(self) -> messages.Hello:
        return self.wait_for(lambda message: message.hello if message.HasField("hello") else None)

    def wait_for_start(self, job_id: str, attempt: int = 1) -> messages.AttemptStarted:
        return self.wait_for(
            lambda message: (
                message.attempt_started
                if message.attempt_started.key.job_id == job_id and message.attempt_started.key.attempt == attempt
                else None
            )
        )

    def wait_for_exit(self, job_id: str, attempt: int = 1, timeout_s: float = 240.0) -> messages.AttemptExited:
        def find(message: messages.ConnectRequest) -> messages.AttemptExited | None:
            exited = message.attempt_exited
            return exited if exited.key.job_id == job_id and exited.key.attempt == attempt else None

        return self.wait_for(find, timeout_s)

    def wait_for_refusal(self, job_id: str) -> messages.CommandRefused:
        return self.wait_for(
            lambda message: message.command_refused if message.command_refused.key.job_id == job_id else None
        )

    def wait_for_observation(
        self, job_id: str, accept: Callable[[messages.AttemptObservation], bool]
    ) -> messages.AttemptObservation:
        def find(message: messages.ConnectRequest) -> messages.AttemptObservation | None:
            own = [item for item in message.heartbeat.attempts if item.key.job_id == job_id and accept(item)]
            return own[0] if own else None

        return self.wait_for(find)

    def read_log(self, read_id: str) -> bytes:
        """All chunks of one reading, once its end has come."""
        self.wait_for(lambda message: True if message.log_chunk.read_id == read_id and message.log_chunk.end else None)
        with self._changed:
            chunks = [item.log_chunk for item in self.received if item.log_chunk.read_id == read_id]
        return b"".join(chunk.chunk for chunk in chunks)

    def _credentials(self) -> grpc.ServerCredentials | None:
        if self._certificate is None:
            return None
        certificate, private_key = (path.read_bytes() for path in self._certificate)
        client_ca = None if self._client_ca is None else self._client_ca.read_bytes()
        return grpc.ssl_server_credentials([(private_key, certificate)], client_ca, client_ca is not None)

    def _listen(
        self,
        requests: Iterator[messages.ConnectRequest],
        outgoing: queue.Queue[messages.ConnectResponse | None],
    ) -> None:
        try:
            for message in requests:
                self._answer(message, outgoing)
                with self._changed:
                    self.received.append(message)
                    self._changed.notify_all()
        except grpc.RpcError:
            outgoing.put(None)

    def _answer(self, message: messages.ConnectRequest, outgoing: queue.Queue[messages.ConnectResponse | None]) -> None:
        if message.HasField("heartbeat") and self.renew:
            keys = [item.key for item in message.heartbeat.attempts]
            ack = messages.HeartbeatAck(sequence=message.heartbeat.sequence, renewed=keys)
            outgoing.put(messages.ConnectResponse(heartbeat_ack=ack))
        if message.HasField("attempt_exited") and self.store_ends:
            stored = messages.AttemptEndStored(key=message.attempt_exited.key)
            outgoing.put(messages.ConnectResponse(attempt_end_stored=stored))


def key(job_id: str, attempt: int = 1, fence: int = 1) -> messages.AttemptKey:
    """Identity of a launch."""
    return messages.AttemptKey(job_id=job_id, attempt=attempt, fence=fence)


def launch(
    job_id: str,
    command: list[str],
    gpu_id: str,
    *,
    attempt: int = 1,
    fence: int = 1,
    memory_limit_bytes: int = 0,
    granted_fences: tuple[int, ...] = (),
    **spec: Any,
) -> messages.LaunchJob:
    """An order to start a job on one device."""
    settings = resources_pb2.JobSettings(global_batch_size=64)
    return messages.LaunchJob(
        key=key(job_id, attempt, fence),
        spec=scheduling_pb2.JobSpec(name=job_id, command=command, settings=settings, **spec),
        assignments=[scheduling_pb2.Assignment(gpu_id=gpu_id)],
        micro_batch_size=16,
        accumulation_steps=4,
        granted_fences=granted_fences,
        memory_limit_bytes=memory_limit_bytes,
    )
