"""SJF-BSBF against everything that it claims to beat: every start time, every micro-batch, every set of GPUs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pytest

from scheduler_service.core.cluster_view.view import RunningJob, SchedulingView
from scheduler_service.core.decisions import Decision, Hold, Start, unfolded
from scheduler_service.core.planning.plan_check import check_plan
from scheduler_service.policies.sjf_bsbf import SjfBsbf
from tests.support.cases import for_each
from tests.support.scheduling import job, node, pair, pending, prediction, running, store, view

PAIRS = 10_000
STARTS_PER_PAIR = 101
TOLERANCE = 1e-9


@dataclass(frozen=True)
class Pair:
    """Job A (new) by micro-batch, job B (running): remaining times alone in ms, slowdown ratios."""

    rest_a: dict[int, float]
    slow_a: dict[int, float]
    rest_b: float
    slow_b: float

    @classmethod
    def drawn(cls, generator: random.Random) -> Pair:
        batch = generator.choice((1, 2, 3, 8))
        micro_batch_sizes = [batch]
        while micro_batch_sizes[-1] > 1:
            micro_batch_sizes.append(-(-batch // 2 ** len(micro_batch_sizes)))
        remaining_ms, rest_a = generator.uniform(1, 1_000), {}
        for micro_batch_size in micro_batch_sizes:
            rest_a[micro_batch_size] = remaining_ms
            remaining_ms *= generator.uniform(1.0, 1.3)
        return cls(
            rest_a=rest_a,
            slow_a={
                micro_batch_size: generator.choice((0.0, generator.uniform(0, 1), generator.uniform(0, 5)))
                for micro_batch_size in micro_batch_sizes
            },
            rest_b=generator.choice((remaining_ms, generator.uniform(1, 1_000), generator.uniform(1, 50))),
            slow_b=generator.choice((0.0, generator.uniform(0, 1), generator.uniform(0, 5))),
        )

    def decide(self) -> Decision:
        """One GPU holds B, A asks; one step is the whole rest."""
        batch = max(self.rest_a)
        known = store(
            [
                prediction(
                    "a", step_ms={(1, micro_batch_size): rest for micro_batch_size, rest in self.rest_a.items()}
                ),
                prediction("b", step_ms={(1, 1): self.rest_b}),
            ],
            [
                *(
                    pair("a", "b", slow, micro_batch_size=micro_batch_size)
                    for micro_batch_size, slow in self.slow_a.items()
                ),
                pair("b", "a", self.slow_b),
            ],
        )
        seen = view(
            nodes=[node()],
            waiting=[pending(job("a", key="a", global_batch_size=batch, steps_total=1, max_slowdown_ratio=9.0))],
            holding=[running(job("b", key="b", steps_total=1, max_slowdown_ratio=9.0), ["n0.0"])],
            predictions=known,
        )
        (decision,) = unfolded(SjfBsbf().decide(seen))
        return decision

    def sums(self, micro_batch_size: int, starts: np.ndarray) -> np.ndarray:
        """Sum of both ends for every start of A in [0, rest of B], step by step: B alone, both, the survivor alone."""
        rest_a, left_b = self.rest_a[micro_batch_size], self.rest_b - starts
        xi_a, xi_b = 1 + self.slow_a[micro_batch_size], 1 + self.slow_b
        both = np.minimum(rest_a * xi_a, left_b * xi_b)
        alone_a, alone_b = rest_a - both / xi_a, left_b - both / xi_b
        return (starts + both + alone_a) + (starts + both + alone_b)


def test_theorem_1_no_start_time_and_no_micro_batch_beats_the_decision() -> None:
    generator = random.Random(0)
    shared = 0
    for _ in range(PAIRS):
        drawn = Pair.drawn(generator)
        full, now = max(drawn.rest_a), np.zeros(1)
        grid = np.linspace(0.0, drawn.rest_b, STARTS_PER_PAIR)
        decision = drawn.decide()
        if isinstance(decision, Start):
            shared += 1
            decided = drawn.sums(decision.micro_batch_size, now)[0]
        else:
            assert decision.reason.code == "SHARING_NOT_WORTH_IT"
            decided = 2 * drawn.rest_b + drawn.rest_a[full]
        others = [
            drawn.sums(full, grid).min(),
            *(drawn.sums(micro_batch_size, now)[0] for micro_batch_size in drawn.rest_a),
        ]
        assert decided <= min(others) * (1 + TOLERANCE), drawn
    assert PAIRS // 10 < shared < PAIRS * 9 // 10


@dataclass(frozen=True)
class Scene:
    """GPUs of one node, of which some hold one running job (perhaps a gang) each, and a gang that asks."""

    seen: SchedulingView
    remaining_times: dict[str, float]
    slow: dict[tuple[str, str], float]
    gpus: int

    @classmethod
    def drawn(cls, generator: random.Random) -> Scene:
        machine = node("n0", generator.randrange(2, 6))
        gpu_ids = [one.gpu_id for one in machine.gpus]
        held = generator.sample(gpu_ids, k=generator.randrange(1, len(gpu_ids) + 1))
        holding: list[RunningJob] = []
        while held:
            width = generator.randrange(1, min(2, len(held)) + 1)
            name = f"r{len(holding)}"
            request = job(name, key=name, gpus=width, global_batch_size=width, steps_total=1, max_slowdown_ratio=9.0)
            holding.append(running(request, [held.pop() for _ in range(width)]))
        names = [one.request.job_id for one in holding]
        remaining_times = {name: generator.uniform(1, 1_000) for name in ("new", *names)}
        slow = {
            ends: generator.choice((0.0, generator.uniform(0, 1), generator.uniform(0, 3)))
            for name in names
            for ends in ((name, "new"), ("new", name))
        }
        gpus = generator.randrange(1, len(gpu_ids) + 1)
        known = store(
            [
                prediction(name, step_ms={(width, 1): remaining_times[name] for width in range(1, 6)})
                for name in remaining_times
            ],
            [pair(victim, other, slowdown) for (victim, other), slowdown in slow.items()],
        )
        request = job("new", key="new", gpus=gpus, global_batch_size=gpus, steps_total=1, max_slowdown_ratio=9.0)
        seen = view(nodes=[machine], holding=holding, waiting=[pending(request)], predictions=known)
        return cls(seen=seen, remaining_times=remaining_times, slow=slow, gpus=gpus)

    def holder(self, gpu_id: str) -> str | None:
        return next(iter(self.seen.gpus[gpu_id].job_ids), None)

    def shared_sum(self, names: Sequence[str]) -> float:
        """Play the incoming job with these in small exact steps: from one end to the next."""
        left = {name: self.remaining_times[name] for name in ("new", *names)}
        now, total = 0.0, 0.0
        while left:
            pace = {name: self.pace(name, left) for name in left}
            first = min(left, key=lambda name: left[name] * pace[name])
            passed = left[first] * pace[first]
            left = {name: rest - passed / pace[name] for name, rest in left.items() if name != first}
            now += passed
            total += now
        return total

    def pace(self, name: str, present: dict[str, float]) -> float:
        if name == "new":
            return 1 + max((self.slow["new", other] for other in present if other != "new"), default=0.0)
        return 1 + (self.slow[name, "new"] if "new" in present else 0.0)

    def waiting_sum(self, names: Sequence[str]) -> float:
        remaining_times = [self.remaining_times[name] for name in names]
        return sum(remaining_times) + max(remaining_times) + self.remaining_times["new"]

    def is_worth_it(self, names: Sequence[str]) -> bool:
        return self.shared_sum(names) < self.waiting_sum(names)

    def best(self) -> tuple[int, float] | None:
        """Fewest free GPUs, then the least sum over the shared ones, over every set of GPUs; None = no set."""
        keys = []
        for chosen in combinations(self.seen.gpus, self.gpus):
            holders = [holder for gpu_id in chosen if (holder := self.holder(gpu_id)) is not None]
            if all(self.is_worth_it([holder]) for holder in holders):
                keys.append((self.gpus - len(holders), sum(self.shared_sum([holder]) for holder in holders)))
        return min(keys, default=None)


def decided(scene: Scene, *, recheck_gang: bool) -> Decision:
    decisions = SjfBsbf(recheck_gang=recheck_gang).decide(scene.seen)
    waiting = {one.request.job_id: one for one in scene.seen.pending}
    assert check_plan(scene.seen, waiting, decisions).rejections == ()
    (decision,) = unfolded(decisions)
    return decision


@for_each("seed", range(400))
def test_a_gang_gets_the_best_of_all_sets_of_gpus(seed: int) -> None:
    scene = Scene.drawn(random.Random(seed))
    free = sum(scene.holder(gpu_id) is None for gpu_id in scene.seen.gpus)
    decision = decided(scene, recheck_gang=False)
    best = scene.best()
    if free >= scene.gpus:
        assert isinstance(decision, Start)
        assert all(scene.holder(part.gpu_id) is None for part in decision.assignments)
    elif best is None:
        assert isinstance(decision, Hold)
    else:
        assert isinstance(decision, Start)
        holders = [found for part in decision.assignments if (found := scene.holder(part.gpu_id)) is not None]
        used_free = scene.gpus - len(holders)
        assert (used_free, sum(scene.shared_sum([holder]) for holder in holders)) == pytest.approx(best)
        whole = decided(scene, recheck_gang=True)
        assert isinstance(whole, Start) == scene.is_worth_it(list(dict.fromkeys(holders)))
