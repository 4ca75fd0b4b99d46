"""What a round must not do: look jobs up where none can move or start, or leave itself to be collected."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from types import ModuleType
from typing import NoReturn

import pytest

from cotenant.device_sharing import DeviceSharing
from scheduler_service.core import events
from scheduler_service.core.cluster_view.cluster_index import FreshIndex
from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.decisions import HoldRest, Start
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.records import JobPrediction, PairPrediction, Phase
from scheduler_service.core.trial_sharing.trial_moves import trial_moves
from scheduler_service.policies import srtf, tiresias
from scheduler_service.policies.horus import Horus
from scheduler_service.policies.pairing import sharing_queue
from scheduler_service.policies.pairing.pair_answers import known_answers_of
from scheduler_service.policies.pairing.sjf_sharing import SjfSharing
from scheduler_service.policies.sjf_bsbf import _BestBenefit
from tests.support.engine_play import Play
from tests.support.scheduling import DEVICE, gpu, job, node, pending, prediction, running, store, view
from tests.unit.core.test_trials import TrialPlay


class CountingPredictions:
    """Predictions of a view that count how often a job's is read."""

    def __init__(self, view: SchedulingView) -> None:
        self._predictions = view.predictions
        self.reads = 0

    @property
    def measured_alone(self) -> AbstractSet[tuple[str, str]]:
        return self._predictions.measured_alone

    @property
    def sharing(self) -> Mapping[str, DeviceSharing]:
        return self._predictions.sharing

    @property
    def ways_counts(self) -> Mapping[str, int]:
        return self._predictions.ways_counts

    def job(self, key: str, device: str) -> JobPrediction | None:
        self.reads += 1
        return self._predictions.job(key, device)

    def pair(
        self,
        victim_key: str,
        other_key: str,
        device: str,
        micro_batch_size: int = 0,
        other_micro_batch_size: int = 0,
    ) -> PairPrediction | None:
        return self._predictions.pair(victim_key, other_key, device, micro_batch_size, other_micro_batch_size)


def crowded(*, checkpoint_step: int) -> TrialPlay:
    """Two measured jobs on a GPU each, and one that waits and was never measured."""
    play = TrialPlay(gpus=2, parameters={"trial_moves": False})
    for job_id in "ab":
        play.unsure(job_id, max_slowdown_ratio=0.5)
        play.measured_alone(job_id, checkpoint_step=checkpoint_step)
    play.unsure("c", max_slowdown_ratio=0.5)
    return play


@pytest.mark.parametrize(("module", "policy"), [(srtf, srtf.Srtf()), (tiresias, tiresias.Tiresias())])
def test_while_free_gpus_suffice_no_running_job_is_looked_at_for_stopping(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, policy: srtf.Srtf | tiresias.Tiresias
) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("running jobs were looked at")

    monkeypatch.setattr(module, "PreemptionPlanner", refuse)
    holding = [running(job("old", key="key", steps_total=9), ["n0.0"])]
    waiting = [pending(job("new", key="key", steps_total=5))]
    known = store([prediction("key", step_ms={(1, 1): 10.0})])
    seen = view(nodes=[node("n0", 2)], holding=holding, waiting=waiting, predictions=known)
    assert [type(decision) for decision in policy.decide(seen)] == [Start]
    with pytest.raises(AssertionError, match="looked at"):
        policy.decide(view(nodes=[node("n0", 1)], holding=holding, waiting=waiting, predictions=known))


def test_what_every_round_asks_of_a_state_is_at_hand_and_stays_true_as_nodes_come_and_go() -> None:
    play = Play("fifo", nodes=3, gpus=2)
    index = play.engine._index
    names = ("free_gpu_ids", "single_job_gpu_ids", "reported", "checkpointed_job_ids", "lost_ratios")
    at_hand = {name: getattr(index, name) for name in names}
    assert all(getattr(index, name) is one for name, one in at_hand.items())  # none is made for an answer
    for number in range(3):
        play.submit(f"j{number}", gpus=1)
        play.report(events.JobStarted, f"j{number}")
    play.report(events.JobProgressed, "j0", steps_done=5, window_steps=5, window_ms=50, checkpoint_step=5)
    play.report(events.JobFinished, "j1", steps_done=10)
    play.tell(events.NodeForgotten, node_id="n2")
    play.tell(events.NodeJoined, node=node("a9", 2))
    seen = replace(play.engine._view(explain=False), index=FreshIndex())
    assert "a9.0" in at_hand["free_gpu_ids"]
    assert at_hand["checkpointed_job_ids"] == {"j0"}
    assert {name: {*one} for name, one in at_hand.items()} == {name: {*getattr(seen.index, name)} for name in names}


def reads_of_trial_moves(engine: SchedulerEngine) -> tuple[int, int]:
    """Return how many moves there are, and how many predictions finding them took."""
    view = engine._view(explain=False)
    counting = CountingPredictions(view)
    return len(trial_moves(replace(view, predictions=counting), ())), counting.reads


def test_where_no_running_job_has_a_checkpoint_no_prediction_is_read_for_a_move() -> None:
    assert reads_of_trial_moves(crowded(checkpoint_step=-1).engine) == (0, 0)


def test_where_running_jobs_have_checkpoints_predictions_are_read_and_one_job_moves() -> None:
    moves, reads = reads_of_trial_moves(crowded(checkpoint_step=10).engine)
    assert moves == 1
    assert reads > 0


def test_where_no_running_job_was_measured_alone_no_prediction_is_read_for_a_move() -> None:
    play = TrialPlay(gpus=2, parameters={"trial_moves": False})
    for job_id in "ab":
        play.unsure(job_id, max_slowdown_ratio=0.5)
        play.report(events.JobStarted, job_id)
        # The first window is a warm-up: it tells of a checkpoint, and measures nothing.
        play.window(job_id, checkpoint_step=10)
    play.unsure("c", max_slowdown_ratio=0.5)
    assert play.engine._view(explain=False).index.checkpointed_job_ids == {"a", "b"}
    assert reads_of_trial_moves(play.engine) == (0, 0)


def test_what_was_measured_alone_is_known_after_a_restart_and_forgotten_with_its_key() -> None:
    engine = crowded(checkpoint_step=10).engine
    known = engine.state.predictions.measured_alone
    assert {(engine.state.jobs[job_id].request.key, DEVICE) for job_id in "ab"} == known
    restored = SchedulerEngine.restore(engine.snapshot(), make_policy=engine._make_policy)
    assert restored.state.predictions.measured_alone == known
    restored.state.predictions.keys_max = 0
    restored.state.predictions.forget_unused(())
    assert not restored.state.predictions.measured_alone


def test_jobs_with_a_checkpoint_are_those_that_hold_gpus_and_wrote_one() -> None:
    play = crowded(checkpoint_step=10)
    assert play.engine._view(explain=False).index.checkpointed_job_ids == {"a", "b"}
    play.tell(events.JobCancelled, job_id="a")
    play.stopped("a")
    assert play.engine._view(explain=False).index.checkpointed_job_ids == {"b"}
    restored = SchedulerEngine.restore(play.engine.snapshot(), make_policy=play.engine._make_policy)
    assert restored._view(explain=False).index.checkpointed_job_ids == {"b"}


def test_a_round_over_a_long_queue_leaves_nothing_to_the_garbage_collector() -> None:
    play = Play(policy="sjf_bsbf")
    for number in range(sharing_queue.QUEUE_LONG_MIN):
        play.submit(f"j{number}", gpus=2)
    view = play.engine._view(explain=False)
    rule = _BestBenefit(known_answers_of(view), recheck_gang=True, is_explaining=False)
    placement = SjfSharing(view, rule, weighed_jobs_max=100)
    assert view.index.lengths is not None
    queue = sharing_queue.SharingQueue(view, view.index.lengths, placement, weighed_jobs_max=100)
    still_there = weakref.ref(queue)
    gc.disable()
    try:
        assert queue.decide()
        del placement, queue
        assert still_there() is None
    finally:
        gc.enable()


def test_horus_looks_at_no_job_of_a_queue_before_a_full_cluster() -> None:
    play = Play(policy="horus")
    for number in range(30):
        play.submit(f"j{number}")
    [rest] = Horus().decide(play.engine._view(explain=False))
    assert isinstance(rest, HoldRest)
    assert rest.reason.code == "CLUSTER_FULL"
    # Whoever leaves the queue costs the same, and the others keep their reason.
    play.tell(events.JobCancelled, job_id="j7")
    assert {play.code(f"j{number}") for number in range(1, 30) if number != 7} == {"CLUSTER_FULL"}


def test_horus_decides_about_each_job_until_the_cluster_is_full() -> None:
    play = Play(policy="horus", nodes=2)
    for number in range(6):
        play.submit(f"j{number}", gpus=3 if number in (0, 3) else 1)
    assert play.phase("j1") is play.phase("j2") is Phase.STARTING
    assert {play.code(f"j{number}") for number in (4, 5)} == {"CLUSTER_FULL"}


def test_horus_looks_at_no_job_in_use_while_empty_gpus_are_left() -> None:
    def reads(holding: int) -> int:
        keys = [f"k{number}" for number in range(holding)]
        holders = [running(job(key, key=key), [f"g{number}"]) for number, key in enumerate(keys)]
        gpus = node(gpus=[gpu(f"g{number}") for number in range(holding + 3)])
        known = store([prediction(key, utilization_ratio=0.3) for key in ("new", *keys)])
        seen = view(nodes=[gpus], waiting=[pending(job("new", key="new"))], holding=holders, predictions=known)
        counting = CountingPredictions(seen)
        [start] = Horus().decide(replace(seen, predictions=counting))
        assert isinstance(start, Start)
        return counting.reads

    assert reads(2) == reads(40) > 0
