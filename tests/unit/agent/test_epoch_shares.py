"""transformers' Trainer without bars prints what part of the epochs is done; with the epochs known that is steps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from cotenant_agent.attempts.attempt import Attempt
from cotenant_agent.progress_reading.job_log import open_log_progress
from cotenant_agent.progress_reading.log_progress import LogProgress
from tests.unit.agent.test_progress_recognition import attempt_of

PLAIN = "{{'loss': 2.31, 'grad_norm': 1.2, 'learning_rate': 4e-05, 'epoch': {0:.2f}}}\n"
QUOTED = "{{'loss': '2.31', 'grad_norm': '1.2', 'learning_rate': '4e-05', 'epoch': '{0:.4g}'}}\n"
END = (
    "{{'train_runtime': {1}, 'train_samples_per_second': 52.9, 'train_steps_per_second': {2},"
    " 'train_loss': 2.3, 'epoch': {0}}}\n"
)
EVALUATION = "{{'eval_loss': 2.3, 'eval_runtime': 0.4, 'eval_steps_per_second': 40.1, 'epoch': {0:.2f}}}\n"
TWO_EPOCHS = ["python", "train.py", "--num_train_epochs", "2"]


def lines(form: str = PLAIN, *, every: int = 10, steps: int = 80, epochs: float = 2.0) -> list[str]:
    return [form.format(epochs * step / steps) for step in range(every, steps + 1, every)]


def end(epoch: float = 2.0, *, runtime: float = 12.1043, rate: float = 6.609) -> str:
    return END.format(epoch, runtime, rate)


def ended(tmp_path: Path, text: str, arguments: Sequence[str], steps_total: int = 80) -> int:
    """What an attempt that has ended with success reports as done."""
    attempt = started(tmp_path, text, arguments, steps_total)
    attempt.directory.exit.write_text('{"return_code": 0}')
    return attempt.conclude(peak_bytes=0, available_bytes=0, co_located="").steps_done


def started(tmp_path: Path, text: str, arguments: Sequence[str], steps_total: int = 80) -> Attempt:
    return attempt_of(
        tmp_path / str(len(list(tmp_path.iterdir()))), text, steps_total=steps_total, argv=list(arguments)
    )


def running(tmp_path: Path, text: str, arguments: Sequence[str], steps_total: int = 80) -> int:
    attempt = started(tmp_path, text, arguments, steps_total)
    attempt.read_progress()
    return attempt.track.steps_done


@pytest.mark.parametrize("form", [PLAIN, QUOTED, "[default0]:" + PLAIN, PLAIN.replace("'", '"')])
@pytest.mark.parametrize(
    "arguments",
    [
        TWO_EPOCHS,
        ["python", "train.py", "--num_train_epochs=2.0"],
        ["torchrun", "train.py", "--epochs", "2", "--max_steps", "-1"],
    ],
)
def test_a_part_of_the_epochs_is_that_part_of_the_stated_steps(tmp_path: Path, form: str, arguments: list[str]) -> None:
    assert running(tmp_path, "".join(lines(form)[:3]), arguments) == 30
    assert ended(tmp_path, "".join(lines(form)) + end(), arguments) == 80


def test_the_loss_of_such_a_line_is_told(tmp_path: Path) -> None:
    for form in (PLAIN, QUOTED):
        attempt = started(tmp_path, "".join(lines(form)[:3]), TWO_EPOCHS)
        attempt.read_progress()
        assert attempt.track.loss == 2.31


def test_evaluations_between_the_lines_are_no_steps(tmp_path: Path) -> None:
    text = "".join(line + EVALUATION.format(0.25 * place) for place, line in enumerate(lines()[:3], start=1))
    assert running(tmp_path, text + EVALUATION.format(1.9), TWO_EPOCHS) == 30


def test_epochs_that_the_log_states_serve_as_well_and_a_later_life_of_the_agent_knows_them(tmp_path: Path) -> None:
    log = tmp_path / "out.log"
    log.write_text("TrainingArguments(max_steps=-1, num_train_epochs=2.0)\n" + "".join(lines()[:3]))
    reading = LogProgress(log, "", None, 80)
    assert [report.step for report in reading.read(1)] == [30]
    log.write_text("".join(lines()[:5]))
    again = LogProgress(log, "", json.loads(json.dumps(reading.to_record())), 80)
    assert [report.step for report in again.read_to_end(2)] == [50]


def test_a_number_of_epochs_that_is_cut_by_a_reading_is_not_taken_for_all(tmp_path: Path) -> None:
    log = tmp_path / "out.log"
    reading = LogProgress(log, "", None, 80)
    log.write_text("num_train_epochs=1")
    reading.read(1)
    log.write_text("num_train_epochs=10.0\n" + "".join(lines()[:4]))
    assert [report.step for report in reading.read(2)] == [8]


@pytest.mark.parametrize("arguments", [["python", "train.py"], [*TWO_EPOCHS, "--max_steps", "80"]])
def test_without_known_epochs_nothing_is_told_before_the_planned_steps_are(
    tmp_path: Path, arguments: list[str]
) -> None:
    assert running(tmp_path, "".join(lines(epochs=5.0)), arguments) == 0
    assert ended(tmp_path, "".join(lines(epochs=5.0)) + end(5.0), arguments) == 80
    assert ended(tmp_path, "".join(lines(epochs=5.0)) + end(5.0, rate=9.914), arguments) == 0  # 120 were planned


def test_a_line_of_the_whole_training_alone_tells_its_steps(tmp_path: Path) -> None:
    """It logs each 500 steps where nothing else is said."""
    assert ended(tmp_path, end(), TWO_EPOCHS) == 80
    assert ended(tmp_path, END.format("'2'", "'12.1'", "'6.609'"), TWO_EPOCHS) == 80
    assert ended(tmp_path, end(2.0, runtime=36001.25, rate=0.002), ["python", "train.py"], steps_total=72) == 72


def test_a_training_that_stopped_early_has_not_done_all_its_steps(tmp_path: Path) -> None:
    assert ended(tmp_path, "".join(lines()[:4]) + end(1.0), TWO_EPOCHS) == 40


def test_batches_that_an_epoch_leaves_over_are_no_missing_step(tmp_path: Path) -> None:
    """Of 11 batches some versions make two steps of four: three epochs are 6 steps, and end at 2.73."""
    three = ["python", "train.py", "--epochs", "3"]
    assert ended(tmp_path, end(2.73, runtime=2.0, rate=3.0), three, steps_total=6) == 6
    assert running(tmp_path, "".join(lines(every=1, steps=6, epochs=2.73)), three, steps_total=6) == 5


def test_while_it_goes_on_no_line_completes_a_job_and_one_beyond_shows_that_it_lives(tmp_path: Path) -> None:
    text = "".join(lines(epochs=4.0))
    attempt = started(tmp_path, text[: len(text) // 2], TWO_EPOCHS)
    attempt.read_progress()
    attempt.track.close_window()
    with attempt.directory.log.open("a") as log:
        log.write(text[len(text) // 2 :])
    attempt.read_progress()
    assert attempt.track.steps_done == 79
    assert attempt.track.close_window().steps > 0


def test_steps_of_several_batches_are_not_counted_as_batches(tmp_path: Path) -> None:
    attempt = attempt_of(tmp_path, "".join(lines()[:3]), steps_total=80, argv=TWO_EPOCHS, batches_per_step=4)
    attempt.read_progress()
    assert attempt.track.steps_done == 30


def test_a_bar_out_of_the_same_steps_is_surer_than_a_rounded_part(tmp_path: Path) -> None:
    bars = [f"\r{step}/1000 [00:10<00:10,  1.9it/s]" for step in range(333)]
    text = "".join(bars) + "\n" + PLAIN.format(0.33) + PLAIN.format(0.34)
    assert running(tmp_path, text, ["python", "train.py", "--epochs", "1"], steps_total=1000) == 332


@pytest.mark.parametrize(
    "line",
    [
        "{{'loss': 2.3, 'epoch': {0:.2f}}}\n",
        "{{'loss': 2.3, 'learning_rate': 0.1, 'epoch': {1}}}\n",
        "epoch {0:.2f} learning_rate 0.1 loss 2.3\n",
    ],
)
def test_other_numbers_of_epochs_tell_no_part(tmp_path: Path, line: str) -> None:
    text = "".join(line.format(number / 4, number) for number in range(1, 4))
    assert running(tmp_path, text, TWO_EPOCHS) == 0


def test_of_a_job_that_states_no_steps_no_part_tells_any(tmp_path: Path) -> None:
    (tmp_path / "out.log").write_text("".join(lines()) + end())
    spec = {"progress_regex": "", "steps_total": 0, "argv": TWO_EPOCHS}
    found = open_log_progress(spec, tmp_path / "out.log", None, are_several=False)
    assert found is not None
    assert found.read_to_end(1) == []
    assert found.steps_by_last_line(end(), 0) == 0
