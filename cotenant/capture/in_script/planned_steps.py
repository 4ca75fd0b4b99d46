"""How many optimizer steps a script means to take, where its library or the schedule of its learning rate says so.

The length of a loop cannot be read off its code. The trainer of a library knows it, and so does a schedule that ends
and moves on with each step of the optimizer. One that moves once an epoch counts something else.
"""

# ruff: noqa: ANN401 (torch and libraries are the script's own: they are handed in, and nothing of them has a type here)
from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

STEPS_MAX = 10**12
"""Of a job, as the scheduler takes it."""
_TRAINER = "Trainer"
_PLANNED_BY_TRAINER = {
    "transformers.trainer": lambda trainer: trainer.state.max_steps,
    "lightning.pytorch.trainer.trainer": lambda trainer: trainer.estimated_stepping_batches,
    "pytorch_lightning.trainer.trainer": lambda trainer: trainer.estimated_stepping_batches,
}


def planned_steps(torch: Any, stepped: Sequence[Any]) -> int:
    """Returns the optimizer steps of the whole training; 0 = the script does not say, or has several optimizers.

    Args:
        torch: The script's.
        stepped: The optimizer of each step so far; called in the last one of them.
    """
    if len({id(each) for each in stepped}) != 1:
        return 0
    try:
        planned = [*_by_trainers(sys._getframe()), *_by_schedules(torch, stepped[0], len(stepped) - 1)]
    except Exception:  # of another version, or of the script's own classes: no capture is given up for it
        return 0
    return next((steps for steps in planned if type(steps) is int and len(stepped) <= steps <= STEPS_MAX), 0)


def _by_trainers(frame: FrameType | None) -> Iterator[Any]:
    """What the trainers among the callers say, the innermost first."""
    while frame is not None:
        owner = frame.f_locals.get("self")
        for kind in type(owner).__mro__:
            if kind.__name__ == _TRAINER and kind.__module__ in _PLANNED_BY_TRAINER:
                yield _PLANNED_BY_TRAINER[kind.__module__](owner)
        frame = frame.f_back


def _by_schedules(torch: Any, optimizer: Any, steps_before: int) -> Iterator[Any]:
    """What schedules of an optimizer say that have moved on after each step before this one."""
    kind = torch.optim.lr_scheduler.LRScheduler
    schedules = [each for each in gc.get_objects() if issubclass(type(each), kind)]
    # Where several follow each other the end of one is not that of the training.
    parts = {id(part) for each in schedules for part in getattr(each, "_schedulers", ())}
    for each in schedules:
        own = vars(each)  # a chain of schedules, and one of the script's own class, may count nothing
        if id(each) not in parts and own.get("optimizer") is optimizer and own.get("last_epoch") == steps_before > 0:
            yield from _ends_of(torch, each)


def _ends_of(torch: Any, schedule: Any) -> Iterator[Any]:
    """Where a schedule ends; one whose rate rises again afterwards, as a cosine's, may be one of several rounds."""
    if isinstance(schedule, torch.optim.lr_scheduler.OneCycleLR):
        yield schedule.total_steps
    if isinstance(schedule, torch.optim.lr_scheduler.PolynomialLR):
        yield schedule.total_iters
    for rate in getattr(schedule, "lr_lambdas", ()):  # those of transformers
        yield getattr(rate, "keywords", {}).get("num_training_steps")
