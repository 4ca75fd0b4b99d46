"""Trainings on several ranks are the training on one: forked ranks over gloo, stopped and resumed in other numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from examples.training import train_all_reduce, train_ddp
from tests.support.gang_attempts import GangAttempts, Training

STEPS = 9
DDP = ["--model", "cnn", "--dtype", "float64", "--batch-size", "6", "--log-every", "1"]
ALL_REDUCE = ["--batch-size", "6", "--log-every", "1"]
BOTH = pytest.mark.parametrize(("main", "flags"), [(train_ddp.main, DDP), (train_all_reduce.main, ALL_REDUCE)])


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Threads of the parent are not there in a fork."""
    torch.set_num_threads(1)


@BOTH
def test_two_ranks_one_and_two_again_train_as_one_alone(tmp_path: Path, main: Training, flags: list[str]) -> None:
    """The whole bar, 100 steps and a restart with as many ranks to the last bit, is benchmarks.gang_loss_curves."""
    changing, alone = (GangAttempts(tmp_path / name, main, flags, STEPS) for name in ("changing", "alone"))
    alone.train(1, STEPS)
    for ranks, until in ((2, 3), (1, 6), (2, STEPS)):
        changing.train(ranks, until)
    assert changing.losses() == pytest.approx(alone.losses(), rel=1e-12, abs=0)


def test_a_gang_that_is_stopped_and_resumed_is_bit_identical(tmp_path: Path) -> None:
    steady, stopped = (GangAttempts(tmp_path / name, train_ddp.main, DDP, 4) for name in ("steady", "stopped"))
    steady.train(2, 4)
    stopped.train(2, 2)
    stopped.train(2, 4)
    assert stopped.losses() == steady.losses()
