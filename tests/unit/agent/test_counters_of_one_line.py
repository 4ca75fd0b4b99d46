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
