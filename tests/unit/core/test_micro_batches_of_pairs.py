"""How much two jobs slow each other down depends on what each takes at once: asked about, kept apart, and chosen by."""

from __future__ import annotations

from typing import Any

import pytest

from cotenant.job_settings import JobSettings
from scheduler_service.core import commands, events
from scheduler_service.core.predictions.prediction_requests import SMALLER_PARTNERS_MAX
from scheduler_service.core.records import Phase, Share
from tests.support.engine_play import Play
from tests.support.scheduling import DEVICE, job, pair, prediction, store

BATCH = 64


def submit(play: Play, name: str, batch: int = BATCH, **changes: Any) -> list[commands.RequestPairPredictions]:
    request = job(name, key=name, global_batch_size=batch, share=Share.ANY, **{"steps_total": 1_000, **changes})
    settings = JobSettings(global_batch_size=batch)
    found = play.tell(events.JobSubmitted, request=request, graph_sha256="g", settings=settings)
    step_ms = {(1, max(batch >> halvings, 1)): 100.0 + halvings for halvings in range(8)}
    found += play.tell(events.PredictionArrived, prediction=prediction(name, step_ms=step_ms))
    return [command for command in found if isinstance(command, commands.RequestPairPredictions)]


def test_a_new_key_is_asked_about_with_parts_of_its_batch_too() -> None:
    play = Play("sjf_bsbf")
    (question,) = submit(play, "a")
    assert [(one.key, one.micro_batch_size) for one in question.members] == [("a", 0), ("a", 32), ("a", 16), ("a", 8)]


@pytest.mark.parametrize(("batch", "sizes"), [(1, []), (2, [1]), (3, [2, 1]), (5, [3, 2, 1])])
def test_a_batch_is_halved_down_to_one_sample(batch: int, sizes: list[int]) -> None:
    (question,) = submit(Play("sjf_bsbf"), "a", batch)
    assert [one.micro_batch_size for one in question.members if one.micro_batch_size] == sizes


def test_among_many_keys_only_whole_batches_are_asked_about() -> None:
    play = Play("fifo")
    for number in range(SMALLER_PARTNERS_MAX + 1):
        questions = submit(play, f"k{number}")
    (question,) = questions
    assert len(question.members) == SMALLER_PARTNERS_MAX + 1
    assert not any(one.micro_batch_size for one in question.members)


def test_the_answer_at_the_sizes_of_both_comes_before_that_of_one_and_that_before_any() -> None:
    known = store(pairs=[
        pair("a", "b", 0.4),
        pair("a", "b", 0.3, other_micro_batch_size=16),
        pair("a", "b", 0.2, micro_batch_size=32),
        pair("a", "b", 0.1, micro_batch_size=32, other_micro_batch_size=16),
    ])  # fmt: skip
    sizes = {(0, 0): 0.4, (64, 64): 0.4, (64, 16): 0.3, (32, 64): 0.2, (32, 0): 0.2, (32, 16): 0.1}
    found = {one: known.pair("a", "b", DEVICE, *one) for one in sizes}
    assert {one: answer.slowdown_ratio for one, answer in found.items() if answer is not None} == sizes


def test_an_answer_about_one_size_says_nothing_of_another() -> None:
    known = store(pairs=[pair("a", "b", 0.2, other_micro_batch_size=16)])
    assert known.pair("a", "b", DEVICE, 64, 64) is None
    assert known.pair("a", "b", DEVICE, 64, 16) is not None


@pytest.mark.parametrize("takes_whole_batch", [False, True])
def test_a_smaller_newcomer_eases_its_partner_and_joins_where_a_whole_batch_may_not(takes_whole_batch: bool) -> None:
    play = Play("sjf_bsbf")
    submit(play, "running", steps_total=10_000, max_slowdown_ratio=0.2)
    play.tell(events.PairPredictionsArrived, pairs=(pair("running", "running"),))
    play.report(events.JobStarted, "running")
    submit(play, "new", max_slowdown_ratio=0.5, takes_whole_batch=takes_whole_batch)
    found = play.tell(
        events.PairPredictionsArrived,
        pairs=(
            pair("new", "new"),
            pair("new", "running", 0.1),
            pair("running", "new", 0.6),
            pair("running", "new", 0.4, other_micro_batch_size=32),
            pair("running", "new", 0.15, other_micro_batch_size=16),
        ),
    )
    launches = [one for one in found if isinstance(one, commands.LaunchJob)]
    expected = [] if takes_whole_batch else [("new", 16, 4)]
    assert [(one.job_id, one.micro_batch_size, one.accumulation_steps) for one in launches] == expected
    assert play.phase("new") is (Phase.PENDING if takes_whole_batch else Phase.STARTING)


def test_an_answer_that_was_asked_for_again_replaces_those_about_parts() -> None:
    known = store(pairs=[pair("a", "b", 0.4), pair("a", "b", 0.1, micro_batch_size=32)])
    known.replace_pair(pair("a", "b", 0.6))
    found = known.pair("a", "b", DEVICE, 32)
    assert found is not None
    assert found.slowdown_ratio == 0.6
