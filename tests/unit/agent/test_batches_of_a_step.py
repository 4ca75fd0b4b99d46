"""Bars over loaders count batches; where it is known how many make an optimizer step, steps are told."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from cotenant_agent.attempts.launch_plan import batches_of_step
from cotenant_agent.progress_reading.batch_counters import Accumulation
from cotenant_agent.progress_reading.job_log import open_log_progress
from cotenant_agent.progress_reading.log_progress import LogProgress
from cotenant_agent.records import AttemptKey, LaunchRequest
from tests.unit.agent.test_progress_recognition import attempt_of

LIGHTNING = "\rEpoch {0}:  50%|#####     | {1}/{2} [00:01<00:01, 30.2it/s, v_num=0, train_loss=0.31]"
TRANSFORMERS = "\r 50%|#####     | {1}/{2} [00:10<00:10,  1.9it/s]"
EPOCHS_OF_BATCHES = [
    LIGHTNING,
    "\n| epoch   {0} | {1:5d}/{2:5d} batches | lr 20.00 | loss  6.52",
    "\nEpoch: [{0}][ {1}/{2}]\tTime 0.21 (0.30)\tLoss 6.9 (7.0)",
    "\nEpoch [{0}/3], Step [{1}/{2}], Loss: 1.2",
    "\r[=====>           ] {1}/{2}  loss=2.302  8.2 it/s",
    TRANSFORMERS,
]


def lines(form: str, epochs: int, batches: int, every: int = 1) -> Iterable[str]:
    return (form.format(epoch, batch, batches) for epoch in range(epochs) for batch in range(every, batches + 1, every))


def reader(tmp_path: Path, text: str, steps_total: int, batches: int, pattern: str = "") -> LogProgress:
    log = tmp_path / "out.log"
    log.write_text(text)
    found = LogProgress(log, pattern, None, steps_total)
    found.note_batches(batches)
    return found


def read(tmp_path: Path, text: str, steps_total: int = 0, batches: int = 1, pattern: str = "") -> int:
    reports = reader(tmp_path, text, steps_total, batches, pattern).read_to_end(1)
    return max([0, *(report.step for report in reports)])


@pytest.mark.parametrize("form", EPOCHS_OF_BATCHES)
@pytest.mark.parametrize(("batches", "steps"), [(1, 240), (2, 120), (3, 81), (4, 60)])
def test_epochs_of_batches_are_told_as_optimizer_steps(tmp_path: Path, form: str, batches: int, steps: int) -> None:
    # Of 80 batches three at a time make 27 steps: the last one of an epoch takes two.
    assert read(tmp_path, "".join(lines(form, 3, 80)), steps_total=steps, batches=batches) == steps


def test_a_bar_of_eighty_batches_is_forty_steps_and_half_of_it_is_twenty(tmp_path: Path) -> None:
    bar = list(lines(LIGHTNING, 1, 80))
    assert read(tmp_path, "".join(bar), steps_total=40, batches=2) == 40
    assert read(tmp_path, "".join(bar[:40]), steps_total=40, batches=2) == 20
    assert read(tmp_path, "".join(bar[:41]), batches=2) == 20


@pytest.mark.parametrize(
    "form",
    [
        TRANSFORMERS,
        "\rSteps:  50%|#####     | {1}/{2} [00:10<00:10,  1.9it/s, loss=0.3]",
        "\n{{'loss': 1.1, 'step': {1}, 'epoch': {0}}}",
        "\niter {1}: loss 4.2531, time 12.31ms, mfu 3.4%",
        "\nepoch {0} global_step={1} loss=2.0",
        "\nepoch {0} update {1} of {2}: loss=2.0",
        "\n{1}/{2} | loss 1.3",
    ],
)
def test_what_counts_optimizer_steps_itself_is_told_as_it_is(tmp_path: Path, form: str) -> None:
    assert read(tmp_path, "".join(lines(form, 1, 40)), steps_total=40, batches=2) == 40


@pytest.mark.parametrize("steps_total", [0, 30])
def test_samples_are_steps_at_once_since_the_batch_that_is_known_is_that_of_a_whole_step(
    tmp_path: Path, steps_total: int
) -> None:
    log = tmp_path / "out.log"
    log.write_text("".join(f"Train Epoch: 0 [{samples}/1920 (3%)] Loss: 3.2\n" for samples in range(16, 1921, 16)))
    found = LogProgress(log, "", None, steps_total, batch_size=64)
    found.note_batches(4)
    assert found.read_to_end(1)[-1].step == 30


def test_as_many_epochs_as_batches_make_a_step_are_not_done_after_the_first(tmp_path: Path) -> None:
    assert read(tmp_path, "".join(lines(LIGHTNING, 1, 80)), steps_total=80, batches=2) == 40
    assert read(tmp_path, "".join(lines(LIGHTNING, 2, 80)), steps_total=80, batches=2) == 80


def test_an_expression_says_itself_what_counts(tmp_path: Path) -> None:
    text = "".join(lines(LIGHTNING, 1, 80))
    assert read(tmp_path, text, 40, 2, pattern=r"(?P<step>[0-9]+)/80") == 80


@pytest.mark.parametrize("every", [3, 5, 7])
def test_a_last_pass_that_is_printed_now_and_then_was_made_whole(tmp_path: Path, every: int) -> None:
    found = reader(tmp_path, "".join(lines(LIGHTNING, 2, 80, every)), 80, 2)
    found.read_to_end(1)
    done = found.steps_by_last_line("", 80)
    assert 80 - done <= found.unseen_at_end


def test_a_bar_that_is_left_behind_when_it_is_full_is_told_as_steps(tmp_path: Path) -> None:
    found = reader(tmp_path, "", 0, 2)
    assert found.steps_by_last_line("Epoch 2/2  ━━━━━━━━ 81/81 0:00:00 • 0:00:00 191.93it/s\n", 0) == 123
    assert found.steps_by_last_line("training |████████| 81/81 [100%] in 2.0s\n", 0) == 41
    assert found.steps_by_last_line("Epoch 2/2  ━━━━━━━━ 81/81 0:00:00 • 0:00:00 191.93it/s\n", 123) == 123
    assert found.steps_by_last_line("Epoch 2/2  ━━━━━━━━ 81/81 0:00:00 • 0:00:00 191.93it/s\n", 243) == 243


def test_steps_are_counted_on_by_the_next_life_of_the_agent(tmp_path: Path) -> None:
    before = reader(tmp_path, "".join(lines(LIGHTNING, 1, 80)), 80, 2)
    before.read(1)
    after = LogProgress(tmp_path / "out.log", "", before.to_record(), 80)
    after.note_batches(2)
    with (tmp_path / "out.log").open("a") as log:
        log.write("".join(lines(LIGHTNING, 2, 80)).removeprefix("".join(lines(LIGHTNING, 1, 80))))
    assert max(report.step for report in after.read_to_end(2)) == 80


def test_the_specification_of_an_attempt_says_how_many_batches_a_step_takes(tmp_path: Path) -> None:
    (tmp_path / "out.log").write_text("".join(lines(LIGHTNING, 1, 80)))
    spec = {"progress_regex": "", "steps_total": 40, "batches_per_step": 2}
    found = open_log_progress(spec, tmp_path / "out.log", None, are_several=False)
    assert found is not None
    assert [report.step for report in found.read_to_end(1)] == [40]


@pytest.mark.parametrize(
    ("own", "passes", "word", "batches"),
    [(0, 1, "x", 1), (4, 1, "x", 4), (4, 2, "x", 4), (0, 8, "--accumulate={accumulation_steps}", 8)],
)
def test_the_passes_that_an_argument_tells_a_script_are_batches_of_a_step(
    own: int, passes: int, word: str, batches: int
) -> None:
    key = AttemptKey(job_id="job", attempt=1, fence=1)
    request = LaunchRequest(key=key, command=("p", word), batches_per_step=own, accumulation_steps=passes)
    assert batches_of_step(request) == batches


def test_steps_never_go_back_within_an_epoch_and_its_end() -> None:
    known = Accumulation(3, 60)
    counted = [known.steps("Epoch", 80, number) for number in range(241)]
    assert counted == sorted(counted)
    assert (counted[80], counted[-1]) == (27, 81)


def test_batches_beyond_the_stated_steps_are_no_steps_done_and_still_show_that_the_job_goes_on(tmp_path: Path) -> None:
    bar = list(lines(LIGHTNING, 1, 80))
    attempt = attempt_of(tmp_path, "".join(bar[:30]), steps_total=40)
    attempt.read_progress()
    for place in range(30, 80, 10):
        with attempt.directory.log.open("a") as log:
            log.write("".join(bar[place : place + 10]))
        attempt.read_progress()
        assert attempt.track.steps_done == min(place + 9, 39)  # the last line has not ended
        assert attempt.track.close_window().steps == 10
    attempt.directory.exit.write_text('{"return_code": 0}')
    assert attempt.conclude(peak_bytes=0, available_bytes=0, co_located="").steps_done == 80  # FINISHED_BEYOND says so


@pytest.mark.parametrize("form", ["\r{0}/240", "\rsweep {0}/240 | 0.31"])
def test_a_line_that_is_written_over_once_a_step_tells_each_step(tmp_path: Path, form: str) -> None:
    steps = [form.format(number) for number in range(4, 241, 4)]
    assert [read(tmp_path, "".join(steps[:done]), 60, 4) for done in (20, 41, 60)] == [20, 41, 60]
    assert read(tmp_path, "".join(form.format(number) for number in range(0, 241, 4)), 60, 4) == 60
    assert read(tmp_path, "".join(form.format(number) for number in range(1, 241)), 60, 4) == 60


@pytest.mark.parametrize(
    ("every", "steps_total", "batches"),
    [
        (4, 60, 1),  # nothing says that four make a step
        (4, 0, 4),
        (4, 15, 4),  # samples, four at a time: 240 are 60 batches, and these 15 steps
        (12, 60, 4),  # now and then, as samples may be too
    ],
)
def test_what_is_written_over_now_and_then_may_count_anything(
    tmp_path: Path, every: int, steps_total: int, batches: int
) -> None:
    assert read(tmp_path, "".join(f"\r{number}/240" for number in range(every, 241, every)), steps_total, batches) == 0
