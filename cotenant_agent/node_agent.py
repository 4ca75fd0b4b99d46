"""The agent's loop: look after attempts and devices all the time, talk to the scheduler whenever it is there."""

from __future__ import annotations

import asyncio
import logging
import os
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import grpc

import cotenant
from cotenant.v1 import node_agent_pb2 as messages
from cotenant.v1.node_agent_pb2_grpc import NodeAgentServiceStub
from cotenant_agent.attempts.attempt_table import AttemptTable
from cotenant_agent.attempts.early_attempts import with_devices
from cotenant_agent.attempts.pausing_means import way_of_sharing
from cotenant_agent.checkpointing.checkpoint_transfers import GANG_TRANSFERS, CheckpointTransfers
from cotenant_agent.cluster_membership import ClusterMembership
from cotenant_agent.conversation import Conversation, is_free
from cotenant_agent.devices.calibration import Calibrations
from cotenant_agent.devices.gpu_inventory import GpuInventory
from cotenant_agent.devices.measurement_windows import MeasurementWindowRecorder
from cotenant_agent.errors import ClusterRefusedError, DeviceError
from cotenant_agent.isolation.allow_list import AllowList
from cotenant_agent.machine import read_machine_id
from cotenant_agent.metrics import AgentMetrics
from cotenant_agent.processes import read_boot_id
from cotenant_agent.protocol import gpu_to_message, position_to_message, rules_to_message, status_to_message
from cotenant_agent.ranks.rendezvous_addresses import find_own_address
from cotenant_agent.records import GpuDescription, GpuReading
from cotenant_agent.scheduler_link import (
    JOIN_REFUSED,
    LinkSettings,
    Pauses,
    open_channel,
    requested_pause_s,
    tls_mismatch,
)
from cotenant_agent.storage.durable_files import write_json
from cotenant_agent.storage.state_disk import StateDisk
from cotenant_agent.system_clock import boot_ms, steady_ns

_log = logging.getLogger(__name__)
_Gpu = TypeVar("_Gpu", GpuDescription, GpuReading)

_TICK_S = 0.1
_STANDSTILL_NS = 2_000_000_000
"""An agent that did not look for so long stood still: it looks ten times a second."""
_STOP_ALL_TICKS = 1200
# For the scheduler's word that it has the ends; without it the jobs wait until their node is given up.
_STORED_TICKS = 100
_LEAVING = "the agent ends its jobs and leaves"
# Between two tries to join a scheduler that this node does not obey: only a person can change that.
_REFUSED_PAUSE_S = 5.0
# The scheduler answered, and will answer the same again.
_REFUSALS = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRules:
    """How this agent behaves.

    Attributes:
        instance_id: Drawn for this process, to distinguish a second agent with the same node id.
        enforcements: What Hello claims, all of it probed.
        rendezvous_address: Where other nodes reach ranks that run here; empty = from where it dials the scheduler.
        storage_id: Of its checkpoints, where other nodes see them too; empty = they do not.
        allow_list: What it runs; None = left out of the Hello.
    """

    node_id: str
    instance_id: str = ""
    allow_list: AllowList | None = None
    rack_id: str = ""
    sample_ms: int = 1000
    ready_file: str = ""
    stop_jobs_on_exit: bool = False
    seed: int = 0
    enforcements: tuple[str, ...] = ()
    rendezvous_address: str = ""
    storage_id: str = ""


class NodeAgent:
    """One running agent."""

    def __init__(
        self,
        *,
        rules: AgentRules,
        link: LinkSettings,
        table: AttemptTable,
        inventory: GpuInventory,
        windows: MeasurementWindowRecorder,
        calibrations: Calibrations,
        metrics: AgentMetrics,
        membership: ClusterMembership | None = None,
        transfers: CheckpointTransfers | None = None,
        disk: StateDisk | None = None,
    ) -> None:
        self._transfers = transfers
        self._disk = disk
        self._rules = rules
        self._membership = membership or ClusterMembership()
        self._session_secret = ""
        self._dials = 0
        self._rendezvous_address = rules.rendezvous_address
        self._link = link
        self._table = table
        self._inventory = inventory
        self._windows = windows
        self._calibrations = calibrations
        self._metrics = metrics
        self._readings: tuple[GpuReading, ...] = ()
        self._is_leaving = False
        self._looked_ns = 0
        self._conversation: Conversation | None = None
        self._pauses = Pauses(rules.seed or zlib.crc32(rules.node_id.encode()))

    async def run(self, leave: asyncio.Event) -> None:
        """Adopt running jobs and work until `leave` is set; the jobs run on unless the settings end them.

        Raises:
            SettingsError: the scheduler may not be dialled as configured.
        """
        self._table.adopt()
        self._look_after_attempts()
        works = (self._watch_attempts(), self._sample(), self._talk(), self._calibrate())
        tasks = [asyncio.create_task(work) for work in works]
        waiter = asyncio.create_task(leave.wait())
        try:
            done, _ = await asyncio.wait([*tasks, waiter], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            if self._rules.stop_jobs_on_exit:
                await self._stop_all()
        finally:
            for task in (*tasks, waiter):
                task.cancel()
            await asyncio.gather(*tasks, waiter, return_exceptions=True)
            self._table.close()

    async def _watch_attempts(self) -> None:
        while True:
            self._look_after_attempts()
            await asyncio.sleep(_TICK_S)

    def _look_after_attempts(self) -> None:
        before_ns, self._looked_ns = self._looked_ns, steady_ns()
        has_stood_still = 0 < before_ns < self._looked_ns - _STANDSTILL_NS
        for attempt in self._table:
            attempt.read_progress()
            attempt.standstills += has_stood_still
        has_news = self._note_pauses()
        started = self._table.find_started()
        ended = self._table.find_ended()
        self._windows.look([attempt.living_attempt for attempt in with_devices(self._table)], boot_ms())
        for end in ended:
            self._metrics.ends.labels(end.exit_class).inc()
        self._metrics.running.set(sum(attempt.end is None for attempt in self._table))
        if self._conversation is not None:
            for attempt in started:
                self._conversation.announce_start(attempt)
            for end in ended:
                self._conversation.announce_end(end)
            if has_news:
                self._conversation.announce_changes()
            self._conversation.announce_preparations()

    def _note_pauses(self) -> bool:
        """Close what is measured of attempts that stand still or go on; whether there is anything to tell."""
        changed = [attempt for attempt in self._table if attempt.note_pauses()]
        for attempt in changed:
            name = "attempt_paused" if attempt.pause.is_paused else "attempt_resumed"
            _log.info(name, extra={**attempt.key.fields(), "paused_ms": attempt.pause.paused_ms})
        return bool(changed) or any(attempt.pause.failure for attempt in self._table)

    async def _sample(self) -> None:
        while True:
            jobs = self._table.processes_by_attempt()
            try:
                reading = await asyncio.to_thread(self._inventory.observe, jobs)
            except DeviceError as error:
                _log.error("devices_unreadable", extra={"reason": str(error)})
            else:
                self._readings = reading.gpus
                self._table.take_reading(reading)
            await asyncio.sleep(self._rules.sample_ms / 1000)

    async def _calibrate(self) -> None:
        await self._calibrations.run(self._say_hello_again)
        # The agent ends with the first of its works.
        await asyncio.Event().wait()

    def _say_hello_again(self) -> None:
        """Let the scheduler have the inventory as it is now; a stream may end at any instant without loss."""
        if self._conversation is not None:
            self._conversation.leave()

    async def _talk(self) -> None:
        while True:
            async with open_channel(self._link) as channel:
                told_s = await self._converse(channel)
            await asyncio.sleep(max(told_s, self._pauses.next_s()))

    async def _converse(self, channel: grpc.aio.Channel) -> float:
        """Talk until the stream ends; how many seconds the scheduler wants to be left alone."""
        self._metrics.conversations.inc()
        may_span = self._rules.storage_id or GANG_TRANSFERS in self._rules.enforcements
        if may_span and not self._rules.rendezvous_address:
            # A machine that has moved has another address.
            self._rendezvous_address = await asyncio.to_thread(find_own_address, self._link.scheduler)
        self._conversation = Conversation(
            table=self._table,
            read_gpus=lambda: self._shown(self._readings),
            windows=self._windows,
            hello=self._hello,
            on_welcome=self._on_welcome,
            make_way=self._calibrations.make_way,
            metrics=self._metrics,
            membership=self._membership,
            transfers=self._transfers,
        )
        try:
            await self._conversation.hold(NodeAgentServiceStub(channel))
            _log.info("conversation_ended")
        except grpc.aio.AioRpcError as error:
            return await self._tell_failure(error)
        except TimeoutError:
            _log.warning("conversation_broken", extra={"reason": "the scheduler did not welcome this agent"})
        except ClusterRefusedError as error:
            self._metrics.joins_refused.labels("CLUSTER_REFUSED").inc()
            _log.error("join_refused", extra={"code": "CLUSTER_REFUSED", "reason": str(error)})
            return _REFUSED_PAUSE_S
        except OSError as error:
            _log.error("conversation_broken", extra={"reason": f"the state directory takes nothing: {error}"})
            return _REFUSED_PAUSE_S
        finally:
            self._conversation = None
        return 0.0

    async def _tell_failure(self, error: grpc.aio.AioRpcError) -> float:
        """Log why the stream ended; how many seconds the scheduler wants to be left alone."""
        code, reason = error.code(), error.details()
        if code not in JOIN_REFUSED:
            await self._tell_broken(error)
            return 0.0
        self._metrics.joins_refused.labels(code.name).inc()
        _log.error("join_refused", extra={"code": code.name, "reason": reason})
        return requested_pause_s(error)

    async def _tell_broken(self, error: grpc.aio.AioRpcError) -> None:
        """Log why; what only an administrator can mend is an error with its remedy, however often it is tried."""
        code, reason, remedy = error.code(), error.details() or "", ""
        if code is grpc.StatusCode.UNAVAILABLE:
            mismatch = await asyncio.to_thread(tls_mismatch, self._link)
            if mismatch is not None:
                reason, remedy = f"TLS mismatch: {mismatch.cause}", mismatch.remedy
        level = logging.ERROR if remedy or code in _REFUSALS else logging.WARNING
        _log.log(level, "conversation_broken", extra={"code": code.name, "reason": reason, "remedy": remedy})

    def _on_welcome(self, session_secret: str) -> None:
        self._session_secret = session_secret
        self._pauses.reset()
        _log.info("welcomed", extra={"scheduler": self._link.scheduler})
        if self._rules.ready_file:
            # An agent serves nothing: its address is the scheduler that welcomed it.
            write_json(Path(self._rules.ready_file), {"address": self._link.scheduler, "pid": os.getpid()})

    def _hello(self) -> messages.Hello:
        self._dials += 1
        return messages.Hello(
            dial_number=self._dials,
            node_id=self._rules.node_id,
            instance_id=self._rules.instance_id,
            boot_id=read_boot_id(),
            agent_version=cotenant.__version__,
            rack_id=self._rules.rack_id,
            cpu_cores=len(os.sched_getaffinity(0)),
            host_memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
            gpus=[
                gpu_to_message(
                    gpu, self._calibrations.of(gpu), self._calibrations.reason(gpu), way_of_sharing(gpu, os.environ)
                )
                for gpu in self._shown(self._inventory.describe())
            ],
            enforcements=self._rules.enforcements,
            no_profiles=not self._windows.collects,
            launch_rules=None if self._rules.allow_list is None else rules_to_message(self._rules.allow_list),
            attempts=[
                status_to_message(attempt)
                for attempt in self._table
                if self._membership.holds(attempt.key) and not attempt.is_early
            ],
            seen=position_to_message(self._membership.seen),
            may_change_incarnation=is_free(self._table, self._membership),
            session_secret=self._session_secret,
            machine_id=read_machine_id(),
            installation_id=self._membership.installation_id,
            rendezvous_address=self._rendezvous_address,
            storage_id=self._rules.storage_id,
        )

    def _shown(self, gpus: Iterable[_Gpu]) -> tuple[_Gpu, ...]:
        """Return what the scheduler is told of the GPUs: it gives those of an agent that leaves no new job.

        Nor those of one whose disk is full: it would refuse every job of the queue in turn.
        """
        fault = _LEAVING if self._is_leaving else self._disk.fault() if self._disk is not None else ""
        return tuple(replace(one, healthy=False, fault=fault) for one in gpus) if fault else tuple(gpus)

    async def _stop_all(self) -> None:
        """End all jobs, and stay until the scheduler has their ends: they wait again at once, and elsewhere."""
        self._is_leaving = True
        if self._conversation is not None:
            self._conversation.announce_changes()
        await self._tick(_STOP_ALL_TICKS, lambda: self._table.stop_all("agent_exit"))
        await self._tick(_STORED_TICKS, lambda: self._conversation is None or not any(self._table))

    async def _tick(self, ticks: int, is_done: Callable[[], bool]) -> None:
        for _ in range(ticks):
            if is_done():
                return
            await asyncio.sleep(_TICK_S)
