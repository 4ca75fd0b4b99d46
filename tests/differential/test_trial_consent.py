"""Whether two jobs may share on trial, against the rule written out; and on many GPUs as on one."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from scheduler_service.core.cluster_view.capacity import Resident
from scheduler_service.core.decisions import Start, unfolded
from scheduler_service.core.records import JobPrediction, Level, Reason, Share
from scheduler_service.core.sharing.sharing_consent import consented_slowdowns
from scheduler_service.policy_registry import make_policy
from tests.support.cases import for_each
from tests.support.scheduling import GIB, gpu, job, memory, node, pair, pending, prediction, running, store, view

DRAWS = 3_000


def drawn_prediction(generator: Random, key: str) -> JobPrediction | None:
    """Draw what is known of a job, or nothing."""
    if generator.random() < 0.1:
        return None
    return prediction(
        key,
        utilization_ratio=generator.choice([0.2, 0.5, 0.9]),
        level=generator.choice([Level.GRAPH, Level.OBSERVED, Level.FALLBACK]),
        in_domain=generator.random() < 0.8,
        range_not_calibrated=generator.random() < 0.2,
        measured_micro_batch_sizes=generator.choice([(), (1,), (2,), (1, 2)]),
    )


def drawn_resident(generator: Random, name: str) -> Resident:
    request = job(
        name,
        share=generator.choice([Share.SAFE, Share.SAFE, Share.ANY]),
        max_slowdown_ratio=generator.choice([0.1, 0.3, 1.0]),
        no_trial=generator.random() < 0.15,
        gpus=generator.choice([1, 1, 1, 2]),
    )
    return Resident(request=request, micro_batch_size=1, memory_reserved_bytes=GIB, is_gang=generator.random() < 0.1)


def is_sound(known: JobPrediction | None) -> bool:
    return (
        known is not None and known.level is not Level.FALLBACK and known.in_domain and not known.range_not_calibrated
    )


def may_share(one: Resident, other: Resident, known: list[JobPrediction | None], pairs: list[float | None]) -> bool:
    """Say the rule in words: sound and within the limit; or both measured and willing, and within it by fair turns."""
    can_try = all(is_sound(each) and each is not None and 1 in each.measured_micro_batch_sizes for each in known)
    can_try &= not any(each.request.no_trial or each.is_gang or each.request.gpus > 1 for each in (one, other))
    can_try &= Share.SAFE in (one.request.share, other.request.share)
    turns = 1.0
    for each in known:
        turns *= each.utilization_ratio if each is not None else 1.0
    for victim, ratio in zip((one, other), pairs, strict=True):
        is_doubted = not all(map(is_sound, known)) or ratio is None
        if is_doubted and victim.request.share is Share.SAFE and not can_try:
            return False
        guess = turns if can_try and is_doubted else 0.0
        if (guess if ratio is None else ratio) > victim.request.max_slowdown_ratio:
            return False
    return True


def test_consent_to_a_trial_is_what_the_rule_says() -> None:
    generator = Random(5)
    agreed = 0
    for _ in range(DRAWS):
        one, other = drawn_resident(generator, "one"), drawn_resident(generator, "other")
        known = [drawn_prediction(generator, f"key-{name}") for name in ("one", "other")]
        pairs = [generator.choice([None, 0.05, 0.2, 0.6]) for _ in range(2)]
        keys = ("key-one", "key-other")
        told = [
            pair(*names, ratio) for names, ratio in zip((keys, keys[::-1]), pairs, strict=True) if ratio is not None
        ]
        predictions = store([each for each in known if each is not None], told)
        found = consented_slowdowns(one, (other,), gpu(), predictions)
        assert (not isinstance(found, Reason)) == may_share(one, other, known, pairs), (one, other, known, pairs, found)
        agreed += not isinstance(found, Reason)
    assert DRAWS * 0.05 < agreed < DRAWS * 0.95


@pytest.mark.parametrize("policy", ["horus", "sjf_bsbf", "sjf_ffs", "ojpp", "best_fit"])
@for_each("is_measured", [True, False])
def test_a_job_is_tried_on_many_gpus_as_on_few(policy: str, is_measured: bool) -> None:
    """From 64 GPUs on policies look at them as arrays."""
    starts = []
    for gpus in (2, 80):
        known = [
            prediction(
                key,
                utilization_ratio=0.3,
                level=Level.OBSERVED,
                memory=memory(1.0),
                step_ms={(1, 1): 100.0},
                measured_micro_batch_sizes=(1,) if is_measured else (),
            )
            for key in ("key-there", "key-new")
        ]
        there = [
            running(job(f"j{number}", key="key-there", steps_total=5_000), [f"n0.{number}"]) for number in range(gpus)
        ]
        new = replace(job("new", steps_total=4_000), max_slowdown_ratio=0.3)
        seen = view(nodes=[node("n0", gpus)], holding=there, waiting=[pending(new)], predictions=store(known))
        decisions = list(unfolded(make_policy(policy, {}).decide(seen)))
        starts.append([one.reason.code for one in decisions if isinstance(one, Start)])
    assert starts == ([["STARTS_ON_TRIAL"]] * 2 if is_measured else [[], []])
