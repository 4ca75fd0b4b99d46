"""OJPP's opportunistic memory on a running cluster: peaks that seldom coincide share the same room."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_service.core import commands, events
from scheduler_service.core.jobs.opportunistic_sharing import MemorySurge, claimed_bytes
from scheduler_service.core.memory_events import MemoryReported
from scheduler_service.core.records import MemoryTriple, Phase, Share
from scheduler_service.core.sharing.pausing import WAIT_MS_MAX
from scheduler_service.core.sharing.peak_pauses import COLLISIONS_MAX, is_news
from tests.support.engine_play import Play
from tests.support.scheduling import GIB, all_pairs, memory, node, prediction

PAPERS = MemoryTriple(gamma_ratio=0.3, delta_ratio=0.3, high_state_ratio=0.2)
"""Two such jobs need 0.9 of a device by Eq. 3 and collide with probability 0.04 by Eq. 4; their peaks need 1.2."""
DEVICE_BYTES = 8 * GIB
PEAK_GIB = 4.8
KEYS = ["k0", "k1", "k2"]


class Cluster(Play):
    """One node that can pause, and jobs that release memory, with what is known of them."""

    def __init__(
        self,
        *,
        policy: str = "ojpp",
        triple: MemoryTriple = PAPERS,
        peak_gib: float = PEAK_GIB,
        gpus: int = 1,
        **parameters: object,
    ) -> None:
        chosen = {"compute_requirement": "zero", "opportunistic_memory": True, **parameters}
        super().__init__(policy, nodes=0, parameters=chosen)
        self.triple, self.peak_gib = triple, peak_gib
        self.tell(events.NodeJoined, node=node("n0", gpus, enforcements=("stop_signal",)))

    def add(self, *names: str, **changes: Any) -> None:
        """Submit jobs, and let those that start run."""
        for name in names:
            number = names.index(name) + len(self.engine.state.jobs)
            asked: dict[str, Any] = {"key": f"k{number % 3}", "releases_memory": True, "steps_total": 10_000}
            self.submit(name, graph="g", **{**asked, **changes})
            for key in KEYS:
                if self.engine.state.predictions.knows(key):
                    known = prediction(key, memory=memory(self.peak_gib), memory_triple=self.triple, prediction_id="p")
                    self.tell(events.PredictionArrived, prediction=known)
            self.tell(events.PairPredictionsArrived, pairs=tuple(all_pairs(KEYS, 0.05)))
            if self.phase(name) is Phase.STARTING:
                self.report(events.JobStarted, name)

    def says(self, name: str, used_gib: float, **values: Any) -> list[commands.Command]:
        """Let a job report what it has allocated."""
        return self.report(MemoryReported, name, used_bytes=int(used_gib * GIB), **values)

    def where(self) -> dict[str, tuple[str, ...]]:
        return {name: one.gpu_ids for name, one in self.engine.state.jobs.items() if one.holds_gpus}


@pytest.mark.parametrize("policy", ["ojpp", "ojpp_greedy", "c_greedy", "ojpap"])
def test_equations_3_to_5_share_the_papers_two_jobs_at_tau_of_4_percent(policy: str) -> None:
    cluster = Cluster(policy=policy, tau_max=0.04)
    cluster.add("a", "b")
    assert cluster.where() == {"a": ("n0.0",), "b": ("n0.0",)}
    assert cluster.engine.state.gpus["n0.0"].memory_reserved_bytes == pytest.approx(0.9 * DEVICE_BYTES, abs=4)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"opportunistic_memory": False}, "MEMORY_DOES_NOT_FIT"),
        ({"tau_max": 0.039}, "COLLISION_TOO_LIKELY"),
        ({"triple": MemoryTriple(gamma_ratio=0.45, delta_ratio=0.15, high_state_ratio=0.2)}, "MEMORY_DOES_NOT_FIT"),
    ],
    ids=["peaks only", "peaks coincide too often", "one peak too many"],
)
def test_what_breaks_one_of_the_equations_waits_and_says_which(changes: dict[str, Any], code: str) -> None:
    cluster = Cluster(**changes)
    cluster.add("a", "b")
    assert cluster.where() == {"a": ("n0.0",)}
    assert cluster.code("b") == code


@pytest.mark.parametrize("policy", ["ojpp", "c_greedy"])
def test_peaks_that_all_fit_at_once_may_coincide(policy: str) -> None:
    """Peaks of 0.45 at p = 0.9: nothing runs short however often they meet, so that Eq. 5 has nothing to bound."""
    often = MemoryTriple(gamma_ratio=0.3, delta_ratio=0.15, high_state_ratio=0.9)
    cluster = Cluster(policy=policy, triple=often, peak_gib=0.45 * 8)
    cluster.add("a", "b")
    assert cluster.where() == {"a": ("n0.0",), "b": ("n0.0",)}


def test_peaks_only_is_the_default() -> None:
    play = Cluster(opportunistic_memory=False)
    assert play.engine.state.parameters["opportunistic_memory"] is False
    default = Play("ojpp")
    assert default.engine._view(explain=False).opportunistic_tau_ratio == 0.0


def test_a_job_that_keeps_its_memory_is_taken_at_its_peak() -> None:
    cluster = Cluster()
    cluster.add("a", "b", releases_memory=False)
    assert cluster.where() == {"a": ("n0.0",)}
    assert cluster.code("b") == "MEMORY_DOES_NOT_FIT"


def test_the_room_of_a_peak_is_not_given_to_a_job_that_would_keep_it() -> None:
    cluster = Cluster()
    cluster.add("a", "b")
    cluster.add("keeps", releases_memory=False, memory_request_bytes=GIB, share=Share.ANY)
    assert "keeps" not in cluster.where()
    cluster.add("small", releases_memory=False, memory_request_bytes=GIB // 2, share=Share.ANY)
    assert cluster.where()["small"] == ("n0.0",)


def test_another_policy_leaves_what_shares_a_peak_and_gives_its_room_to_nobody() -> None:
    cluster = Cluster()
    cluster.add("a", "b")
    cluster.tell(events.PolicyChosen, policy="best_fit", parameters={"compute_requirement": "zero"})
    cluster.add("c")
    assert cluster.where() == {"a": ("n0.0",), "b": ("n0.0",)}


def test_agents_are_told_what_a_job_holds_of_its_limit() -> None:
    cluster = Cluster()
    cluster.add("a")
    found = cluster.submit("b", graph="g", key="k0", releases_memory=True)
    (order,) = [one for one in found if isinstance(one, commands.LaunchJob)]
    assert order.memory_limit_bytes == pytest.approx(0.6 * DEVICE_BYTES, abs=4)
    assert order.memory_held_bytes == pytest.approx(0.3 * DEVICE_BYTES, abs=4)


def test_what_was_measured_takes_the_place_of_what_was_predicted() -> None:
    """Measured, the peak lasts for half of the time, and two such peaks coincide too often."""
    cluster = Cluster()
    cluster.add("a")
    cluster.says("a", 3.0, low_bytes=2 * GIB, extra_bytes=2 * GIB, high_state_ratio=0.5)
    cluster.submit("b", graph="g", key="k0", releases_memory=True)
    assert cluster.code("b") == "COLLISION_TOO_LIKELY"
    triple = cluster.engine.state.predictions.job("k0", "standin")
    assert triple is not None
    assert triple.memory_triple == MemoryTriple(gamma_ratio=0.25, delta_ratio=0.25, high_state_ratio=0.5)


def test_what_was_measured_outlives_the_scheduler() -> None:
    cluster = Cluster()
    cluster.add("a", "b")
    cluster.says("a", 3.0, low_bytes=2 * GIB, extra_bytes=2 * GIB, high_state_ratio=0.5)
    restored = type(cluster.engine).restore(
        cluster.engine.snapshot(),
        make_policy=cluster.engine._make_policy,
    )
    assert restored.snapshot() == cluster.engine.snapshot()
    assert restored.state.jobs["b"].shape.memory_surge == cluster.engine.state.jobs["b"].shape.memory_surge


def pauses(found: list[commands.Command]) -> list[str]:
    return [one.job_id for one in found if isinstance(one, commands.PauseJob)]


def test_before_peaks_coincide_the_newcomer_is_paused_and_goes_on_after_the_peak() -> None:
    cluster = Cluster()
    cluster.add("a", "b")
    assert pauses(cluster.says("b", 2.0)) == []
    found = cluster.says("a", 4.5)
    assert pauses(found) == ["b"]
    cluster.report(events.AttemptPaused, "b", paused_ms=0)
    assert cluster.phase("b") is Phase.PAUSED
    pause = cluster.engine.state.jobs["b"].pause
    assert pause is not None
    assert (pause.reason.code, pause.reason.job_ids) == ("PEAKS_NEAR", ("a",))
    found = cluster.says("a", 2.0)
    assert [one.job_id for one in found if isinstance(one, commands.ResumeJob)] == ["b"]


def test_when_peaks_coincide_the_newcomer_is_stopped_with_a_checkpoint_and_says_why() -> None:
    cluster = Cluster()
    cluster.add("a", "b")
    cluster.says("b", 4.0)
    found = cluster.says("a", 4.0)
    (order,) = [one for one in found if isinstance(one, commands.StopJob)]
    assert (order.job_id, order.checkpoint) == ("b", True)
    assert cluster.engine.state.jobs["b"].reason.code == "PEAKS_COINCIDED"
    assert cluster.engine.state.jobs["b"].reason.job_ids == ("a",)


def test_a_job_that_was_stopped_for_a_peak_is_not_started_beside_it_at_once() -> None:
    """Live it came back within a second, met the same peak, and was barred from sharing after four."""
    cluster = Cluster()
    cluster.add("a", "b")
    cluster.says("b", 4.0)
    cluster.says("a", 4.0)
    cluster.report(events.JobStopped, "b", exit_class="checkpointed")
    assert cluster.phase("b") is Phase.PENDING
    cluster.tell(events.TimerFired)
    waiting = cluster.engine.state.jobs["b"].reason
    assert (waiting.code, waiting.job_ids, waiting.numbers) == ("PEAKS_MET", ("a",), {"wait_ms": WAIT_MS_MAX})
    found = cluster.tell(events.TimerFired, after_ms=WAIT_MS_MAX)
    assert [one.job_id for one in found if isinstance(one, commands.LaunchJob)] == ["b"]


def test_a_peak_of_the_newcomer_alone_stops_nobody() -> None:
    cluster = Cluster()
    cluster.add("a", "b")
    found = cluster.says("b", 4.5)
    assert [one for one in found if not isinstance(one, commands.WakeAt)] == []


def test_a_newcomer_that_waited_too_long_for_a_peak_is_stopped() -> None:
    cluster = Cluster()
    cluster.add("a", "b")
    cluster.says("a", 4.5)
    cluster.report(events.AttemptPaused, "b", paused_ms=0)
    found = cluster.tell(events.TimerFired, after_ms=WAIT_MS_MAX)
    assert [one.job_id for one in found if isinstance(one, commands.StopJob)] == ["b"]
    assert cluster.engine.state.jobs["b"].reason.code == "PEAK_TOO_LONG"


def test_the_end_of_the_other_job_ends_the_pause() -> None:
    cluster = Cluster()
    cluster.add("a", "b")
    cluster.says("a", 4.5)
    cluster.report(events.AttemptPaused, "b", paused_ms=0)
    found = cluster.report(events.JobFinished, "a", steps_done=10_000)
    assert [one.job_id for one in found if isinstance(one, commands.ResumeJob)] == ["b"]


def test_after_a_few_collisions_a_job_keeps_its_peak_to_itself() -> None:
    cluster = Cluster()
    cluster.add("a", "b")
    for number in range(1, COLLISIONS_MAX + 1):
        cluster.says("b", 4.0)
        cluster.says("a", 4.0)
        cluster.report(events.JobStopped, "b", exit_class="checkpointed")
        cluster.says("a", 2.0)
        assert cluster.engine.state.jobs["b"].counts.peak_collisions == number
        cluster.tell(events.TimerFired, after_ms=WAIT_MS_MAX)
        if number < COLLISIONS_MAX:
            cluster.report(events.JobStarted, "b")
    assert cluster.where() == {"a": ("n0.0",)}
    assert cluster.code("b") == "MEMORY_DOES_NOT_FIT"


def test_stale_and_repeated_reports_change_nothing() -> None:
    cluster = Cluster()
    cluster.add("a", "b")
    record = cluster.engine.state.jobs["a"]
    stale = MemoryReported(at_ms=0, job_id="a", attempt=record.attempt, fence=record.fence + 7, used_bytes=5 * GIB)
    assert cluster.engine.handle(stale) == []
    assert cluster.engine.state.jobs["a"].measured.memory_now_bytes == 0
    said: dict[str, Any] = {"low_bytes": 2 * GIB, "extra_bytes": GIB, "high_state_ratio": 0.1}
    report = MemoryReported(at_ms=0, job_id="a", attempt=record.attempt, fence=record.fence, used_bytes=GIB, **said)
    assert is_news(cluster.engine.state, record, report)
    cluster.says("a", 1.0, **said)
    assert not is_news(cluster.engine.state, cluster.engine.state.jobs["a"], report)


def test_surges_claim_the_largest_one_of_them() -> None:
    surge = MemorySurge(surge_bytes=3, high_state_ratio=0.1)
    assert claimed_bytes([]) == 0
    assert claimed_bytes([(5, None), (7, None)]) == 12
    assert claimed_bytes([(5, surge), (7, None)]) == 12
    assert claimed_bytes([(5, surge), (7, surge)]) == 2 + 4 + 3
    assert claimed_bytes([(2, surge)]) == 2
