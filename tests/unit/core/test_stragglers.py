"""A rank that is slower than the others is replaced, a bounded number of times, and only when it stays slow."""

from __future__ import annotations

import random
from typing import Any

import pytest

from scheduler_service.core import commands, events
from scheduler_service.core.codec import decode, encode
from scheduler_service.core.gangs.stragglers import REPLACEMENTS_MAX
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.jobs.rank_watch import RankWatch, with_times
from scheduler_service.core.jobs.replica_terms import ReplicaTerms
from scheduler_service.core.reasons.reason_texts import describe_reason
from scheduler_service.core.records import Phase
from tests.support.engine_play import Play

WINDOW_MS = 10_000
TERMS = ReplicaTerms(straggler_ratio=2.0, straggler_window_ms=WINDOW_MS)


class Gang(Play):
    """A node of three GPUs with one gang of two ranks on it."""

    def __init__(self, *, gpus: int = 3, replicas: ReplicaTerms = TERMS, **changes: Any) -> None:
        super().__init__("fifo", gpus=gpus)
        whole = {"key": "", "gpus": 2, "global_batch_size": 2, "steps_total": 10_000, "replicas": replicas, **changes}
        self.submit(**whole)
        self.report(events.JobStarted)

    @property
    def job(self) -> JobRecord:
        return self.engine.state.jobs["j0"]

    def say(self, *own_ms: float, steps: int = 0, after_ms: int = 1_000) -> list[commands.Command]:
        done = self.job.steps_done + (steps or 5)
        told = tuple((rank, float(one)) for rank, one in enumerate(own_ms))
        return self.report(events.JobProgressed, steps_done=done, rank_step_ms=told, after_ms=after_ms)

    def stay_slow(self, rank: int = 1) -> list[commands.Command]:
        times = [50.0, 50.0]
        times[rank] = 160.0
        found: list[commands.Command] = []
        for _ in range(WINDOW_MS // 1_000 + 1):
            found += self.say(*times)
        return found

    def restart(self) -> None:
        """The agent's part of a replacement."""
        self.report(events.JobStopped, exit_class="checkpointed", exit_code=85, checkpoint_step=self.job.steps_done)
        self.report(events.JobStarted)


def stops(found: list[commands.Command]) -> list[commands.StopJob]:
    return [one for one in found if isinstance(one, commands.StopJob)]


def test_a_rank_that_stays_slow_is_started_again_on_another_gpu_from_a_checkpoint() -> None:
    gang = Gang()
    [order] = stops(gang.stay_slow())
    assert (order.checkpoint, order.cause, gang.phase()) == (True, "moved", Phase.STOPPING)
    gang.restart()
    assert (gang.job.gpu_ids, gang.job.counts.stragglers_replaced) == (("n0.0", "n0.2"), 1)
    [line] = [one.message for one in gang.job.history if one.kind == "straggler"]
    assert line == (
        "rank 1 took 160 ms of its own for a step, 3.2 times the 50 ms of the others, for 10 s: "
        "replaced, 1 of at most 3 times"
    )
    assert "rank 1 took 320.0 % of the median time" in describe_reason(gang.job.reason)


def test_where_no_other_gpu_is_free_all_ranks_start_again_where_they_were() -> None:
    gang = Gang(gpus=2)
    gang.stay_slow(rank=0)
    gang.restart()
    assert (gang.phase(), gang.job.gpu_ids, gang.job.attempt) == (Phase.RUNNING, ("n0.0", "n0.1"), 2)


def test_one_fast_report_within_the_window_begins_it_anew() -> None:
    gang = Gang()
    for own_ms in (160, 160, 160, 160, 160, 160, 60, 160, 160, 160, 160, 160, 160):
        assert not stops(gang.say(50, own_ms))
    assert gang.job.measured.rank_watch is not None
    assert gang.job.measured.rank_watch.slow_rank == 1


@pytest.mark.parametrize("times", [(50, 99), (50, 50), (160,), (0.5, 0.6)])
def test_ranks_that_keep_up_are_left_alone(times: tuple[float, ...]) -> None:
    gang = Gang()
    assert not any(stops(gang.say(*times)) for _ in range(30))
    assert not gang.job.counts.stragglers_replaced


def test_a_job_that_did_not_ask_for_it_is_left_alone() -> None:
    gang = Gang(replicas=ReplicaTerms())
    assert not stops(gang.stay_slow())
    assert gang.job.measured.rank_watch is None


def test_after_the_last_replacement_the_straggler_stays_and_the_history_says_so_once() -> None:
    gang = Gang()
    for _ in range(REPLACEMENTS_MAX):
        assert stops(gang.stay_slow())
        gang.restart()
    for _ in range(3):
        assert not stops(gang.stay_slow())
    lines = [one.message for one in gang.job.history if one.kind == "straggler"]
    assert (len(lines), gang.job.counts.stragglers_replaced) == (REPLACEMENTS_MAX + 1, REPLACEMENTS_MAX)
    assert lines[-1].endswith("it stays, 3 ranks of the job were replaced already")


def test_the_ranks_of_a_new_attempt_begin_with_nothing_against_them() -> None:
    gang = Gang()
    gang.stay_slow()
    gang.restart()
    assert gang.job.measured.rank_watch is None


def test_what_is_known_of_ranks_is_stored_and_read_again() -> None:
    gang = Gang()
    gang.say(50, 160)
    assert decode(JobRecord, encode(JobRecord, gang.job)) == gang.job


def test_ranks_on_two_nodes_are_compared_with_each_other_although_each_node_tells_of_its_own() -> None:
    watch = RankWatch()
    for now_ms, told in ((1_000, [(0, 50.0)]), (1_500, [(1, 160.0)]), (3_000, [(0, 50.0)])):
        watch = with_times(watch, told, ranks=2, now_ms=now_ms, window_ms=1_000, ratio=2.0)
    assert (watch.slow_rank, watch.slow_since_ms, watch.own_ratio) == (1, 1_500, 3.2)
    later = with_times(watch, [(0, 50.0)], ranks=2, now_ms=200_000, window_ms=1_000, ratio=2.0)
    assert (later.slow_rank, [one.at_ms for one in later.times]) == (-1, [200_000])


@pytest.mark.parametrize("seed", range(20))
def test_the_slowest_of_many_noisy_ranks_is_the_one_that_is_found(seed: int) -> None:
    """Eight ranks with ten percent of noise; one of them takes 2.5 times as long, or none does."""
    draw = random.Random(seed)
    slow = draw.randrange(8) if seed % 2 else -1
    watch, found = RankWatch(), set()
    for now_ms in range(0, 30_000, 500):
        told = [(rank, 100 * draw.uniform(0.9, 1.1) * (2.5 if rank == slow else 1.0)) for rank in range(8)]
        watch = with_times(watch, told, ranks=8, now_ms=now_ms, window_ms=WINDOW_MS, ratio=2.0)
        found.add(watch.slow_rank)
    assert found == {slow}
    assert watch.slow_since_ms == 0


def test_ranks_that_a_gang_does_not_have_say_nothing() -> None:
    watch = with_times(RankWatch(), [(0, 1.0), (5, 900.0), (-1, 7.0)], ranks=2, now_ms=0, window_ms=1_000, ratio=2.0)
    assert [(one.rank, one.own_step_ms) for one in watch.times] == [(0, 1.0)]
