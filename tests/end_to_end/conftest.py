"""A scheduler that predicts nothing and reports soon, and who asks it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.scheduler_process import SchedulerClient, SchedulerProcess


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[SchedulerProcess]:
    arguments = ("--predictor", "", "--policy", "fifo", "--progress-interval-ms", "50")
    with SchedulerProcess(tmp_path, arguments=arguments) as process:
        yield process


@pytest.fixture
def client(scheduler: SchedulerProcess) -> Iterator[SchedulerClient]:
    with SchedulerClient(scheduler.address) as made:
        yield made
