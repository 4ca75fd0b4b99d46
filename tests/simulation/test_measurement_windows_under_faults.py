"""A swarm of faults between agents and the pair table: lost, repeated, late and reordered; each window counts once."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest

from cotenant.v1 import prediction_pb2, resources_pb2
from predictor_service.grpc_api.measurement_window_answers import record_windows
from predictor_service.inference.pair_table import PairTable
from predictor_service.profile_store.measurement_window import StoredMeasurementWindow
from predictor_service.profile_store.store import ProfileStore
from tests.support.cases import sampled

AGENTS = 3
WINDOWS = 24
PER_BEAT = 5
CALM_AFTER = 200
"""Turns with faults; then everything that is still somewhere arrives."""
GRAPHS = ("aa" * 32, "bb" * 32, "cc" * 32)


def job(number: int) -> resources_pb2.MeasuredJob:
    return resources_pb2.MeasuredJob(
        graph_sha256=GRAPHS[number], settings=resources_pb2.JobSettings(global_batch_size=8)
    )


@dataclass
class World:
    """Agents that keep what was not acknowledged, a relay that forgets when it ends, a predictor that rebuilds."""

    generator: random.Random
    store: ProfileStore
    untold: list[dict[str, resources_pb2.MeasurementWindow]] = field(default_factory=list)
    on_the_way: list[tuple[int, list[resources_pb2.MeasurementWindow]]] = field(default_factory=list)
    relayed: deque[resources_pb2.MeasurementWindow] = field(default_factory=deque)
    table: PairTable = field(default_factory=PairTable)
    faults: dict[str, float] = field(default_factory=dict)

    def strikes(self, fault: str) -> bool:
        return self.generator.random() < self.faults.get(fault, 0.0)

    def send_heartbeat(self, agent: int) -> None:
        """The newest unacknowledged windows; an acknowledgement may be lost, and so may all of it."""
        sent = list(self.untold[agent].values())[:PER_BEAT]
        self.generator.shuffle(sent)
        if not self.strikes("lost"):
            for _ in range(2 if self.strikes("repeated") else 1):
                self.on_the_way.append((self.generator.randrange(1 + 5 * self.strikes("late")), sent))
            if not self.strikes("unacknowledged"):
                for window in sent:
                    del self.untold[agent][window.window_id]

    def deliver(self) -> None:
        due = [beat for wait, beat in self.on_the_way if wait == 0]
        self.on_the_way = [(wait - 1, beat) for wait, beat in self.on_the_way if wait > 0]
        for beat in due:
            self.relayed.extend(beat)
        if self.relayed and not self.strikes("predictor_away"):
            batch = [self.relayed.popleft() for _ in range(min(len(self.relayed), 7))]
            # It may end after the disk has it and before the table has; the sender sends it again.
            dies = self.strikes("predictor_dies")

            def learn(new: Iterable[StoredMeasurementWindow], dies: bool = dies) -> None:
                if not dies:
                    self.table.learn_windows(new)

            record_windows(prediction_pb2.RecordMeasurementWindowsRequest(measurement_windows=batch), self.store, learn)
            if dies:
                self.relayed.extendleft(reversed(batch))
                self.table = rebuilt(self.store)
        if self.strikes("scheduler_dies"):
            self.relayed.clear()
            self.on_the_way.clear()


def rebuilt(store: ProfileStore) -> PairTable:
    table = PairTable()
    table.learn_windows(store.read())
    return table


def measured_by(agent: int, generator: random.Random, ids: count[int]) -> dict[str, resources_pb2.MeasurementWindow]:
    """What one machine saw: every job alone first, then together."""
    found = []
    for number in range(WINDOWS):
        victim = number % len(GRAPHS)
        others = [] if number < len(GRAPHS) else [job(generator.randrange(len(GRAPHS)))]
        found.append(
            resources_pb2.MeasurementWindow(
                window_id=f"{next(ids):032x}",
                campaign=f"collected_{agent:08x}",
                device="cpu-standin",
                job=job(victim),
                co_located_jobs=others,
                steps=100,
                window_ms=generator.randrange(1_500, 4_000) if others else 1_000,
            )
        )
    return {window.window_id: window for window in found}


def run_to_the_end(world: World) -> None:
    for turn in range(10 * CALM_AFTER):
        if turn == CALM_AFTER:
            world.faults = {}
        if turn > CALM_AFTER and not (any(world.untold) or world.on_the_way or world.relayed):
            return
        for agent in range(AGENTS):
            if world.untold[agent]:
                world.send_heartbeat(agent)
        world.deliver()


@pytest.mark.parametrize("seed", sampled(range(12), 4))
def test_the_table_counts_every_kept_window_once(seed: int, tmp_path: Path) -> None:
    generator, ids = random.Random(seed), count(1)
    with closing(ProfileStore(tmp_path / "profiles.sqlite")) as store:
        sent = [measured_by(agent, generator, ids) for agent in range(AGENTS)]
        names = ("lost", "repeated", "late", "unacknowledged", "predictor_away", "predictor_dies")
        faults = {name: generator.choice((0.0, 0.2, 0.6)) for name in names}
        world = World(generator, store, untold=[dict(each) for each in sent], faults=faults)
        world.faults["scheduler_dies"] = generator.choice((0.0, 0.0, 0.05))
        may_lose = world.faults["scheduler_dies"] > 0
        run_to_the_end(world)
        kept = [item.window for item in store.read() if item.window is not None]
        assert len(kept) == len({window.window_id for window in kept})
        assert may_lose or len(kept) == AGENTS * WINDOWS
        alone = {(item.campaign, item.job.key) for item in kept if not item.others}
        expected = Counter(
            (item.job.key, item.others[0].key)
            for item in kept
            if item.others and (item.campaign, item.job.key) in alone
        )
        assert {row.pair: row.seen.times for row in world.table.rows()} == expected
        # What a restart reads is what was there, but for the instants at which it was reported.
        again = {row.pair: (row.seen.times, row.seen.mean) for row in rebuilt(store).rows()}
        assert again == {row.pair: (row.seen.times, row.seen.mean) for row in world.table.rows()}
