"""What two jobs lose and consent to is the same at every micro-batch, asked for one of them or for many."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

from scheduler_service.core.cluster_view.capacity import Resident
from scheduler_service.core.cluster_view.view import GpuView
from scheduler_service.core.predictions.prediction_store import PredictionStore
from scheduler_service.core.records import JobPrediction, Level, PairPrediction, Reason, Share
from scheduler_service.core.sharing.colocation_slowdown import PairSlowdowns, expected_slowdowns
from scheduler_service.core.sharing.sharing_consent import PairConsent, consented_slowdowns
from scheduler_service.policies.pairing.occupied_gpu import OccupiedGpu
from scheduler_service.policies.pairing.pair_answers import OwnPass, answer_pair
from tests.support.scheduling import DEVICE, GIB, all_pairs, gpu, job, memory, pair, prediction, store

DRAWS = 2_000
SIZES = (1, 2, 4)
KEYS = ("key-one", "key-other")


def drawn_resident(generator: Random, name: str) -> Resident:
    request = job(
        name,
        share=generator.choice([Share.SAFE] * 6 + [Share.ANY] * 3 + [Share.NEVER]),
        max_slowdown_ratio=generator.choice([0.0, 0.1, 0.3, 1.0]),
        no_trial=generator.random() < 0.1,
        gpus=generator.choice([1, 1, 1, 2]),
        memory_request_bytes=generator.choice([0, 0, GIB]),
    )
    return Resident(
        request=request,
        micro_batch_size=generator.choice(SIZES),
        memory_reserved_bytes=GIB,
        is_gang=generator.random() < 0.1,
        is_on_trial=generator.random() < 0.1,
    )


def drawn_prediction(generator: Random, key: str) -> JobPrediction:
    return prediction(
        key,
        utilization_ratio=generator.choice([0.0, 0.4, 1.0]),
        level=generator.choice([Level.GRAPH] * 8 + [Level.FALLBACK]),
        in_domain=generator.random() < 0.9,
        range_not_calibrated=generator.random() < 0.1,
        measured_micro_batch_sizes=generator.choice([(), (1,), SIZES]),
        memory=memory(generator.choice([1.0, 1.0, 500.0])),
    )


def drawn_pair(generator: Random, victim_key: str, other_key: str) -> PairPrediction:
    return pair(
        victim_key,
        other_key,
        generator.choice([-0.2, -0.0, 0.0, 0.1, 0.3, 2.0]),
        level=generator.choice([Level.GRAPH] * 8 + [Level.FALLBACK]),
        in_domain=generator.random() < 0.9,
        micro_batch_size=generator.choice([0, 0, *SIZES]),
        other_micro_batch_size=generator.choice([0, 0, *SIZES]),
    )


def drawn_store(generator: Random) -> PredictionStore:
    """Predict the jobs and both directions of the pair, some of them several times, or measure them, or do not."""
    found = store(drawn_prediction(generator, key) for key in KEYS if generator.random() < 0.9)
    for names in (KEYS, KEYS[::-1]):
        for _ in range(generator.choice([0, 1, 1, 1, 3])):
            found.put_pair(drawn_pair(generator, *names))
        if generator.random() < 0.3:
            found.observe_pair(
                *names, DEVICE, generator.choice([-0.1, 0.05, 0.5]), is_doubtful=generator.random() < 0.5
            )
    return found


def test_the_form_for_two_jobs_gives_what_the_general_one_gives() -> None:
    generator, outcomes = Random(11), Counter[str]()
    for _ in range(DRAWS):
        one, other = drawn_resident(generator, "one"), drawn_resident(generator, "other")
        predictions = drawn_store(generator)
        slowdowns = PairSlowdowns(one, other, gpu(), predictions)
        consent = PairConsent(one, other, gpu(), predictions)
        for size in SIZES:
            incoming = replace(one, micro_batch_size=size)
            expected = tuple(found for _, found in expected_slowdowns((incoming, other), gpu(), predictions))
            assert slowdowns.at(size) == expected, (incoming, other)
            general = consented_slowdowns(incoming, (other,), gpu(), predictions)
            if isinstance(general, Reason):
                assert consent.at(size) == general, (incoming, other)
                outcomes[general.code] += 1
            else:
                assert consent.at(size) == tuple(found for _, found in general), (incoming, other)
                outcomes["tried" if general[0][1].may_try else "consented"] += 1
    assert len(outcomes) == 11, outcomes
    assert min(outcomes.values()) >= DRAWS // 100, outcomes


class CountingStore(PredictionStore):
    """Counts the questions about jobs."""

    questions = 0

    def job(self, key: str, device: str) -> JobPrediction | None:
        """Count and answer."""
        self.questions += 1
        return super().job(key, device)


def questions_of_an_answer(micro_batches: int) -> int:
    predictions = CountingStore()
    for key in KEYS:
        predictions.put_job(prediction(key))
    for one in all_pairs(KEYS):
        predictions.put_pair(one)
    partner = Resident(request=job("other", key=KEYS[1]), micro_batch_size=1, memory_reserved_bytes=GIB)
    entry = GpuView(gpu=gpu(), node_id="n0")
    occupied = OccupiedGpu(
        entry=entry,
        partner=partner,
        memory_free_bytes=entry.gpu.memory_bytes - GIB,
        predictions=predictions,
        partner_remaining_ms=lambda: None,
    )
    request = job("one", key=KEYS[0], global_batch_size=2 ** (micro_batches - 1))
    passes = [OwnPass(2**power, 10.0, GIB) for power in reversed(range(micro_batches))]
    predictions.questions = 0
    assert len(answer_pair(request, occupied, passes).options) == micro_batches
    return predictions.questions


def test_looking_at_more_micro_batches_asks_no_more_about_the_two_jobs() -> None:
    assert questions_of_an_answer(1) == questions_of_an_answer(10) <= 3
