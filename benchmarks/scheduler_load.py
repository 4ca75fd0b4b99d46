"""What a scheduler answers under load: submissions at a fixed rate into a long queue, agents and watchers beside them.

    python -m benchmarks.scheduler_load [--queue 5000] [--agents 100] [--watchers 50] [--seconds 60] [--cancels 3700]

One client process plays everyone; the scheduler is a process of its own, with policy horus. Calls are made when they
are due, whether or not earlier ones were answered, and are timed from when they were due. The same rate to an idle
scheduler in the same run says what the machine itself costs. Prints JSON; CPU is the scheduler's own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import grpc

from cotenant.v1 import node_agent_pb2, node_agent_pb2_grpc, scheduling_pb2, scheduling_pb2_grpc
from tests.support.interruptions import unwind_when_ended

RATE_PER_S = 20
EXPLAINS_AT_ONCE = 30
GPUS_PER_AGENT = 8
GIB = 2**30
_CHANNELS = 8
_FILL_AT_ONCE = 64
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How much: jobs that wait, agents of eight GPUs, watchers, seconds of submissions, cancellations."""

    queue: int = 5_000
    agents: int = 100
    watchers: int = 50
    seconds: float = 60.0
    cancels: int = 3_700


@dataclass(slots=True, kw_only=True)
class Scheduler:
    """A scheduler process on a state of its own."""

    folder: Path
    process: subprocess.Popen[bytes] = field(init=False)
    address: str = ""

    def __enter__(self) -> Scheduler:
        ready = self.folder / "ready.json"
        command = [sys.executable, "-m", "scheduler_service", "serve", "--policy", "horus", "--log-level", "WARNING"]
        command += ["--address", "127.0.0.1:0", "--metrics-address", "", "--state-dir", str(self.folder / "state")]
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen([*command, "--ready-file", str(ready)], stdout=log, stderr=log)
        while not ready.exists():
            if self.process.poll() is not None:
                raise RuntimeError((self.folder / "log").read_text())
            time.sleep(0.05)
        self.address = json.loads(ready.read_text())["address"]
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def cpu_s(self) -> float:
        """Return the processor time used so far, in seconds."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS


class Agent:
    """Speaks for one node: holds what it is told to launch, and notes how long heartbeats wait for their answer."""

    def __init__(self, number: int, channel: grpc.aio.Channel) -> None:
        self._node_id = f"node-{number:03}"
        self._stub = node_agent_pb2_grpc.NodeAgentServiceStub(channel)
        self._outbound: asyncio.Queue[node_agent_pb2.ConnectRequest] = asyncio.Queue()
        self._sent_at: dict[int, float] = {}
        self._held: dict[tuple[str, int, int], node_agent_pb2.AttemptKey] = {}
        self.joined = asyncio.Event()
        self.waits: list[tuple[float, float]] = []

    def longest_wait_ms(self, *, since: float) -> float:
        """Return the longest wait for an answer, of heartbeats sent since then; those unanswered have waited too."""
        now = time.perf_counter()
        waiting = [now - sent for sent in self._sent_at.values() if sent >= since]
        return 1_000 * max([*waiting, *(wait for sent, wait in self.waits if sent >= since)], default=0.0)

    async def run(self) -> None:
        """Converse until cancelled."""
        await self._outbound.put(node_agent_pb2.ConnectRequest(hello=self._hello()))
        beating: asyncio.Task[None] | None = None
        try:
            async for message in self._stub.Connect(self._messages()):
                kind = message.WhichOneof("message")
                if kind == "welcome":
                    self.joined.set()
                    beating = asyncio.create_task(self._beat(message.welcome.heartbeat_ms / 1_000))
                elif kind == "heartbeat_ack":
                    sent = self._sent_at.pop(message.heartbeat_ack.sequence)
                    self.waits.append((sent, time.perf_counter() - sent))
                elif kind == "launch_job":
                    key = message.launch_job.key
                    self._held[key.job_id, key.attempt, key.fence] = key
                    started = node_agent_pb2.AttemptStarted(key=key)
                    await self._outbound.put(node_agent_pb2.ConnectRequest(attempt_started=started))
        finally:
            if beating is not None:
                beating.cancel()

    async def _messages(self) -> AsyncIterator[node_agent_pb2.ConnectRequest]:
        while True:
            yield await self._outbound.get()

    async def _beat(self, interval_s: float) -> None:
        sequence = 0
        while True:
            await asyncio.sleep(interval_s)
            sequence += 1
            self._sent_at[sequence] = time.perf_counter()
            attempts = [
                node_agent_pb2.AttemptObservation(key=key, steps_done=sequence, window_steps=1, window_ms=1_000)
                for key in self._held.values()
            ]
            heartbeat = node_agent_pb2.Heartbeat(sequence=sequence, attempts=attempts)
            await self._outbound.put(node_agent_pb2.ConnectRequest(heartbeat=heartbeat))

    def _hello(self) -> node_agent_pb2.Hello:
        gpus = [
            node_agent_pb2.AgentGpu(
                gpu_id=f"{self._node_id}.{index}", device="a100", memory_bytes=80 * GIB, healthy=True, index=index
            )
            for index in range(GPUS_PER_AGENT)
        ]
        return node_agent_pb2.Hello(node_id=self._node_id, instance_id=self._node_id, boot_id="boot", gpus=gpus)


class Client:
    """Users and watchers of one scheduler."""

    def __init__(self, address: str) -> None:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", 64 * 2**20)]
        self.channels = [grpc.aio.insecure_channel(address, options=options) for _ in range(_CHANNELS)]
        self.stub = scheduling_pb2_grpc.SchedulingServiceStub(self.channels[0])
        self.messages_watched = 0
        self.begun: list[asyncio.Event] = []
        self.watches_begun_again = 0
        self.missed = 0

    async def submit(self) -> str:
        """Submit a job of one GPU and return its id."""
        spec = scheduling_pb2.JobSpec(name="train", command=["train"], steps_total=10_000)
        answer = await self.stub.SubmitJob(scheduling_pb2.SubmitJobRequest(spec=spec), timeout=120)
        return str(answer.job.job_id)

    async def cancel(self, job_id: str) -> None:
        """Cancel a job."""
        await self.stub.CancelJob(scheduling_pb2.CancelJobRequest(job_id=job_id), timeout=120)

    async def explain(self, job_id: str) -> None:
        """Ask why a job waits."""
        await self.stub.ExplainJob(scheduling_pb2.ExplainJobRequest(job_id=job_id), timeout=120)

    async def list_jobs(self) -> None:
        """Ask for the longest page of jobs."""
        await self.stub.ListJobs(scheduling_pb2.ListJobsRequest(page_size=1_000), timeout=120)

    async def watch(self, channel: grpc.aio.Channel) -> None:
        """Watch all jobs, beginning again whenever the scheduler asks for it."""
        stub = scheduling_pb2_grpc.SchedulingServiceStub(channel)
        begun = asyncio.Event()
        self.begun.append(begun)
        while True:
            async for message in stub.WatchJobs(
                scheduling_pb2.WatchJobsRequest(in_batches=True, changes_in_batches=True)
            ):
                self.messages_watched += max(len(message.jobs), 1)
                if message.snapshot_end:
                    begun.set()
                self.missed += getattr(message, "missed_changes", 0)
            self.watches_begun_again += 1

    async def close(self) -> None:
        """Hang up."""
        for channel in self.channels:
            await channel.close()


async def all_of(calls: Sequence[Callable[[], Awaitable[object]]], *, at_once: int) -> list[object]:
    """Make calls, so many at a time."""
    gate = asyncio.Semaphore(at_once)

    async def one(call: Callable[[], Awaitable[object]]) -> object:
        async with gate:
            return await call()

    return await asyncio.gather(*(one(call) for call in calls))


async def open_loop(call: Callable[[], Awaitable[object]], seconds: float) -> dict[str, float]:
    """Call at the fixed rate, whatever is still unanswered; waits count from when a call was due."""
    waits_ms: list[float] = []
    failures = 0
    started = time.perf_counter()

    async def timed(due: float) -> None:
        nonlocal failures
        try:
            await call()
        except grpc.aio.AioRpcError:
            failures += 1
        waits_ms.append(1_000 * (time.perf_counter() - due))

    tasks = []
    for number in range(int(RATE_PER_S * seconds)):
        due = started + number / RATE_PER_S
        await asyncio.sleep(max(due - time.perf_counter(), 0))
        tasks.append(asyncio.create_task(timed(due)))
    await asyncio.gather(*tasks)
    return {"calls": len(tasks), "failures": failures, **quantiles(waits_ms)}


def quantiles(waits_ms: Sequence[float]) -> dict[str, float]:
    """Return the middle, the slow end and the worst of some waits."""
    ordered = sorted(waits_ms)
    picked = {"p50_ms": 0.5, "p99_ms": 0.99, "worst_ms": 1.0}
    return {name: round(ordered[min(int(part * len(ordered)), len(ordered) - 1)], 1) for name, part in picked.items()}


async def measure_idle(folder: Path, seconds: float) -> dict[str, float]:
    """Submit at the same rate to a scheduler without nodes, queue or watchers."""
    with Scheduler(folder=folder) as scheduler:
        client = Client(scheduler.address)
        await client.submit()
        before_s = scheduler.cpu_s()
        found = await open_loop(client.submit, seconds)
        found["cpu_ms_per_call"] = round(1_000 * (scheduler.cpu_s() - before_s) / found["calls"], 2)
        await client.close()
        return found


async def measure_loaded(folder: Path, load: Load) -> dict[str, object]:
    """Fill a cluster, then submit, explain, list and cancel."""
    with Scheduler(folder=folder) as scheduler:
        client = Client(scheduler.address)
        agents = [Agent(number, client.channels[number % _CHANNELS]) for number in range(load.agents)]
        tasks = [asyncio.create_task(agent.run()) for agent in agents]
        await asyncio.gather(*(agent.joined.wait() for agent in agents))
        filling = load.agents * GPUS_PER_AGENT + load.queue
        before_s = scheduler.cpu_s()
        job_ids = [str(one) for one in await all_of([client.submit] * filling, at_once=_FILL_AT_ONCE)]
        figures: dict[str, object] = {"fill": {"calls": filling, **_cpu(scheduler, before_s, filling)}}
        tasks += [
            asyncio.create_task(client.watch(client.channels[number % _CHANNELS])) for number in range(load.watchers)
        ]
        figures |= await _phases(scheduler, client, agents, load, job_ids[-load.queue :])
        failed = [task.exception() for task in tasks if task.done() and not task.cancelled()]
        figures["streams_failed"] = [str(error)[:200] for error in failed if error is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await client.close()
        return figures


async def _phases(
    scheduler: Scheduler, client: Client, agents: Sequence[Agent], load: Load, waiting: Sequence[str]
) -> dict[str, object]:
    figures: dict[str, object] = {}

    async def phase(name: str, work: Awaitable[dict[str, float]]) -> None:
        sys.stderr.write(f"{name}\n")
        started, before_s, watched = time.perf_counter(), scheduler.cpu_s(), client.messages_watched
        found = await work
        figures[name] = {
            **found,
            **_cpu(scheduler, before_s, int(found["calls"])),
            "wall_s": round(time.perf_counter() - started, 2),
            "messages_watched": client.messages_watched - watched,
            "longest_heartbeat_wait_ms": round(max(agent.longest_wait_ms(since=started) for agent in agents), 1),
        }

    async def snapshots() -> dict[str, float]:
        await asyncio.sleep(0)
        await asyncio.gather(*(begun.wait() for begun in client.begun))
        return {"calls": load.watchers}

    async def rest() -> dict[str, float]:
        await asyncio.sleep(5)
        return {"calls": 1}

    await phase("snapshots_of_watchers", snapshots())
    await phase("rest", rest())
    await phase("submits", open_loop(client.submit, load.seconds))
    await phase("explains", _timed([partial(client.explain, job_id) for job_id in waiting[-EXPLAINS_AT_ONCE:]]))
    await phase("lists", _timed([client.list_jobs] * EXPLAINS_AT_ONCE))
    cancels = [partial(client.cancel, job_id) for job_id in waiting[: load.cancels]]
    half = len(cancels) // 2
    await phase("cancels_first_half", _one_by_one(cancels[:half]))
    await phase("cancels_second_half", _one_by_one(cancels[half:]))
    figures["watchers"] = {
        "messages": client.messages_watched,
        "begun_again": client.watches_begun_again,
        "missed_changes": client.missed,
    }
    return figures


async def _timed(calls: Sequence[Callable[[], Awaitable[object]]]) -> dict[str, float]:
    """Make calls all at once."""
    waits_ms: list[float] = []
    failures = 0
    started = time.perf_counter()

    async def one(call: Callable[[], Awaitable[object]]) -> None:
        nonlocal failures
        try:
            await call()
        except grpc.aio.AioRpcError:
            failures += 1
        waits_ms.append(1_000 * (time.perf_counter() - started))

    await asyncio.gather(*(one(call) for call in calls))
    return {"calls": len(calls), "failures": failures, **quantiles(waits_ms)}


async def _one_by_one(calls: Sequence[Callable[[], Awaitable[object]]]) -> dict[str, float]:
    """Make calls one after the other, as a script does: no two share a batch."""
    waits_ms = []
    for call in calls:
        started = time.perf_counter()
        await call()
        waits_ms.append(1_000 * (time.perf_counter() - started))
    return {"calls": len(calls), **quantiles(waits_ms)}


def _cpu(scheduler: Scheduler, before_s: float, calls: int) -> dict[str, float]:
    used_s = scheduler.cpu_s() - before_s
    return {"cpu_s": round(used_s, 2), "cpu_ms_per_call": round(1_000 * used_s / max(calls, 1), 2)}


def main(load: Load | None = None) -> dict[str, object]:
    """Measure an idle scheduler, then a loaded one."""
    load = load or Load()
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name) / "idle", Path(name) / "loaded"]
        for folder in folders:
            folder.mkdir()
        idle = asyncio.run(measure_idle(folders[0], min(load.seconds, 10.0)))
        loaded = asyncio.run(measure_loaded(folders[1], load))
    return {"load_1_min": round(os.getloadavg()[0], 2), "idle": idle, "loaded": loaded}


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("queue", 5_000), ("agents", 100), ("watchers", 50), ("cancels", 3_700)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--seconds", type=float, default=60.0)
    print(json.dumps(main(Load(**vars(parser.parse_args()))), indent=2))


if __name__ == "__main__":
    unwind_when_ended()
    _main()
