"""All parts of a running scheduler put together; the only place that knows every one of them."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from cotenant.access.roles import Role
from cotenant.metrics_page import MetricsPage
from scheduler_service import policy_registry
from scheduler_service.adapters.agents.agent_sessions import AgentSessions
from scheduler_service.adapters.agents.measurement_window_relay import MeasurementWindowRelay
from scheduler_service.adapters.agents.node_leases import NodeLeases
from scheduler_service.adapters.agents.progress_reports import ProgressReports
from scheduler_service.adapters.command_performer import CommandPerformer
from scheduler_service.adapters.paced_work import PacedWork
from scheduler_service.adapters.policy_fault_log import PolicyFaultLog
from scheduler_service.adapters.policy_watch import AGAIN_S, PolicyWatch, SilenceRecord, ask_again
from scheduler_service.adapters.predictor.memory_ranges import MemoryRanges
from scheduler_service.adapters.predictor.predictor_client import PredictorClient
from scheduler_service.adapters.start_forecasts import StartForecasts
from scheduler_service.adapters.storage.clock_healing import heal_clock
from scheduler_service.adapters.storage.cluster_identity import ClusterIdentity, Standstill
from scheduler_service.adapters.storage.recovery import Recovered, begin_incarnation, freeze_state, recover
from scheduler_service.adapters.storage.silence_marker import SilenceMarker
from scheduler_service.adapters.storage.sqlite_event_log import SqliteEventLog
from scheduler_service.adapters.storage.stored_policies import StoredPolicies
from scheduler_service.adapters.storage.stored_records import DATABASE_NAME
from scheduler_service.adapters.system_clock import SystemClock, read_wall_ms
from scheduler_service.adapters.tenants_file import WatchedTenants
from scheduler_service.commands.engine_maker import EngineMaker
from scheduler_service.commands.predictor_link import predictor_channel, probe_predictor
from scheduler_service.core.events import Actor, NodeDisconnected, PolicyChosen
from scheduler_service.core.queue.tenants import TenantRules
from scheduler_service.core.queue_events import TenantsChosen
from scheduler_service.core.records import ENDED_PHASES, Phase
from scheduler_service.grpc_api import policies
from scheduler_service.grpc_api.agents.node_agent_servicer import LeaseTimes, NodeAgentServicer
from scheduler_service.grpc_api.cluster_troubles import AUTHORITY, Watched, own_certificates
from scheduler_service.grpc_api.jobs.admission import Admission
from scheduler_service.grpc_api.jobs.job_watch import WatchHub
from scheduler_service.grpc_api.metrics import Metrics, serve_metrics
from scheduler_service.grpc_api.scheduling_servicer import Cluster, SchedulingServicer
from scheduler_service.grpc_api.server import GrpcServer
from scheduler_service.live_loop import LiveLoop
from scheduler_service.policy_registry import BUILDING, POLICIES
from scheduler_service.settings import Settings

_log = logging.getLogger(__name__)

# Timers, leases and thinned-out progress are looked at this often.
TICK_S = 0.1


class RunningScheduler:
    """One scheduler from recovery to drain."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._server = GrpcServer(
            address=settings.address,
            tls=settings,
            reflects=settings.reflection,
        )
        policies.effective_parameters(settings.policy, {})
        self._tenants = WatchedTenants(settings.tenants) if settings.tenants is not None else None
        self._pace = PacedWork()
        self._log = SqliteEventLog(Path(settings.state_dir), pace=self._pace)
        self._silence_marker = SilenceMarker(Path(settings.state_dir), self._log.identity.state_id)
        self._metrics_page: MetricsPage | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._sessions = AgentSessions()
        self._watch_hub: WatchHub | None = None
        self._loop: LiveLoop | None = None
        self._predictor: PredictorClient | None = None
        self._ranges: MemoryRanges | None = None
        self._forecasts: StartForecasts | None = None
        self._identity = ClusterIdentity()
        self._standstill = Standstill(begun=self._store_behind)
        self._noting: set[asyncio.Task[None]] = set()
        replacement = settings.policy if settings.replace_missing_policy else ""
        self._policies = StoredPolicies(policy_registry.make_policy, replacement=replacement)
        self._is_policy_replaced = False
        deadline_ms = min(settings.policy_deadline_ms, settings.lease_ms // 2)
        self.policy_watch = PolicyWatch(
            self._policy_name,
            deadline_s=deadline_ms / 1000,
            mark=self._silence_marker.mark,
            doors=BUILDING,
        )

    def _policy_name(self) -> str:
        return self._loop.engine.state.policy if self._loop is not None else "of the stored state"

    async def start(self) -> Mapping[str, object]:
        """Recover, then serve.

        Returns:
            address and metrics_address as they were bound, and pid.

        Raises:
            SettingsError: An address or file is unusable.
            StateError: The log is not whole.
        """
        recovered = self._recover()
        clock = SystemClock(not_before_ms=recovered.last_at_ms)
        settings, sessions = self._settings, self._sessions
        deadline_s = settings.predictor_deadline_ms / 1000
        channel = predictor_channel(settings)
        predictor = self._predictor = PredictorClient(
            channel, deadline_s=deadline_s, look=lambda: probe_predictor(settings)
        )
        windows = MeasurementWindowRelay(channel, deadline_s=deadline_s)
        loop = self._loop = self._make_loop(recovered, clock, sessions, predictor)
        watch_hub = self._watch_hub = WatchHub(state=lambda: loop.engine.state)
        metrics = Metrics(
            state=lambda: loop.engine.state,
            sessions=sessions,
            now_ms=clock.now_ms,
            storage_failure=lambda: loop.storage_failure,
        )
        faults, forecasts = PolicyFaultLog(state=lambda: loop.engine.state), self._make_forecasts(loop)
        loop.observers = (metrics, watch_hub, faults, forecasts, self._make_silence_record(loop, recovered))
        self._ranges = MemoryRanges(predictor, deadline_s=deadline_s)
        admission = Admission(sessions=sessions, ranges=self._ranges, sees_files=settings.sees_files)
        agents = self._make_agents(loop, sessions, windows, admission)
        self._tell_first_facts(loop)
        loop.perform_all(loop.engine.reissue())
        cluster = Cluster(
            loop=loop,
            numbers=recovered.numbers,
            sessions=sessions,
            predictor=predictor,
            watch_hub=watch_hub,
            admission=admission,
            has_trials=settings.trials,
            identity=self._identity,
            standstill=self._standstill,
            store_confirmation=self._log.identity.confirm,
            forecasts=forecasts,
            watched=self._watched(loop, predictor),
        )
        self._spawn(loop.run())
        if settings.predictor:
            for work in (predictor.send_outcomes(), predictor.watch(), windows.run()):
                self._spawn(work)
        self._spawn(_tick(loop, agents, watch_hub))
        self._spawn(ask_again(loop.engine, loop.tell, POLICIES, pause_s=AGAIN_S))
        self._follow_tenants(loop)
        if settings.metrics_address:
            failure = partial(self._failure, loop)
            self._metrics_page = serve_metrics(settings.metrics_address, metrics.registry, failure)
        await self._server.start(SchedulingServicer(cluster), agents)
        return self._report(recovered)

    def _failure(self, loop: LiveLoop) -> str:
        """Return why it is not ready; empty = it is."""
        return loop.storage_failure or self._standstill.message or self.policy_watch.overdue

    def _make_silence_record(self, loop: LiveLoop, recovered: Recovered) -> SilenceRecord:
        record = SilenceRecord(loop.engine, lambda: loop.sequence, loop.note, self._silence_marker)
        record.begin(recovered.silences)
        return record

    def _recover(self) -> Recovered:
        engines = EngineMaker(settings=self._settings, make_policy=self._policies.make)
        place = str(Path(self._settings.state_dir) / DATABASE_NAME)
        self.policy_watch.is_replaying = True
        recovered = recover(
            self._log,
            new_engine=engines.new,
            restored_engine=engines.restored,
            place=place,
            marker=self._silence_marker,
        )
        self.policy_watch.is_replaying = False
        self._is_policy_replaced = self._policies.check_replayed(recovered.engine.policy, place)
        if recovered.numbers.last:
            # A state of an older version, or one whose marker was removed.
            self._log.mark_used()
        self._begin_generation(recovered)
        healed = heal_clock(
            self._log,
            recovered,
            wall_ms=read_wall_ms(),
            retained_events=self._settings.retained_events,
            restored_engine=engines.restored,
        )
        lost_after_ms = self._make_leases().lost_after_ms
        return begin_incarnation(self._log, healed, self._identity, wall_ms=read_wall_ms(), lost_after_ms=lost_after_ms)

    def _make_leases(self) -> NodeLeases:
        settings = self._settings
        return NodeLeases(
            lease_ms=settings.lease_ms, grace_ms=settings.grace_ms, margin_ratio=settings.lease_margin_ratio
        )

    def _begin_generation(self, recovered: Recovered) -> None:
        """Count this start, before anything is stored or said to an agent, and look whether this state may act."""
        stored = self._log.identity
        self._identity = stored.begin_generation(
            next_fence=recovered.engine.state.next_fence, sequence=recovered.sequence
        )
        if stored.behind:
            self._standstill.fall_behind(stored.behind)
        elif stored.awaits_confirmation:
            self._standstill.await_confirmation()

    def _store_behind(self, finding: str) -> None:
        """Note that this state is behind; whatever is appended to it later would hide that from the next start."""
        if self._loop is None:
            return
        self._sessions.close_all()
        noting = asyncio.ensure_future(self._loop.store_apart(lambda: self._log.identity.note_behind(finding)))
        self._noting.add(noting)
        noting.add_done_callback(self._noting.discard)

    def _make_loop(
        self, recovered: Recovered, clock: SystemClock, sessions: AgentSessions, predictor: PredictorClient
    ) -> LiveLoop:
        engine = recovered.engine
        performer = CommandPerformer(
            sessions=sessions,
            predictor=predictor,
            launch_of=lambda job_id: engine.state.jobs[job_id].submission.launch if job_id in engine.state.jobs else {},
            deliver=lambda event: loop.note(event),
            identity=self._identity,
            sequence=lambda: loop.sequence,
        )
        loop = LiveLoop(
            engine=engine,
            log=self._log,
            clock=clock,
            perform=performer.perform,
            sequence=recovered.sequence,
            freeze_state=lambda: freeze_state(engine, recovered.numbers, self._pace),
            snapshot_every_events=self._settings.snapshot_every_events,
            retained_events=self._settings.retained_events,
            refusal=lambda: self._standstill.refusal,
        )
        return loop

    def _make_forecasts(self, loop: LiveLoop) -> StartForecasts:
        state = loop.engine.state
        self._forecasts = StartForecasts(
            folder=Path(self._settings.state_dir) / "forecasts",
            freeze=loop.engine.freeze,
            now_ms=loop.clock.now_ms,
            living_jobs=lambda: sum(len(state.in_phase(phase)) for phase in Phase if phase not in ENDED_PHASES),
            report_interval_ms=self._settings.heartbeat_ms,
        )
        return self._forecasts

    def _make_agents(
        self, loop: LiveLoop, sessions: AgentSessions, windows: MeasurementWindowRelay, admission: Admission
    ) -> NodeAgentServicer:
        settings = self._settings
        times = LeaseTimes(heartbeat_ms=settings.heartbeat_ms, lease_ms=settings.lease_ms, grace_ms=settings.grace_ms)
        leases = self._make_leases()
        for node_id in loop.engine.state.nodes:
            # Its last renewal is unknown, but it was before now.
            leases.renew(node_id, now_ms=loop.clock.now_ms())
        return NodeAgentServicer(
            loop=loop,
            sessions=sessions,
            leases=leases,
            progress=ProgressReports(interval_ms=settings.progress_interval_ms),
            windows=windows,
            times=times,
            certificates_required=bool(settings.client_ca_file),
            is_final=admission.is_final,
            identity=self._identity,
            standstill=self._standstill,
        )

    def _tell_first_facts(self, loop: LiveLoop) -> None:
        """A new state begins with its policy, tenants are those of the settings, no agent is connected."""
        self._policies.end_replay()
        if self._is_policy_replaced:
            words = {"policy": loop.engine.state.policy, "setting": self._settings.policy}
            _log.warning("missing_policy_replaced", extra=words)
        if loop.sequence == 0 or self._is_policy_replaced:
            loop.note(PolicyChosen(at_ms=0, policy=self._settings.policy, actor=Actor(role=Role.SCHEDULER)))
        elif loop.engine.state.policy != self._settings.policy:
            _log.warning(
                "stored_policy_kept",
                extra={
                    "policy": loop.engine.state.policy,
                    "setting": self._settings.policy,
                    "remedy": "choose another one with `cotenant policies use`",
                },
            )
        rules = self._tenants.rules() if self._tenants is not None else None
        if loop.engine.state.tenants.rules != rules:
            loop.note(_chosen(rules))
        for node in loop.engine.state.nodes.values():
            if node.connected:
                loop.note(NodeDisconnected(at_ms=0, node_id=node.node_id))

    def _watched(self, loop: LiveLoop, predictor: PredictorClient) -> Watched:
        settings, tenants, server = self._settings, self._tenants, self._server

        def list_faults() -> list[str]:
            return [*filter(None, [tenants.fault() if tenants is not None else ""]), *server.list_faults()]

        files = {"the scheduler": settings.tls_certificate_file, AUTHORITY: settings.client_ca_file}
        return Watched(
            storage_failure=lambda: loop.storage_failure,
            list_faults=list_faults,
            predictor_fault=lambda: predictor.fault,
            certificates=own_certificates(files),
            wall_ms=read_wall_ms,
        )

    def _follow_tenants(self, loop: LiveLoop) -> None:
        if self._tenants is not None:
            tenants = loop.engine.state.tenants
            self._spawn(self._tenants.follow(lambda: tenants.rules, lambda rules: loop.tell(_chosen(rules))))

    def _report(self, recovered: Recovered) -> Mapping[str, object]:
        addresses = {
            "address": self._server.address,
            "metrics_address": self._metrics_page.address if self._metrics_page is not None else "",
            "pid": os.getpid(),
        }
        place = {"incarnation_id": self._identity.incarnation_id, "event_id": recovered.sequence}
        for plugin in policy_registry.unusable_plugins():
            fault = {"policy": plugin.name, "package": plugin.package, "reason": plugin.fault}
            _log.warning("policy_not_offered", extra=fault)
        _log.info("serving", extra={**addresses, **place})
        return addresses

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(work))

    async def wait_for(self, ending: asyncio.Event) -> None:
        """Return when asked to end.

        Raises:
            Exception: A part of the scheduler has failed; going on would be worse than starting again.
        """
        waiting = asyncio.create_task(ending.wait())
        try:
            done, _ = await asyncio.wait({waiting, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            waiting.cancel()

    async def stop(self) -> None:
        """Refuse new calls, let those under way end, store what is known, close."""
        _log.info("stopping")
        # Streams never end by themselves, and the drain shall only wait for what does.
        self._sessions.close_all()
        if self._watch_hub is not None:
            self._watch_hub.close()
        await self._server.stop(grace_s=self._settings.drain_ms / 1000)
        if self._ranges is not None:
            await self._ranges.close()
        if self._forecasts is not None:
            await self._forecasts.close()
        if self._predictor is not None:
            await self._predictor.close()
        if self._loop is not None:
            await self._end_loop(self._loop)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._metrics_page is not None:
            await asyncio.to_thread(self._metrics_page.stop)
        self._log.close()
        _log.info("stopped")

    async def _end_loop(self, loop: LiveLoop) -> None:
        self._pace.hurry()
        loop.close()
        if not self._tasks:
            return
        running = self._tasks[0]
        await asyncio.wait({running}, timeout=self._settings.drain_ms / 1000)
        if running.done() and running.exception() is None and not loop.storage_failure:
            await loop.store_snapshot()


def _chosen(rules: TenantRules | None) -> TenantsChosen:
    return TenantsChosen(at_ms=0, rules=rules, actor=Actor(role=Role.SCHEDULER))


async def _tick(loop: LiveLoop, agents: NodeAgentServicer, watch_hub: WatchHub) -> None:
    while True:
        await asyncio.sleep(TICK_S)
        loop.fire_timers()
        agents.tick()
        watch_hub.batch_handled()
