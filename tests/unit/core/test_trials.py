"""Jobs of which nothing reliable is predicted share on trial: measured alone first, parted where a consent breaks."""

from __future__ import annotations

from typing import Any

import pytest

from cotenant.device_sharing import DeviceSharing
from scheduler_service.core import commands, events
from scheduler_service.core.cluster_view.shared_ways import place_name
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.lifecycle.trial_start import BROKEN_TRIALS_MAX, TRIAL_MS
from scheduler_service.core.records import Level, Phase, Share
from scheduler_service.core.trial_sharing.trials import REMEMBERED_MS, WINDOWS_TO_PASS
from scheduler_service.policy_registry import make_policy
from tests.support.engine_play import Play
from tests.support.scheduling import GIB, explained, gpu, node, pair, prediction

WINDOW_MS = 2_000
DAY_MS = 86_400_000


class TrialPlay(Play):
    """A cluster in which nothing reliable is predicted of any job."""

    def unsure(self, job_id: str, **changes: Any) -> list[commands.Command]:
        """Submit a job whose prediction is out of domain, and answer the predictor's questions."""
        orders = self.submit(job_id, graph="f" * 64, steps_total=changes.pop("steps_total", 1_000_000), **changes)
        for order in orders:
            if isinstance(order, commands.RequestPrediction):
                unsure = prediction(order.key, in_domain=False, utilization_ratio=1.0)
                orders = self.tell(events.PredictionArrived, prediction=unsure)
        return orders + [order for question in orders for order in self._no_pairs(question)]

    def _no_pairs(self, order: commands.Command) -> list[commands.Command]:
        if not isinstance(order, commands.RequestPairPredictions):
            return []
        asked: dict[str, Any] = {"device": order.device, "sharing": order.sharing, "keys": order.new_keys}
        return self.tell(events.PairPredictionsFailed, code="DOWN", **asked)

    def window(self, job_id: str, step_ms: int = 100, *, peak: float = 1.0, **values: Any) -> list[commands.Command]:
        """Report one window at a step time."""
        done = self.engine.state.jobs[job_id].steps_done
        steps = WINDOW_MS // step_ms
        return self.report(
            events.JobProgressed,
            job_id,
            after_ms=WINDOW_MS,
            steps_done=done + steps,
            window_steps=steps,
            window_ms=WINDOW_MS,
            memory_peak_bytes=int(peak * GIB),
            utilization_ratio=values.pop("utilization_ratio", 0.4),
            **values,
        )

    def measured_alone(self, job_id: str, **values: Any) -> list[commands.Command]:
        """Start a job that has a GPU and let its warm-up and one window pass."""
        self.report(events.JobStarted, job_id)
        self.window(job_id, **values)
        return self.window(job_id, **values)

    def stopped(self, job_id: str) -> list[commands.Command]:
        """Confirm that a job has ended with a checkpoint."""
        return self.report(events.JobStopped, job_id, exit_class="stopped", checkpoint_step=10)


def on_trial(play: TrialPlay | None = None, **options: Any) -> TrialPlay:
    """Two jobs on one GPU, the second one on trial; `b` was measured alone on another GPU that has gone bad."""
    play = play or TrialPlay(gpus=2, **options)
    for job_id in "ab":
        play.unsure(job_id, max_slowdown_ratio=0.5)
        play.measured_alone(job_id)
    play.tell(events.GpuHealthChanged, gpu_id="n0.1", healthy=False)
    play.report(events.JobFailed, "b", exit_class="gpu_fault", checkpoint_step=20)
    play.tell(events.TimerFired, after_ms=2_000)
    play.report(events.JobStarted, "b")
    return play


def gpu_ids(play: Play, job_id: str) -> tuple[str, ...]:
    return play.engine.state.jobs[job_id].gpu_ids


def launched(orders: list[commands.Command]) -> list[str]:
    return [order.job_id for order in orders if isinstance(order, commands.LaunchJob)]


def stopped(orders: list[commands.Command]) -> list[str]:
    return [order.job_id for order in orders if isinstance(order, commands.StopJob)]


def test_a_job_whose_prediction_is_unsure_holds_its_gpu_alone_until_a_window_is_measured() -> None:
    play = TrialPlay()
    play.unsure("a")
    play.report(events.JobStarted, "a")
    assert play.engine.state.gpus["n0.0"].memory_reserved_bytes == 8 * GIB
    play.window("a")
    assert play.engine.state.gpus["n0.0"].memory_reserved_bytes == 8 * GIB
    play.window("a")
    assert play.engine.state.gpus["n0.0"].memory_reserved_bytes == int(1.15 * GIB)


def test_a_job_that_was_never_measured_waits_although_the_running_one_was() -> None:
    play = TrialPlay()
    play.unsure("a")
    play.measured_alone("a")
    assert launched(play.unsure("b")) == []
    assert play.code("b") == "OUT_OF_DOMAIN"


def test_a_job_with_the_key_of_a_measured_one_shares_with_it_on_trial() -> None:
    play = TrialPlay()
    play.unsure("a")
    play.measured_alone("a")
    assert launched(play.unsure("b", key="key-a")) == ["b"]
    reason = play.engine.state.jobs["b"].reason
    assert (reason.code, reason.job_ids) == ("STARTS_ON_TRIAL", ("a",))
    assert reason.numbers["slowdown_ratio"] == pytest.approx(0.4 * 0.4)


@pytest.mark.parametrize("refusing", ["a", "b"])
def test_no_job_is_tried_where_one_of_the_two_refuses_trials(refusing: str) -> None:
    play = TrialPlay()
    play.unsure("a", no_trial=refusing == "a")
    play.measured_alone("a")
    assert launched(play.unsure("b", key="key-a", no_trial=refusing == "b")) == []


def test_no_trial_begins_that_is_expected_to_break_a_consent() -> None:
    """Two jobs that want the GPU nine tenths of the time lose .81 to each other in fair turns, and accept .2."""
    play = TrialPlay()
    play.unsure("a")
    play.measured_alone("a", utilization_ratio=0.9)
    assert launched(play.unsure("b", key="key-a")) == []
    assert play.code("b") == "SLOWDOWN_TOO_HIGH"


@pytest.mark.parametrize(
    ("known", "started"),
    [({"in_domain": False}, ["b"]), ({}, []), ({"in_domain": False, "level": Level.OBSERVED}, [])],
    ids=["guessed from graphs", "reliably predicted", "measured"],
)
def test_a_pair_that_is_only_guessed_from_unlike_graphs_is_tried_by_what_was_measured_of_both(
    known: dict[str, Any], started: list[str]
) -> None:
    play = TrialPlay()
    play.unsure("a")
    play.measured_alone("a")
    play.tell(events.PairPredictionsArrived, pairs=(pair("key-a", "key-a", 0.9, **known),))
    assert launched(play.submit("b", graph="f" * 64, steps_total=1_000_000, key="key-a")) == started


def test_no_trial_begins_without_room_for_both_measured_peaks_and_their_margins() -> None:
    play = TrialPlay()
    play.unsure("a")
    play.measured_alone("a", peak=3.6)
    assert launched(play.unsure("b", key="key-a")) == [], "twice 3.6 GiB fit into 8, twice 4.14 do not"
    assert play.code("b") == "MEMORY_DOES_NOT_FIT"


def test_a_window_in_which_others_used_the_gpu_measures_nothing_alone() -> None:
    play = TrialPlay()
    play.unsure("a")
    play.measured_alone("a", quality_flags=("foreign_load",))
    assert play.engine.state.gpus["n0.0"].memory_reserved_bytes == 8 * GIB


def test_a_third_job_does_not_join_a_trial() -> None:
    play = TrialPlay(parameters={"max_jobs_per_gpu": 3})
    play.unsure("a")
    play.measured_alone("a")
    play.unsure("b", key="key-a")
    play.unsure("c", key="key-a")
    assert play.phase("c") is Phase.PENDING
    assert play.code("c") == "TRIAL_GOES_ON"


def test_a_trial_in_which_both_keep_their_consent_passes_and_says_what_was_measured() -> None:
    play = on_trial()
    play.window("b", 120)
    for _ in range(WINDOWS_TO_PASS):
        play.window("a", 125)
        play.window("b", 120)
    reason = play.engine.state.jobs["b"].reason
    assert reason.code == "TRIAL_PASSED"
    assert reason.numbers["slowdown_ratio"] == pytest.approx(0.25)
    assert not play.engine.state.running["a"].is_on_trial


def test_windows_that_scatter_beyond_the_consent_pass_only_after_the_whole_time_and_on_average() -> None:
    play = on_trial()
    play.window("b", 100)
    for step_ms in (100, 200) * (WINDOWS_TO_PASS // 2):
        play.window("a", step_ms)
        play.window("b", step_ms)
    reason = play.engine.state.jobs["b"].reason
    assert reason.code == "ON_TRIAL"
    numbers = [reason.numbers[name] for name in ("slowdown_ratio", "spread_ratio", "max_slowdown_ratio")]
    assert numbers == pytest.approx([0.5, 0.5, 0.5])
    assert stopped(play.tell(events.TimerFired, after_ms=TRIAL_MS)) == []
    assert play.engine.state.jobs["b"].reason.code == "TRIAL_PASSED"


def test_a_third_job_may_join_once_the_trial_has_passed() -> None:
    play = TrialPlay(parameters={"max_jobs_per_gpu": 3})
    play.unsure("a", max_slowdown_ratio=1.0)
    play.measured_alone("a")
    play.unsure("b", key="key-a", max_slowdown_ratio=1.0)
    play.report(events.JobStarted, "b")
    assert launched(play.unsure("c", key="key-a", max_slowdown_ratio=1.0)) == []
    play.window("b", 110)
    orders = [order for _ in range(WINDOWS_TO_PASS) for job_id in "ab" for order in play.window(job_id, 110)]
    assert launched(orders) == ["c"]


def test_a_job_of_long_steps_is_measured_by_one_of_them() -> None:
    play = TrialPlay()
    play.unsure("a")
    play.measured_alone("a", step_ms=WINDOW_MS)
    known = play.engine.state.predictions.job("key-a", "standin")
    assert known is not None
    assert known.step_ms == {(1, 1): WINDOW_MS}


def test_while_it_lasts_a_trial_says_until_when_and_what_is_allowed() -> None:
    play = on_trial()
    play.window("b", 120)
    play.window("b", 120)
    reason = explained(play.engine, "b").reason
    assert reason.code == "ON_TRIAL"
    assert reason.numbers["until_at_ms"] == play.engine.state.jobs["b"].times.started_at_ms + TRIAL_MS
    assert reason.numbers["max_slowdown_ratio"] == 0.5


def test_a_trial_that_broke_with_mps_is_known_of_that_way_where_others_of_the_type_take_turns() -> None:
    play = TrialPlay(nodes=0)
    pair_of_gpus = [gpu(f"n0.{index}", index=index, sharing=DeviceSharing.MPS) for index in range(2)]
    play.tell(events.NodeJoined, node=node("n0", pair_of_gpus))
    play.tell(events.NodeJoined, node=node("n9", [gpu("n9.0", sharing=DeviceSharing.TIME_SLICING, healthy=False)]))
    on_trial(play)
    play.window("b", 100)
    for _ in range(WINDOWS_TO_PASS):
        play.window("b", 300)
    assert play.engine.state.jobs["b"].reason.code == "TRIAL_BROKEN"
    key, other = (play.engine.state.jobs[name].request.key for name in "ba")
    known = {
        way: play.engine.state.predictions.pair(key, other, place_name(gpu().device, way)) for way in DeviceSharing
    }
    assert [way for way, one in known.items() if one is not None] == [DeviceSharing.MPS]
    assert [place for *_, place in play.engine.state.predictions._broken_trials] == [
        place_name(gpu().device, DeviceSharing.MPS)
    ]


@pytest.mark.parametrize("victim", ["a", "b"])
def test_where_a_job_is_slowed_down_more_than_it_accepts_for_two_windows_the_later_one_leaves(victim: str) -> None:
    play = on_trial()
    play.window("b", 100)
    assert stopped(play.window(victim, 200)) == []
    assert stopped(play.window(victim, 200)) == ["b"]
    record = play.engine.state.jobs["b"]
    assert (record.phase, record.reason.code) == (Phase.STOPPING, "TRIAL_BROKEN")
    play.stopped("b")
    assert play.phase("b") is Phase.PENDING
    assert play.code("b") == "SLOWDOWN_TOO_HIGH", "the pair is remembered"


def test_one_slow_window_breaks_nothing() -> None:
    play = on_trial()
    play.window("b", 100)
    for step_ms in (200, 125, 125, 200, 125):
        assert stopped(play.window("a", step_ms)) == []


def test_windows_in_which_others_used_the_gpu_do_not_break_a_trial() -> None:
    play = on_trial()
    play.window("b", 100)
    for _ in range(4):
        assert stopped(play.window("a", 200, quality_flags=("foreign_load",))) == []


def test_a_pair_that_broke_is_tried_again_after_a_day() -> None:
    play = on_trial()
    play.window("b", 100)
    play.window("a", 200)
    play.window("a", 200)
    play.stopped("b")
    assert launched(play.tell(events.TimerFired, after_ms=REMEMBERED_MS - 60_000)) == []
    assert launched(play.tell(events.TimerFired, after_ms=120_000)) == ["b"]


def test_a_job_whose_trials_broke_too_often_is_tried_no_more() -> None:
    play = on_trial()
    for attempt in range(BROKEN_TRIALS_MAX):
        play.window("b", 100)
        play.window("a", 200)
        play.window("a", 200)
        play.stopped("b")
        is_tried = launched(play.tell(events.TimerFired, after_ms=DAY_MS + 60_000)) == ["b"]
        assert is_tried is (attempt < BROKEN_TRIALS_MAX - 1)
        if is_tried:
            play.report(events.JobStarted, "b")
    assert play.engine.state.jobs["b"].request.no_trial


def test_a_peak_that_grows_out_of_what_is_left_ends_a_trial_before_the_memory_does() -> None:
    play = on_trial()
    play.window("b", 100)
    assert stopped(play.window("a", 110, peak=7.0)) == ["b"]
    assert play.engine.state.jobs["b"].reason.code == "TRIAL_MEMORY"


def test_a_peak_that_grows_within_what_is_left_is_kept_for_its_job() -> None:
    play = on_trial()
    assert stopped(play.window("a", 110, peak=3.0)) == []
    assert play.engine.state.jobs["a"].shape.memory_reserved_bytes == int(3.0 * GIB * 1.15)


def test_a_trial_in_which_a_job_makes_no_step_is_prolonged_and_then_ends() -> None:
    play = on_trial()
    ended_after = 0
    for ended_after in range(1, 20):  # noqa: B007 - read below
        if stopped(play.tell(events.TimerFired, after_ms=TRIAL_MS)):
            break
    assert 2 < ended_after < 12
    assert play.engine.state.jobs["b"].reason.code == "TRIAL_UNMEASURED"


def test_the_end_of_one_job_ends_the_trial_of_the_other() -> None:
    play = on_trial()
    play.tell(events.JobCancelled, job_id="a")
    play.report(events.JobStopped, "a", exit_class="stopped")
    assert play.engine.state.jobs["b"].trial is None
    assert not play.engine.state.running["b"].is_on_trial


def test_a_trial_survives_a_snapshot_and_breaks_as_it_would_have() -> None:
    play = on_trial()
    play.window("b", 100)
    play.window("a", 200)
    restored = SchedulerEngine.restore(play.engine.snapshot(), make_policy=make_policy)
    assert restored.snapshot() == play.engine.snapshot()
    play.engine = restored
    assert stopped(play.window("a", 200)) == ["b"]


def crowded(**changes: Any) -> TrialPlay:
    """Two measured jobs on a GPU each, with checkpoints, far from their end."""
    play = TrialPlay(gpus=2, parameters=changes)
    for job_id in "ab":
        play.unsure(job_id, max_slowdown_ratio=0.5)
        play.measured_alone(job_id, checkpoint_step=10)
    return play


def test_a_measured_job_moves_next_to_another_so_that_an_unmeasured_one_has_its_gpu() -> None:
    play = crowded()
    assert stopped(play.unsure("c", max_slowdown_ratio=0.5)) == ["b"]
    assert play.engine.state.jobs["b"].reason.code == "MOVES_TO_SHARE"
    orders = play.stopped("b")
    assert sorted(launched(orders)) == ["b", "c"]
    assert gpu_ids(play, "a") == gpu_ids(play, "b") != gpu_ids(play, "c")
    assert play.engine.state.running["b"].is_on_trial


@pytest.mark.parametrize("changes", [{"no_trial": True}, {"share": Share.NEVER}, {"gpus": 2}])
def test_no_job_moves_for_one_that_will_not_share(changes: dict[str, Any]) -> None:
    assert stopped(crowded().unsure("c", **changes)) == []


def test_no_job_moves_where_the_policy_leaves_running_jobs_alone() -> None:
    assert stopped(crowded(trial_moves=False).unsure("c")) == []


def test_no_job_moves_that_never_wrote_a_checkpoint() -> None:
    play = TrialPlay(gpus=2)
    for job_id in "ab":
        play.unsure(job_id, max_slowdown_ratio=0.5)
        play.measured_alone(job_id)
    assert stopped(play.unsure("c")) == []


def test_no_job_moves_that_is_about_to_end() -> None:
    play = TrialPlay(gpus=2)
    for job_id in "ab":
        play.unsure(job_id, max_slowdown_ratio=0.5, steps_total=50)
        play.measured_alone(job_id, checkpoint_step=10)
    assert stopped(play.unsure("c")) == []


def test_two_jobs_that_accept_the_unknown_need_no_trial() -> None:
    play = TrialPlay()
    play.unsure("a", share=Share.ANY)
    play.measured_alone("a", utilization_ratio=0.9)
    assert launched(play.unsure("b", key="key-a", share=Share.ANY)) == ["b"]
    assert play.engine.state.jobs["b"].trial is None
