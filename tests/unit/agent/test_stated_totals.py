"""A number counts before the stated number of steps where that is its total, and is no time and no measurement."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.agent.test_progress_recognition import read


@pytest.mark.parametrize(
    "form",
    [
        "2026-11-29 03:52:0{0},565 第 {1} 步\uff0c共 200 步\uff0c损失 1.66",
        "2026-11-29 03:52:0{0},565 step {1}",
        "15{0}0 | step {1}",
        "15{0}0 Schritt {1}",
    ],
)
def test_a_time_or_a_measurement_right_before_the_last_step_is_none_that_it_ends(tmp_path: Path, form: str) -> None:
    lines = [form.format(index, 20 * index) for index in range(1, 7)]
    assert read(tmp_path, *lines, steps_total=120) == 120


@pytest.mark.parametrize("behind", ["d 3.210 g 0.333", "acc: 0.61", "val_f1=0.5", "psnr = -1.2"])
def test_a_measurement_behind_a_stated_total_is_none_of_its_units(tmp_path: Path, behind: str) -> None:
    lines = [f"generator iterations: {step}/60  {behind}" for step in range(1, 61)]
    assert read(tmp_path, *lines, steps_total=60) == 60


@pytest.mark.parametrize("behind", ["MB 12.3 MB/s", "kB", "s 0.5", "bytes: 1.5", "files"])
def test_a_unit_behind_a_stated_total_is_one_with_a_rate_behind_it_as_well(tmp_path: Path, behind: str) -> None:
    assert read(tmp_path, *(f"got {part}/60 {behind}" for part in range(1, 61)), steps_total=60) == 0


def test_the_exponent_of_a_learning_rate_is_no_count_out_of_the_stated_step_behind_it(tmp_path: Path) -> None:
    form = "{{'loss': 1.1, 'learning_rate': 5e-05, 'step': {0}}}"
    assert read(tmp_path, *(form.format(step) for step in range(1, 41)), steps_total=40) == 40
