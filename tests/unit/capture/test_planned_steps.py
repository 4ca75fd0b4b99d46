"""How long a training will be is known where a trainer or a schedule says it, and nowhere else."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.optim import SGD
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    ConstantLR,
    CosineAnnealingLR,
    LambdaLR,
    LRScheduler,
    OneCycleLR,
    PolynomialLR,
    SequentialLR,
    StepLR,
)

from cotenant.capture.in_script.planned_steps import STEPS_MAX, planned_steps

Make = Callable[[SGD], LRScheduler]


def linear_of_transformers(optimizer: SGD) -> LRScheduler:
    """As its `get_linear_schedule_with_warmup` makes it."""

    def rate(step: int, *, num_training_steps: int) -> float:
        return 1 - step / num_training_steps

    return LambdaLR(optimizer, functools.partial(rate, num_training_steps=450))


class OwnSchedule(LRScheduler):
    """As scripts write them: it moves nothing, and has none of the fields of torch's."""

    def __init__(self, optimizer: SGD) -> None:
        pass

    def step(self, epoch: int | None = None) -> None:
        pass


def warmed_up(optimizer: SGD) -> LRScheduler:
    """Rises for five steps, in the first of two parts."""
    first = PolynomialLR(optimizer, total_iters=5)
    return SequentialLR(optimizer, [first, CosineAnnealingLR(optimizer, T_max=90)], milestones=[5])


def planned_in_second_step(make: Make, *, moves: int = 1, optimizers: int = 1) -> int:
    stepped: list[SGD] = []
    found: list[int] = []

    def note(optimizer: SGD, *_: Any) -> None:
        stepped.append(optimizer)
        found.append(planned_steps(torch, stepped))

    those = [SGD([torch.ones(1, requires_grad=True)], lr=0.1) for _ in range(optimizers)]
    schedules = [make(each) for each in those]
    for each in those:
        each.register_step_post_hook(note)
    for _ in range(2):
        for optimizer, schedule in zip(those, schedules, strict=True):
            optimizer.step()
            for _ in range(moves):
                schedule.step()
    return found[-1]


@pytest.mark.parametrize(
    ("make", "steps"),
    [
        (lambda optimizer: OneCycleLR(optimizer, max_lr=0.1, total_steps=320), 320),
        (lambda optimizer: OneCycleLR(optimizer, max_lr=0.1, epochs=4, steps_per_epoch=25), 100),
        (lambda optimizer: PolynomialLR(optimizer, total_iters=77), 77),
        (linear_of_transformers, 450),
        (lambda optimizer: CosineAnnealingLR(optimizer, T_max=20), 0),  # may begin anew
        (lambda optimizer: StepLR(optimizer, step_size=30), 0),
        (lambda optimizer: ChainedScheduler([ConstantLR(optimizer), StepLR(optimizer, 30)], optimizer), 0),
        (warmed_up, 0),
        (OwnSchedule, 0),
        (lambda optimizer: LambdaLR(optimizer, lambda step: 1.0), 0),
        (lambda optimizer: PolynomialLR(optimizer, total_iters=STEPS_MAX + 1), 0),
    ],
)
def test_a_schedule_that_ends_says_how_many_steps_there_are(make: Make, steps: int) -> None:
    assert planned_in_second_step(make) == steps


@pytest.mark.parametrize("moves", [0, 2])
def test_a_schedule_that_moves_on_once_an_epoch_or_for_each_process_counts_no_steps(moves: int) -> None:
    assert planned_in_second_step(linear_of_transformers, moves=moves) == 0


def test_the_schedule_of_an_optimizer_that_was_done_before_says_nothing_of_the_next_one() -> None:
    before = SGD([torch.ones(1, requires_grad=True)], lr=0.1)
    schedule = linear_of_transformers(before)
    before.step()
    assert planned_in_second_step(lambda _: schedule) == 0


def test_of_several_optimizers_nobody_knows_whose_steps_are_counted() -> None:
    assert planned_in_second_step(linear_of_transformers, optimizers=2) == 0


def trainer_of(module: str, **attributes: object) -> Any:
    """A trainer of a library, in a class of the script's own."""
    kind = type("Trainer", (), {"__module__": module, "train": lambda self, stepped: planned_steps(torch, stepped)})
    trainer = type("OwnTrainer", (kind,), {})()
    for name, value in attributes.items():
        setattr(trainer, name, value)
    return trainer


class State:
    """That of transformers' Trainer."""

    max_steps = 600


@pytest.mark.parametrize(
    ("trainer", "steps"),
    [
        (trainer_of("transformers.trainer", state=State()), 600),
        (trainer_of("lightning.pytorch.trainer.trainer", estimated_stepping_batches=90), 90),
        (trainer_of("pytorch_lightning.trainer.trainer", estimated_stepping_batches=90), 90),
        (trainer_of("lightning.pytorch.trainer.trainer", estimated_stepping_batches=math.inf), 0),
        (trainer_of("lightning.pytorch.trainer.trainer", estimated_stepping_batches=-1), 0),
        (trainer_of("mine.trainer", max_steps=90, state=State()), 0),
    ],
)
def test_a_trainer_among_the_callers_knows_its_steps(trainer: Any, steps: int) -> None:
    stepped: Sequence[object] = [optimizer := object(), optimizer]
    assert trainer.train(stepped) == steps


def test_a_trainer_that_cannot_say_its_steps_leaves_them_open() -> None:
    class Refusing:
        """As Lightning's does where each epoch accumulates another number of batches."""

        def train(self, stepped: Sequence[object]) -> int:
            return planned_steps(torch, stepped)

        @property
        def estimated_stepping_batches(self) -> int:
            raise RuntimeError("not with another accumulation in each epoch")

    Refusing.__name__, Refusing.__module__ = "Trainer", "lightning.pytorch.trainer.trainer"
    assert Refusing().train([optimizer := object(), optimizer]) == 0
