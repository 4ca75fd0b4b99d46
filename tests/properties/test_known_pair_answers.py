"""What was answered about two jobs in an earlier round is what a new look would find, and costs no look."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from random import Random

import pytest

from scheduler_service.core.cluster_view.capacity import Resident
from scheduler_service.core.cluster_view.step_times import passes_of, step_ms_of
from scheduler_service.core.cluster_view.view import GpuView
from scheduler_service.core.predictions.prediction_store import PredictionStore
from scheduler_service.core.records import JobPrediction, JobRequest, Level, PairPrediction, Share
from scheduler_service.policies.pairing import pair_answers
from scheduler_service.policies.pairing.occupied_gpu import OccupiedGpu
from scheduler_service.policies.pairing.pair_answers import KnownAnswers, PairAnswer, answer_pair, own_passes
from tests.support.scheduling import DEVICE, GIB, all_pairs, gpu, job, memory, pair, prediction, store

KEYS = ("one", "two", "three")
Look = tuple[JobRequest, OccupiedGpu]


def looks(predictions: PredictionStore) -> Iterator[Look]:
    """Jobs of three kinds and two widths, cut or not, next to three kinds that take one of two micro-batches."""
    for key, gpus, is_whole, partner_key, size in product(KEYS, (1, 2), (False, True), KEYS, (1, 4)):
        partner = Resident(
            request=job("there", key=partner_key, max_slowdown_ratio=0.5),
            micro_batch_size=size,
            memory_reserved_bytes=GIB,
        )
        occupied = OccupiedGpu(
            entry=GpuView(gpu=gpu(), node_id="n0"),
            partner=partner,
            memory_free_bytes=gpu().memory_bytes - GIB,
            predictions=predictions,
            partner_remaining_ms=lambda: None,
        )
        share = Share.ANY if gpus == 2 else Share.SAFE
        asked = {"global_batch_size": 4 * gpus, "takes_whole_batch": is_whole, "max_slowdown_ratio": 0.5}
        yield job("new", key=key, gpus=gpus, share=share, **asked), occupied


def fresh_answer(request: JobRequest, occupied: OccupiedGpu) -> PairAnswer:
    return answer_pair(request, occupied, own_passes(request, occupied.predictions, occupied.entry.gpu))


def forget(predictions: PredictionStore, key: str) -> None:
    for one in KEYS:
        predictions.use(one)
    predictions.keys_max = len(KEYS) - 1
    predictions.forget_unused([one for one in KEYS if one != key])


def change(generator: Random, predictions: PredictionStore) -> None:
    """Let one thing be predicted, measured or forgotten."""
    one, two = generator.choice(KEYS), generator.choice(KEYS)
    ratio = generator.choice([0.0, 0.1, 0.4, 0.9])
    changes: list[Callable[[], object]] = [
        lambda: predictions.put_job(
            prediction(
                one,
                memory=memory(generator.choice([1.0, 4.0, 500.0])),
                step_ms={(1, size): generator.uniform(1.0, 9.0) for size in (1, 2, 4)},
                level=generator.choice([Level.GRAPH, Level.GRAPH, Level.FALLBACK]),
            )
        ),
        lambda: predictions.put_pair(pair(one, two, ratio, micro_batch_size=generator.choice([0, 4]))),
        lambda: predictions.replace_pair(pair(one, two, ratio)),
        lambda: predictions.observe_pair(one, two, DEVICE, ratio, is_doubtful=generator.random() < 0.3),
        lambda: predictions.note_broken_trial(one, two, DEVICE, ratio, at_ms=1),
        lambda: predictions.forget_broken_trials(before_ms=2),
        lambda: forget(predictions, one),
    ]
    generator.choice(changes)()


@pytest.mark.parametrize("answers_max", [pair_answers.ANSWERS_MAX, 20])
def test_a_known_answer_is_what_a_new_look_would_find(answers_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_answers, "ANSWERS_MAX", answers_max)
    generator, moved = Random(7), 0
    predictions = store([prediction(key) for key in KEYS], all_pairs(KEYS))
    answers, before = KnownAnswers(predictions, predictions.changes), list[PairAnswer]()
    for _ in range(40):
        for _ in range(generator.randrange(4)):
            change(generator, predictions)
        if not answers.catch_up():
            answers = KnownAnswers(predictions, predictions.changes)
        found = [answers.answer(*look) for look in looks(predictions)]
        assert found == [fresh_answer(*look) for look in looks(predictions)]
        moved += found != before
        before = found
    assert moved > 15


class CountingStore(PredictionStore):
    """Counts the questions."""

    questions = 0

    def job(self, key: str, device: str) -> JobPrediction | None:
        """Count and answer."""
        self.questions += 1
        return super().job(key, device)

    def pair(
        self,
        victim_key: str,
        other_key: str,
        device: str,
        micro_batch_size: int = 0,
        other_micro_batch_size: int = 0,
    ) -> PairPrediction | None:
        """Count and answer."""
        self.questions += 1
        return super().pair(victim_key, other_key, device, micro_batch_size, other_micro_batch_size)


def test_a_later_round_asks_only_about_what_has_changed() -> None:
    predictions = CountingStore()
    for key in KEYS:
        predictions.put_job(prediction(key))
    for one in all_pairs(KEYS):
        predictions.put_pair(one)
    answers = KnownAnswers(predictions, predictions.changes)

    def asked() -> int:
        predictions.questions = 0
        assert answers.catch_up()
        for look in looks(predictions):
            answers.answer(*look)
        return predictions.questions

    everything = asked()
    assert everything > 100
    assert asked() == 0
    predictions.put_pair(pair("one", "two", 0.3))
    assert 0 < asked() < everything / 3


def test_the_time_of_a_step_is_that_of_the_first_pass_that_is_large_enough() -> None:
    generator = Random(3)
    for _ in range(500):
        shapes = {(generator.choice([1, 2, 4]), generator.choice([1, 2, 3, 8])) for _ in range(generator.randrange(6))}
        known = prediction("one", step_ms={shape: generator.uniform(1.0, 900.0) for shape in shapes})
        gpus, wanted = generator.choice([1, 2, 4]), generator.choice([1, 2, 3, 5])
        request = job("one", gpus=gpus, global_batch_size=generator.choice([1, 7, 24]))
        passes = [
            (size, counted != gpus, step_ms / passes_of(request, gpus=counted, micro_batch_size=size))
            for (counted, size), step_ms in known.step_ms.items()
            if size >= wanted and counted in (1, gpus)
        ]
        count = passes_of(request, gpus=gpus, micro_batch_size=wanted)
        expected = min(passes)[2] * count if passes else None
        assert step_ms_of(request, known, gpus=gpus, micro_batch_size=wanted) == expected
