"""Of several counters in one line of a log the one of optimizer steps counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotenant_agent.progress_reading.log_progress import LogProgress


def read(tmp_path: Path, *lines: str, steps_total: int = 0) -> int:
    log = tmp_path / "out.log"
    log.write_text("".join(f"{line}\n" for line in lines))
    return max([0, *(report.step for report in LogProgress(log, "", None, steps_total).read_to_end(1))])


@pytest.mark.parametrize(
    "form",
    [
        "update={0} grad_step={1} loss=1.2",
        "grad_step={1} update={0} loss=1.2",
        "micro_step {1} | step {0} | loss 1.2",
        "env_step={1}, iter={0}, return 12.5",
        "env_step {1} | updates {0} | loss 2.147",
        "global_step={0} step={1} loss=1.2",
        "{{'optimizer_step': {0}, 'step': {1}, 'loss': 1.2}}",
    ],
)
def test_of_two_counters_in_one_line_that_of_optimizer_steps_counts(tmp_path: Path, form: str) -> None:
    assert read(tmp_path, *(form.format(step, 4 * step) for step in (10, 20, 30))) == 30


def test_of_two_counters_in_one_line_the_one_out_of_the_stated_steps_counts(tmp_path: Path) -> None:
    lines = [f"step {step}/600 seen batch {4 * step}/2400" for step in (10, 20, 30)]
    assert read(tmp_path, *lines, steps_total=600) == 30
    assert read(tmp_path, *lines, steps_total=2400) == 120


def test_of_counters_that_are_alike_the_furthest_counts(tmp_path: Path) -> None:
    lines = [f"epoch {epoch} iter {step} step {20 * epoch + step}" for epoch in range(3) for step in range(1, 21)]
    assert read(tmp_path, *lines) == 60


def test_micro_batches_right_before_the_step_that_they_belong_to_are_no_steps(tmp_path: Path) -> None:
    lines = [f"Epoch 1 | iter {4 * step} step {step} | loss train: 1.2 | iter time: 12.3 ms" for step in range(1, 31)]
    assert read(tmp_path, *lines) == 30


@pytest.mark.parametrize("steps_total", [0, 30])
def test_the_moves_of_an_environment_whose_returns_are_told_count_nothing(tmp_path: Path, steps_total: int) -> None:
    lines = [f"global_step={9 * step}, episodic_return={step}.0" for step in range(1, 60)]
    assert read(tmp_path, *lines, steps_total=steps_total) == 0
    updates = [f"update {step}/30 global_step={9 * step}, episodic_length=9" for step in range(1, 31)]
    assert read(tmp_path, *updates, steps_total=steps_total) == 30


@pytest.mark.parametrize(
    "form",
    [
        "Trial 7 finished with value: 0.3 and parameters: {{'width': 64, 'batch': {0}, 'lr': 0.001}}. Best is trial 1.",
        "config = Namespace(n_iter={0}, batch={0})",
        '{{"params": {{"lr": 0.1, "iter": {0}}}, "accuracy": 0.5}}',
        "trial 3: batch={0} lr=0.001 -> accuracy 0.9",
        "| batch {0} | depth 3 | loss 0.31",
        "trying batch {0} ... it fits",
    ],
)
def test_the_settings_of_a_search_are_no_steps(tmp_path: Path, form: str) -> None:
    assert read(tmp_path, *(form.format(2 ** (4 + trial % 4)) for trial in range(12))) == 0


def test_batches_that_are_printed_now_and_then_count_though_some_are_powers_of_two(tmp_path: Path) -> None:
    assert read(tmp_path, *(f"batch {number} loss 0.3" for number in (64, 128, 192, 256))) == 256
    assert read(tmp_path, *(f"batch {number} loss 0.3" for number in range(1, 17))) == 16


def test_what_a_second_has_of_steps_counts_nothing(tmp_path: Path) -> None:
    assert read(tmp_path, *(f"fps step: {30000 + step} fps total: {9000 + step}" for step in range(9))) == 0


@pytest.mark.parametrize(
    "form",
    [
        "loss 0.3 | {0} of 60 done",
        "{0}/60 complete",
        "({0} / 60 updates)",
        "{0} von 60 fertig",
        "{0:03d}/060 soft 0.3",
        "{0}/60 cross-entropy 1.6",
        "{0}/60 kd-T4 2.5",
    ],
)
def test_a_word_of_progress_may_stand_behind_the_stated_steps(tmp_path: Path, form: str) -> None:
    assert read(tmp_path, *(form.format(step) for step in range(1, 61)), steps_total=60) == 60


def test_a_line_number_before_a_step_is_not_counted_out_of_it(tmp_path: Path) -> None:
    lines = [f"| INFO     | __main__:train:42 - Step {step} | loss=0.3" for step in range(1, 61)]
    assert read(tmp_path, *lines, steps_total=60) == 60
