"""A node agent that runs nothing: it speaks the contract, keeps job directories in memory, and obeys a test."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import TracebackType

import grpc

from cotenant.v1 import node_agent_pb2, node_agent_pb2_grpc, resources_pb2

Key = tuple[str, int, int]
GIB = 1024**3


@dataclass
class FakeAttempt:
    """One attempt as its job directory would describe it."""

    key: node_agent_pb2.AttemptKey
    launch: node_agent_pb2.LaunchJob
    steps_done: int = 0
    exited: node_agent_pb2.AttemptExited | None = None


@dataclass
class FakeAgent:
    """Dials a scheduler again and again until closed.

    Attributes:
        steps_per_heartbeat: Work that every running attempt does between two heartbeats.
        launched: Every attempt ever started here, in order; a repeated order starts nothing.
        logs: What `ReadLog` answers with.
        windows: What every heartbeat carries.
        launch_rules: What the Hello says that this node runs; None = it does not say.
        sharing: What the Hello says of how jobs share its devices.
    """

    address: str
    node_id: str = "node-1"
    gpus: int = 1
    device: str = "fake-gpu"
    heartbeat_s: float = 0.05
    steps_per_heartbeat: int = 2
    step_ms: int = 20
    refuse: Callable[[node_agent_pb2.LaunchJob], str] = lambda launch: ""
    attempts: dict[Key, FakeAttempt] = field(default_factory=dict)
    launched: list[Key] = field(default_factory=list)
    stopped: list[Key] = field(default_factory=list)
    renewed: set[Key] = field(default_factory=set)
    ends_stored: set[Key] = field(default_factory=set)
    logs: bytes = b"hello from the job\n"
    errors: list[str] = field(default_factory=list)
    windows: list[resources_pb2.MeasurementWindow] = field(default_factory=list)
    no_profiles: bool = False
    instance_id: str = ""
    launch_rules: node_agent_pb2.LaunchRules | None = None
    sharing: resources_pb2.DeviceSharing.ValueType = resources_pb2.DEVICE_SHARING_UNSPECIFIED
    hellos: int = 0
    acks: int = 0

    def __post_init__(self) -> None:
        self._closing = threading.Event()
        self._silent = threading.Event()
        self._lock = threading.RLock()
        self._outbound: queue.Queue[node_agent_pb2.ConnectRequest | None] = queue.Queue()
        self._thread = threading.Thread(target=self._dial, daemon=True)
        self._call: grpc.Call | None = None

    def __enter__(self) -> FakeAgent:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self.cut()
        self._thread.join(timeout=90)

    def cut(self) -> None:
        """Break the stream once."""
        call = self._call
        if call is not None:
            call.cancel()

    def go_away(self) -> None:
        """Break the stream and stay away until `come_back`."""
        self._silent.set()
        self.cut()

    def come_back(self) -> None:
        self._silent.clear()

    def finish(self, key: Key, *, exit_class: str = "done", steps_done: int | None = None) -> None:
        """End an attempt."""
        with self._lock:
            attempt = self.attempts[key]
            attempt.exited = node_agent_pb2.AttemptExited(
                key=attempt.key,
                exit_class=exit_class,
                steps_done=attempt.launch.spec.steps_total if steps_done is None else steps_done,
                checkpoint_step=-1,
                memory_peak_bytes=123,
            )
            self._say(attempt_exited=attempt.exited)

    def say(self, **message: object) -> None:
        """Send any message, also one that is not true."""
        with self._lock:
            self._say(**message)

    def running(self) -> list[Key]:
        with self._lock:
            return [key for key, attempt in self.attempts.items() if attempt.exited is None]

    def _dial(self) -> None:
        while not self._closing.is_set():
            if self._silent.is_set():
                self._closing.wait(0.02)
                continue
            with grpc.insecure_channel(self.address) as channel:
                try:
                    self._converse(node_agent_pb2_grpc.NodeAgentServiceStub(channel))
                except grpc.RpcError as error:
                    if status_of(error) not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
                        self.errors.append(str(error))
            self._closing.wait(0.05)

    def _converse(self, stub: node_agent_pb2_grpc.NodeAgentServiceStub) -> None:
        with self._lock:
            outbound: queue.Queue[node_agent_pb2.ConnectRequest | None] = queue.Queue()
            self._outbound = outbound
            self._say(hello=self._hello())
        ended = threading.Event()
        beating = threading.Thread(target=self._beat, args=(ended,), daemon=True)
        call = stub.Connect(iter(outbound.get, None))
        self._call = call
        if self._closing.is_set() or self._silent.is_set():
            call.cancel()  # `cut` was called meanwhile, and has broken the stream before this one
        try:
            beating.start()
            for message in call:
                self._obey(message)
        finally:
            ended.set()
            outbound.put(None)
            beating.join()

    def _say(self, **message: object) -> None:
        self._outbound.put(node_agent_pb2.ConnectRequest(**message))  # type: ignore[arg-type]

    def _hello(self) -> node_agent_pb2.Hello:
        self.hellos += 1
        return node_agent_pb2.Hello(
            node_id=self.node_id,
            instance_id=self.instance_id,
            boot_id="boot",
            agent_version="fake",
            cpu_cores=8,
            host_memory_bytes=64 * GIB,
            no_profiles=self.no_profiles,
            launch_rules=self.launch_rules,
            gpus=[
                node_agent_pb2.AgentGpu(
                    gpu_id=f"{self.node_id}-gpu-{index}",
                    device=self.device,
                    memory_bytes=16 * GIB,
                    healthy=True,
                    index=index,
                    sharing=self.sharing,
                )
                for index in range(self.gpus)
            ],
            attempts=[
                node_agent_pb2.AttemptStatus(
                    key=attempt.key,
                    state=node_agent_pb2.ATTEMPT_STATE_ENDED
                    if attempt.exited
                    else node_agent_pb2.ATTEMPT_STATE_RUNNING,
                    gpu_ids=[assignment.gpu_id for assignment in attempt.launch.assignments],
                    steps_done=attempt.steps_done,
                    exited=attempt.exited,
                )
                for attempt in self.attempts.values()
            ],
        )

    def _beat(self, ended: threading.Event) -> None:
        sequence = 0
        while not ended.wait(self.heartbeat_s):
            sequence += 1
            with self._lock:
                observations = list(self._observations())
                gpus = [
                    node_agent_pb2.GpuObservation(
                        gpu_id=f"{self.node_id}-gpu-{index}", healthy=True, memory_used_bytes=7
                    )
                    for index in range(self.gpus)
                ]
                self._say(
                    heartbeat=node_agent_pb2.Heartbeat(
                        sequence=sequence, attempts=observations, gpus=gpus, measurement_windows=self.windows
                    )
                )

    def _observations(self) -> Iterator[node_agent_pb2.AttemptObservation]:
        for attempt in self.attempts.values():
            if attempt.exited is None:
                total = attempt.launch.spec.steps_total
                steps = min(self.steps_per_heartbeat, total - 1 - attempt.steps_done)
                attempt.steps_done += steps
                yield node_agent_pb2.AttemptObservation(
                    key=attempt.key,
                    steps_done=attempt.steps_done,
                    window_steps=steps,
                    window_ms=steps * self.step_ms,
                    utilization_ratio=0.5,
                    memory_bytes=GIB,
                    memory_peak_bytes=GIB,
                    checkpoint_step=-1,
                )

    def _obey(self, message: node_agent_pb2.ConnectResponse) -> None:
        with self._lock:
            match message.WhichOneof("message"):
                case "launch_job":
                    self._launch(message.launch_job)
                case "stop_job":
                    self._stop(message.stop_job)
                case "heartbeat_ack":
                    self.acks += 1
                    self.renewed = {identity(key) for key in message.heartbeat_ack.renewed}
                case "attempt_end_stored":
                    key = identity(message.attempt_end_stored.key)
                    self.ends_stored.add(key)
                    self.attempts.pop(key, None)
                case "read_log":
                    self._read_log(message.read_log)

    def _launch(self, launch: node_agent_pb2.LaunchJob) -> None:
        key = identity(launch.key)
        refusal = self.refuse(launch)
        if refusal:
            self._say(command_refused=node_agent_pb2.CommandRefused(key=launch.key, code=refusal, message="told to"))
            return
        if key not in self.launched:
            self.launched.append(key)
            self.attempts[key] = FakeAttempt(key=launch.key, launch=launch, steps_done=launch.steps_done)
        self._say(attempt_started=node_agent_pb2.AttemptStarted(key=launch.key))

    def _stop(self, stop: node_agent_pb2.StopJob) -> None:
        key = identity(stop.key)
        self.stopped.append(key)
        attempt = self.attempts.get(key)
        if attempt is None:
            refused = node_agent_pb2.CommandRefused(key=stop.key, code="NO_SUCH_ATTEMPT", message="not here")
            self._say(command_refused=refused)
        elif attempt.exited is None:
            self.finish(key, exit_class="stopped", steps_done=attempt.steps_done)

    def _read_log(self, order: node_agent_pb2.ReadLog) -> None:
        if order.cancel:
            return
        wanted = self.logs[-order.tail_bytes :] if order.tail_bytes else self.logs
        for start in range(0, len(wanted), 65536):
            chunk = wanted[start : start + 65536]
            self._say(log_chunk=node_agent_pb2.LogChunk(read_id=order.read_id, chunk=chunk))
        if not order.follow:
            self._say(log_chunk=node_agent_pb2.LogChunk(read_id=order.read_id, end=True))


def status_of(error: Exception) -> grpc.StatusCode | None:
    return error.code() if isinstance(error, grpc.Call) else None


def identity(key: node_agent_pb2.AttemptKey) -> Key:
    return key.job_id, key.attempt, key.fence
