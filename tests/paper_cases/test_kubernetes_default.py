"""The default scheduler of the SideCar paper (sections V-B and VI-A) on small clusters."""

from __future__ import annotations

from collections import Counter

from scheduler_service.core.decisions import Start, unfolded
from scheduler_service.policies.kubernetes_default import KubernetesDefault, drawn_gpus
from tests.support.scheduling import job, node, pending, running, view


def test_section_5_b_the_number_of_gpus_is_drawn_from_the_jobs_list_each_as_likely() -> None:
    drawn = Counter(drawn_gpus(job(f"j{index}", gpus=4, allowed_gpus=(1, 2, 4)), seed=1) for index in range(600))
    assert set(drawn) == {1, 2, 4}
    assert min(drawn.values()) > 160
    assert drawn_gpus(job("j", gpus=3), seed=1) == 3


def test_a_job_keeps_its_number_while_it_waits_and_another_seed_draws_anew() -> None:
    jobs = [job(f"j{index}", allowed_gpus=(1, 2, 4, 8)) for index in range(50)]
    first, again, other = ([drawn_gpus(one, seed) for one in jobs] for seed in (1, 1, 2))
    assert first == again != other


def test_section_6_a_a_job_for_two_gpus_starts_before_one_for_eight_that_came_earlier() -> None:
    holding = [running(job(f"r{index}"), [f"n0.{index}"]) for index in range(6)]
    waiting = [
        pending(job("wide", gpus=8, global_batch_size=8), 0),
        pending(job("narrow", gpus=2, global_batch_size=2), 1),
    ]
    decisions = list(
        unfolded(KubernetesDefault().decide(view(nodes=[node("n0", 8)], holding=holding, waiting=waiting)))
    )
    assert [(one.job_id, isinstance(one, Start)) for one in decisions] == [("narrow", True), ("wide", False)]
