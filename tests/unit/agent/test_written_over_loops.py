"""Loops in words of a script's own count where their line is written over; what may be anything else does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cotenant_agent.progress_reading.log_progress import LogProgress

LOOPS = [
    "sweep {0}/400",
    "lap: {0}/400 loss 0.53",
    "mini [{0} / 400] loss=0.5 eta 12/24 min",
    "{0}/400",
    "  ({0}/400) perte 0,5",
    "epoch 3: sweep {0}/400 | 12.5 it/s",
    "Epoche 3/50 Durchlauf {0}/400",
    "\x1b[Ktour {0}/400",
    "training {0}/400, 3% done",
    # Behind another number: that of the epoch, a measurement, a bar without brackets, a table's edge.
    "E1 ####       {0}/400 l=0.53",
    "┃   1 ┃ {0:3d}/400 ┃  0.53 ┃",
    "| 1 | {0}/400 | 0.53 |",
    "#2 {0}/400 l=0.53",
    "[1/2] {0}/400 l=0.53",
    "1/2 - {0}/400 - 12 ms",
    "\x1b[2KE1 ({0}/400) l=0.5",
    "loss 0.3 acc 0.5 {0}/400",
    "1 >> {0}/400 l 0.3",
    "⠋ {0}/400 l 0.3",
]
AMBIGUOUS = [
    "epoch {0}/400",
    "Epoche [{0}/400]",
    "episode {0}/400",
    "fold {0}/400",
    "GPU {0}/400",
    "lap {0}/12",  # too few to be told from epochs
    "2026/{0}",
    "on 2026/11/{0}/400",
    "/data/run {0}/400/img.png",
    "data2/{0}/400",
    "ETA {0}/400 min",
    "{0}/400 s",
    "sweep {0}/400 MB",
    "sweep {0}/400 files",
    "sweep {0}/400 epochs",
    "sweep {0}/400.5",
    "sweep 1.{0}/400",
    "val sweep {0}/400",
    "downloading {0}/400",
    "reading {0}/400",
    "processing {0}/400",
    "lr 1e-{0}/400",
    "pull 40%|####   | {0}/400 [00:01<00:02, 3.5file/s]",
    "loss 1/3 at {0}",
    "fold 2 epoch {0}/400",
    "2 downloading 3 {0}/400",
    "E1 #### {0}/400 files",
    "1 | {0}/400 MB",
    "val loss 0.3 file {0}/400",
    "at 12:{0}/400",
    "node1.{0}/400",
    "3.{0}/400",
    "3-{0}/400",
]


def steps_of(tmp_path: Path, text: str, **stated: int) -> int:
    log = tmp_path / "out.log"
    log.write_text(text)
    found = LogProgress(log, "", None, **stated).read_to_end(1)
    return max([0, *(report.step for report in found)])


def written_over(form: str, *numbers: int) -> str:
    return "".join(f"\r{form.format(number)}" for number in numbers) + "\n"


@pytest.mark.parametrize("form", LOOPS)
def test_a_loop_whose_line_is_written_over_counts_in_any_words(tmp_path: Path, form: str) -> None:
    assert steps_of(tmp_path, written_over(form, *range(1, 401))) == 400
    assert steps_of(tmp_path, "".join(f"{form.format(number)}\r" for number in range(401))) == 400


@pytest.mark.parametrize("form", AMBIGUOUS)
def test_what_may_be_no_steps_is_not_counted(tmp_path: Path, form: str) -> None:
    assert steps_of(tmp_path, written_over(form, *range(1, 29))) == 0


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r\r\n"])
def test_a_loop_that_is_printed_line_by_line_may_be_one_of_epochs(tmp_path: Path, end: str) -> None:
    assert steps_of(tmp_path, "".join(f"sweep {number}/400{end}" for number in range(1, 41))) == 0


@pytest.mark.parametrize(
    "numbers",
    [
        range(64, 401, 64),  # samples
        range(64, 401, 4),
        range(200, 240),  # not from its beginning
        range(1, 8),  # too few
        range(400, 0, -1),
    ],
)
def test_a_loop_that_does_not_count_one_by_one_may_be_one_of_samples(tmp_path: Path, numbers: range) -> None:
    assert steps_of(tmp_path, written_over("sweep {0}/400", *numbers)) == 0


def test_a_loop_that_begins_again_with_every_epoch_adds_up(tmp_path: Path) -> None:
    epochs = "".join(f"epoch {epoch}\n{written_over('sweep {0}/40', *range(1, 41))}" for epoch in (1, 2, 3))
    assert steps_of(tmp_path, epochs) == 120
    assert steps_of(tmp_path, epochs, steps_total=120) == 120


def test_a_bar_with_its_count_in_brackets_behind_the_percentage_counts(tmp_path: Path) -> None:
    """As fastai's fastprogress draws it."""
    form = " |██----| {0:.2f}% [{0}/40 00:01<00:05 0.53]"
    assert steps_of(tmp_path, written_over(form, *range(41)) * 2) == 80


def test_a_word_that_is_known_goes_before_one_that_is_not(tmp_path: Path) -> None:
    form = "tile {0}/400 step 7/90"
    assert steps_of(tmp_path, written_over(form, *range(1, 30)) + "step 8/90\nstep 9/90\n") == 9


def test_a_loop_is_counted_on_by_the_next_life_of_the_agent(tmp_path: Path) -> None:
    log = tmp_path / "out.log"
    log.write_text(written_over("sweep {0}/400", *range(1, 201))[:-1])
    first = LogProgress(log, "")
    assert [report.step for report in first.read(1)] == [199]
    record = json.loads(json.dumps(first.to_record()))
    with log.open("a") as file:
        file.write(written_over("sweep {0}/400", *range(201, 401)))
    assert [report.step for report in LogProgress(log, "", record).read_to_end(2)] == [400]
