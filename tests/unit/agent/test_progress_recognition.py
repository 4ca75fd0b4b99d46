"""The usual forms of progress are recognised where a job names no expression, and nothing else is taken for them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from cotenant_agent.attempts.attempt import Attempt
from cotenant_agent.progress_reading.log_progress import LogProgress
from cotenant_agent.storage.state_directory import AttemptDirectory

FORMS = [
    "iter {0:5d} | loss 0.034 | lr 3e-4",
    "iter {0}: loss 4.2531, time 12.31ms, mfu 3.4%",
    "Epoch [1/5], Step [{0}/600], Loss: 1.2",
    " 10%|#         | {0}/600 [00:01<00:09, 9.5it/s, loss=0.31]",
    "Epoch 0:  40%|####      | {0}/600 [00:01<00:00, 15.0it/s, v_num=0]",
    "\x1b[1m {0}/600\x1b[0m \x1b[37m━━━━━━━━━━━━━━━━━━━━\x1b[0m \x1b[1m1:02\x1b[0m 70ms/step - loss: 2.1",
    "{0}/600 [=====>......] - ETA: 3s - loss: 0.5",
    "{{'loss': 1.1, 'learning_rate': 5e-05, 'step': {0}}}",
    "2026-01-01 10:00:00 INFO global_step={0} loss=2.0",
    "Iter(train) [  {0}/1000]  lr: 1e-3",
    "| epoch   1 | batch {0}/ 600 | lr 5.00 |",
    "update {0} reward 12.5",
    '{{"epoch": 1, "loss": "2.301", "num_updates": "{0}", "lr": "0.0005"}}',
    "\x1b[2KEpoch 0/2  \x1b[35m━━╸\x1b[0m\x1b[90m━━━━━\x1b[0m {0}/200 \x1b[2m0:00:01 • 0:00:36\x1b[0m 5.11it/s",
    "Epoch: [0][ {0}/391]\tTime 0.21 (0.30)\tLoss 6.9 (7.0)",
    "Epoch: [0]  [ {0}/1000]  eta: 0:10:31  lr: 0.1  img/s: 88.1",
    "Epoch 1/90 [{0}/391] loss=1.636 (0.606s/it)",
    "Train: 0 [  {0}/1251 (  4%)]  Loss: 6.9 (6.9)  Time: 0.3s, 400.1/s",
    "epoch 0: {0}it [00:03, 13.50it/s, loss=0.31]",
    "{0}batch [00:03, 1.50s/batch]",
    "\r\x1b[Kstep {0}/600",
    "\x1b[2K\x1b[Aiter {0} | loss 1.2",
    "\x1b[2KEpoch: [0][ {0}/391]",
    "2026/11/23 12:00:00 - mmengine - INFO - Epoch(train)  [1][ {0}/391]  lr: 1.0e-02  loss: 0.69",
    "[0/25][{0}/1583]\tLoss_D: 1.2 Loss_G: 2.1\tD(x): 0.5 D(G(z)): 0.2 / 0.1",
    "| epoch   1 |   {0}/ 2983 batches | lr 20.00 | ms/batch 12.03 | loss  6.52 | ppl   680.31",
    "train_inner | epoch 001:   {0} / 100 loss=12.1, ups=1.2, num_updates={0}, lr=1e-05",
    "Itération {0} : perte 0,532",
    "Iterazione {0}, perdita 0,532",
    "Schritt {0}, Verlust 0,532",
    "Paso {0} - pérdida 0,532",
    "Шаг {0}, потери 0,532",
    "ステップ {0} 損失 0.5",
    "第 {0} 步 损失 0.5",
    "\r|████████        | {0}/600 [3%] in 0.7s (~12.1s, 45.0/s)",
    "saved checkpoint at step {0}, loss 0.5",
    "[1, {0:5d}] loss: 2.187",
    "[{0:>5d}/ 1200] loss 5.416e-01",
    "[{0}/600] | Loss: 0.54",
    "\r[=====>                        ] {0}/600  loss=2.302  8.2 it/s",
    "[##########--------------------] 33.3% ({0}/600)",
    "training |███░░░░░░░| {0}/600",
]
NO_PROGRESS = [
    "steps: {0}",
    "batch size: {0}",
    "step 0.{0}",
    "step: {0}ms",
    "step time {0}",
    "iter: {0} it/s",
    "{0}it of 3000it",
    "Map: {0}it [00:03, 13.50it/s]",
    "step {0} s",
    "Train Epoch: 1 [{0}/60000 (1%)] Loss: 0.3",
    "exit {0}",
    "step {0},00 of many",
    "step {0}.000",
    "step {0}.000/2.000s",
    "throughput 12 it/s {0}",
    "Map: 100%|####| {0}/5000 [00:01<00:00, 4012.11 examples/s]",
    "Map: 100%|####| {0}/5000 [00:01<00:00, 4012.11it/s]",
    "100%|####| {0}/170498071 [00:05<00:00, 31MB/s]",
    "Loading checkpoint shards: 50%|##| {0}/60 [00:01<00:00, 1.2it/s]",
    "Validation DataLoader 0: 50%|##| {0}/60 [00:01<00:00, 30.2it/s]",
    "Epoch(val)  [1][ {0}/391]  acc: 0.5",
    "loss: 2.303494  [{0}/60000]",
    "Epoch 1/5:  10%|# | {0}/4000 [00:10<01:30, 40.00img/s]",
    "Etappe {0}, Verlust 0,5",
    "Saving shards: 50%|##| {0}/60 [00:01<00:00, 1.2it/s]",
    "saved sample {0}, at step",
    "[{0}/600] Building CXX object loss.cpp.o",
    "download [=====>          ] {0}/600",
    "100%|██████████| {0}/60 [00:05<00:00, 31MB/s]",
    " 50%|#####     | {0}/4000 [00:10<01:30, 40.00img/s]",
    "[=====>      ] {0}/600MB",
    "weights \x1b[35m━━╸\x1b[0m\x1b[90m━━━━━\x1b[0m {0}/31.2 MB 0:00:36",
    "weights \x1b[35m━━╸\x1b[0m\x1b[90m━━━━━\x1b[0m {0}/600 MB 0:00:36",
    "tensor([1, {0}])",
    "[1, {0}] 2.187",
    "shard [{0}/600] loss table",
]


def read(tmp_path: Path, *lines: str, steps_total: int = 0, batch_size: int = 0) -> int:
    log = tmp_path / "out.log"
    log.write_text("".join(f"{line}\n" for line in lines))
    found = LogProgress(log, "", None, steps_total, batch_size).read_to_end(1)
    return max([0, *(report.step for report in found)])


@pytest.mark.parametrize("form", FORMS)
def test_a_usual_form_is_recognised(tmp_path: Path, form: str) -> None:
    assert read(tmp_path, *(form.format(step) for step in (10, 20, 30))) == 30


def parted(number: int, mark: str) -> str:
    return f"{number:,}".replace(",", mark)


@pytest.mark.parametrize("mark", [",", "_", "'", "\u2019", "\u00a0", "\u202f", " ", "."])
@pytest.mark.parametrize(
    "form", ["Step {0}/{1} | loss 1.25", "Epoch 1/5, Step [{0}/{1}]", "Schritt {0} von {1}, Verlust 0,5"]
)
def test_thousands_may_be_parted_where_a_total_is_behind(tmp_path: Path, form: str, mark: str) -> None:
    lines = [form.format(parted(step, mark), parted(12000, mark)) for step in range(500, 12001, 500)]
    assert read(tmp_path, *lines[:4]) == 2000
    assert read(tmp_path, *lines) == 12000
    assert read(tmp_path, *lines, steps_total=12000) == 12000


@pytest.mark.parametrize("mark", [",", "_", "'", "\u2019", "\u00a0", "\u202f"])
def test_thousands_may_be_parted_by_what_parts_nothing_else(tmp_path: Path, mark: str) -> None:
    assert read(tmp_path, *(f"step {parted(step, mark)} | loss 1.25" for step in range(400, 3000, 400))) == 2800
    assert read(tmp_path, "iter 1_000_000", f"iter {parted(1234567, mark)} loss 2") == 1234567


def test_a_number_of_samples_may_have_its_thousands_parted(tmp_path: Path) -> None:
    lines = [f"Train Epoch: 1 [{samples:,}/60,000 (1%)]" for samples in (640, 1280, 1920)]
    assert read(tmp_path, *lines, batch_size=64) == 30


def test_a_column_behind_a_total_is_none_of_its_thousands(tmp_path: Path) -> None:
    assert (
        read(
            tmp_path,
            *(f"step {step}/600 128 img/s" for step in range(100, 601, 100)),
            *(f"step {step}/600 128 img/s" for step in range(100, 601, 100)),
        )
        == 1200
    )


def test_a_stated_total_may_have_its_thousands_parted(tmp_path: Path) -> None:
    lines = [f"Etappe {step:,} von 12,000" for step in (1000, 2000, 3000)]
    assert read(tmp_path, *lines, steps_total=12000) == 3000


@pytest.mark.parametrize("form", NO_PROGRESS)
def test_settings_and_measurements_are_no_progress(tmp_path: Path, form: str) -> None:
    assert read(tmp_path, *(form.format(step) for step in (10, 20, 30))) == 0


STATED = ["Etappe {0} von 600 | Verlust 1.2", "[{0} | 600]: 1.2", "tour {0} sur 600, perte 3.5", "進捗 {0}/600"]


@pytest.mark.parametrize("form", [*STATED, "  {0}/600 loss 1.605"])
def test_a_number_before_the_stated_number_of_steps_counts_in_any_language(tmp_path: Path, form: str) -> None:
    lines = [form.format(step) for step in (10, 20, 30)]
    assert read(tmp_path, *lines, steps_total=600) == 30
    assert read(tmp_path, *lines, steps_total=60) == 0
    assert read(tmp_path, *lines, steps_total=6000) == 0


@pytest.mark.parametrize("form", ["Laden: {0} von 600 MB", "Validation {0} von 600", "{0}.5 von 600", "{0} % von 600"])
def test_other_numbers_before_it_do_not(tmp_path: Path, form: str) -> None:
    assert read(tmp_path, *(form.format(step) for step in (10, 20, 30)), steps_total=600) == 0


def test_a_bar_of_rich_that_begins_again_with_every_epoch_counts_all_epochs(tmp_path: Path) -> None:
    bar = "\r\x1b[2KEpoch {0}/2  \x1b[35m━━╸\x1b[0m\x1b[90m━━━━━\x1b[0m {1}/60 \x1b[2m0:00:01 • 0:00:36\x1b[0m 5.11it/s"
    assert read(tmp_path, "".join(bar.format(epoch, step) for epoch in range(3) for step in range(61))) == 180


def test_counts_behind_epochs_add_up(tmp_path: Path) -> None:
    lines = [f"Epoch {epoch}/3 [{step}/60] loss=1.2" for epoch in (1, 2, 3) for step in (20, 40, 60)]
    assert read(tmp_path, *lines) == 180


SAMPLES = [
    "Train Epoch: 1 [{0}/60000 (1%)]\tLoss: 2.301",
    "loss: 2.303494  [{0:>5d}/60000]",
    "Epoch 1/5:  10%|# | {0}/60000 [00:10<01:30, 40.00img/s, loss (batch)=0.3]",
    "train: {0}/60000 [00:10<01:30, 4.1 examples/s]",
]


@pytest.mark.parametrize("form", SAMPLES)
def test_numbers_of_samples_are_steps_where_the_batch_is_known(tmp_path: Path, form: str) -> None:
    assert read(tmp_path, *(form.format(samples) for samples in (640, 1280, 1920)), batch_size=64) == 30
    assert read(tmp_path, *(form.format(samples) for samples in (640, 1280, 1920)), batch_size=48) == 0


@pytest.mark.parametrize("form", SAMPLES)
def test_epochs_of_samples_add_up_with_the_batch_that_is_smaller(tmp_path: Path, form: str) -> None:
    form = form.replace("60000", "650")
    lines = [form.format(samples) for _ in range(3) for samples in (*range(64, 650, 64), 650)]
    assert read(tmp_path, *lines, batch_size=64) == 3 * 11


def test_a_number_that_is_printed_once_is_a_setting(tmp_path: Path) -> None:
    assert read(tmp_path, "step: 2000", "step: 2000", "iter 10 loss 2", "iter 20 loss 1") == 20


def attempt_of(tmp_path: Path, log: str, **spec: object) -> Attempt:
    directory = AttemptDirectory(tmp_path / "jobs" / "job.1")
    directory.path.mkdir(parents=True)
    directory.log.write_text(log)
    values = {"job_id": "job", "attempt": 1, "fence": 1, "progress_regex": "", "steps_total": 30, **spec}
    return Attempt(directory, values, tmp_path / "checkpoints", tmp_path / "run")


def test_what_is_only_recognised_completes_no_job_before_its_program_has_ended(tmp_path: Path) -> None:
    attempt = attempt_of(tmp_path, "iter 10\niter 20\niter 30\n")
    attempt.read_progress()
    assert attempt.track.steps_done == 29
    attempt.directory.exit.write_text('{"return_code": 0}')
    assert attempt.conclude(peak_bytes=0, available_bytes=0, co_located="").steps_done == 30


def test_what_is_only_recognised_completes_no_job_that_was_told_to_stop(tmp_path: Path) -> None:
    attempt = attempt_of(tmp_path, "iter 10\niter 20\niter 40\n")
    attempt.directory.stop.write_text("{}")
    attempt.directory.exit.write_text('{"return_code": 0}')
    assert attempt.conclude(peak_bytes=0, available_bytes=0, co_located="").steps_done == 29


@pytest.mark.parametrize("pattern", ["", "iter (?P<step>[0-9]+)"])
@pytest.mark.parametrize("cause", ["stopped", "fenced"])
def test_who_ends_with_success_when_told_to_end_may_not_have_saved_what_it_trained(
    tmp_path: Path, pattern: str, cause: str
) -> None:
    attempt = attempt_of(tmp_path, "iter 10\niter 20\niter 30\n", progress_regex=pattern)
    attempt.read_progress()
    attempt.directory.exit.write_text(json.dumps({"return_code": 0, "cause": cause}))
    end = attempt.conclude(peak_bytes=0, available_bytes=0, co_located="")
    assert (end.exit_class, end.steps_done) == (cause, 29)


def test_a_job_that_says_itself_how_far_it_is_is_not_guessed(tmp_path: Path) -> None:
    attempt = attempt_of(tmp_path, "iter 10\niter 20\n")
    attempt.run_directory.mkdir(parents=True)
    (attempt.run_directory / "progress.json").write_text('{"step": 3}')
    attempt.read_progress_file()
    attempt.read_progress()
    assert attempt.track.steps_done == 3


@pytest.mark.parametrize(
    ("last", "total", "code", "steps"),
    [
        (590, 600, 0, 600),  # counted from 0
        (590, 599, 0, 599),
        (590, 700, 0, 590),  # more than one distance away: ended early, or a wrong number was stated
        (590, 600, 1, 590),
    ],
)
def test_a_script_that_prints_each_tenth_step_has_done_its_last_ones_unseen(
    tmp_path: Path, last: int, total: int, code: int, steps: int
) -> None:
    log = "".join(f"iter {step} | loss 0.5\n" for step in range(0, last + 1, 10))
    attempt = attempt_of(tmp_path, log, steps_total=total)
    attempt.directory.exit.write_text(f'{{"return_code": {code}}}')
    assert attempt.conclude(peak_bytes=0, available_bytes=0, co_located="").steps_done == steps


@pytest.mark.parametrize(("first", "steps"), [(0, 150), (1, 149)])
def test_a_counter_that_begins_with_0_ends_one_before_its_steps(tmp_path: Path, first: int, steps: int) -> None:
    numbers = [first, *range(15, 150, 15), 149]  # each fifteenth and the last
    attempt = attempt_of(tmp_path, "".join(f"{{'step': {n}, 'loss': 1}}\n" for n in numbers), steps_total=150)
    attempt.directory.exit.write_text('{"return_code": 0}')
    assert attempt.conclude(peak_bytes=0, available_bytes=0, co_located="").steps_done == steps


def test_one_print_in_the_middle_shows_no_distance_to_the_end(tmp_path: Path) -> None:
    attempt = attempt_of(tmp_path, "iter 10\niter 25\n")
    attempt.directory.exit.write_text('{"return_code": 0}')
    assert attempt.conclude(peak_bytes=0, available_bytes=0, co_located="").steps_done == 25


@pytest.mark.parametrize(
    ("numbers", "total", "steps"),
    [
        ((0, 10), 20, 20),
        ((9, 19), 20, 20),
        ((1, 11), 20, 20),
        ((10, 20), 25, 25),
        ((0, 10), 30, 10),  # a third number would have been printed
        ((3, 10), 15, 10),
    ],
)
def test_two_prints_show_their_distance_where_the_first_is_one_from_the_beginning(
    tmp_path: Path, numbers: tuple[int, ...], total: int, steps: int
) -> None:
    attempt = attempt_of(tmp_path, "".join(f"iter {step} | loss 0.5\n" for step in numbers), steps_total=total)
    attempt.directory.exit.write_text('{"return_code": 0}')
    assert attempt.conclude(peak_bytes=0, available_bytes=0, co_located="").steps_done == steps


@pytest.mark.parametrize(
    ("form", "numbers", "steps"),
    [
        ("Epoch: [{1}][{0}/100]", range(100), 300),  # from 0, as enumerate counts
        ("Epoch: [{1}][{0}/100]", range(0, 100, 10), 300),
        ("Epoch: [{1}][{0}/100]", range(0, 100, 40), 300),
        ("Epoch: [{1}]  [{0}/100]  eta: 0:00:10", (*range(0, 100, 10), 99), 300),
        ("[{1}/3][{0}/100] Loss_D: 1", range(0, 100, 50), 100),  # of two numbers a second pass is not certain
        ("epoch={1} iter={0} loss=1", range(0, 100, 10), 270),
    ],
)
def test_a_pass_ends_with_its_total_where_the_next_number_would_lie_behind_it(
    tmp_path: Path, form: str, numbers: Iterable[int], steps: int
) -> None:
    log = "".join(f"{form.format(number, epoch)}\n" for epoch in range(3) for number in numbers)
    attempt = attempt_of(tmp_path, log, steps_total=0)
    attempt.directory.exit.write_text('{"return_code": 0}')
    assert attempt.conclude(peak_bytes=0, available_bytes=0, co_located="").steps_done == steps


@pytest.mark.parametrize(("total", "steps"), [(300, 300), (301, 270), (290, 290)])
def test_each_pass_without_a_total_hides_the_steps_behind_its_last_number(
    tmp_path: Path, total: int, steps: int
) -> None:
    log = "".join(f"epoch={epoch} iter={number} loss=1\n" for epoch in range(3) for number in range(0, 100, 10))
    attempt = attempt_of(tmp_path, log, steps_total=total)
    attempt.directory.exit.write_text('{"return_code": 0}')
    assert attempt.conclude(peak_bytes=0, available_bytes=0, co_located="").steps_done == steps


def test_samples_of_a_job_with_a_known_batch_complete_it(tmp_path: Path) -> None:
    log = "".join(f"Train Epoch: {e} [{n * 64}/6400 ({n}%)]\tLoss: 2.3\n" for e in (1, 2) for n in range(0, 100, 10))
    attempt = attempt_of(tmp_path, log, steps_total=200, global_batch_size=64)
    attempt.directory.exit.write_text('{"return_code": 0}')
    assert attempt.conclude(peak_bytes=0, available_bytes=0, co_located="").steps_done == 200


def test_a_last_smaller_batch_that_is_printed_with_a_wrong_number_hides_no_epoch(tmp_path: Path) -> None:
    # PyTorch's MNIST example multiplies by the length of the batch at hand: 40 * 40 in place of 40 * 64.
    numbers = [*(n * 64 for n in range(0, 40, 5)), 1600]
    log = "".join(f"Train Epoch: {epoch} [{n}/2600 (1%)]\tLoss: 2.3\n" for epoch in (1, 2, 3) for n in numbers)
    for total, steps in ((123, 123), (0, 120)):
        attempt = attempt_of(tmp_path / str(total), log, steps_total=total, global_batch_size=64)
        attempt.directory.exit.write_text('{"return_code": 0}')
        assert attempt.conclude(peak_bytes=0, available_bytes=0, co_located="").steps_done == steps


RICH = "Epoch 2/2  \x1b[35m━━━━━━━━━━━━━\x1b[0m 100/100 0:00:00 • 0:00:00 191.93it/s v_num: 0.000\n   loss: 0.9\n"


@pytest.mark.parametrize(
    ("log", "total", "steps"),
    [
        (RICH, 300, 300),
        (RICH, 0, 300),
        (RICH, 500, 300),
        (RICH.replace("100/100", "40/100"), 300, 0),
        ("Epoch 1/2: loss 2\nEpoch 2/2: loss 1\nsaved\n", 2, 2),
        ("Epoch 0/2: loss 2\nEpoch 2/2: loss 1\n", 3, 3),
        ("Epoch 1/2: loss 2\nEpoch 2/2: loss 1\n", 600, 0),  # epochs are no steps
        ("Epoch 3/3 [60000/60000]\n", 300, 0),  # samples
        ("Epoch 3/3 [100/100]\n", 300, 300),
        ("Epoch 1/3: loss 2\n", 3, 0),
        ("Epoch: 199, Loss: 2\nEpoch: 200, Loss: 1, Test: 0.5\n", 200, 200),
        ("Epoch 198 | loss 2\nEpoch 199 | loss 1\n", 200, 200),
        ("Epoch: 199, Loss: 2\nEpoch: 200, Loss: 1\n", 600, 0),
        ("Epoch: 199, Loss: 2\nEpoch: 200, Loss: 1\n", 0, 0),
        ("validation after epoch 3/3\n", 3, 0),
        ("[GPU0] Epoch 0 | Steps: 20\n[GPU0] Epoch 1 | Batchsize: 12 | Steps: 20\n", 40, 40),
        ("[GPU0] Epoch 0 | Steps: 20\n[GPU0] Epoch 1 | Batchsize: 12 | Steps: 20\n", 60, 0),
        ("[GPU0] Epoch 0 | Steps: 20\n[GPU0] Epoch 1 | Batchsize: 12 | Steps: 20\n", 2, 2),
        ("Episode 240\treward 1\nEpisode 250\treward 2\n", 250, 250),
        ("Episode 240\treward 1\nEpisode 250\treward 2\n", 0, 0),  # how many updates one has is not printed
        ("training \x1b[32m━━━━━━━━\x1b[0m 500/500 0:00:00\n", 0, 500),
        ("validating ━━━━━━━━ 900/900 0:00:00\ntraining ━━━━━━━━ 500/500 0:00:00\n", 500, 500),
        ("training ━━━━━━━━ 300/500 0:00:00\n", 0, 0),
        ("|████████| 450/450 [100%] in 3.0s (148.02/s)\n", 0, 450),
    ],
)
def test_the_end_of_the_last_epoch_counts_once_the_program_has_ended_with_success(
    tmp_path: Path, log: str, total: int, steps: int
) -> None:
    attempt = attempt_of(tmp_path, log, steps_total=total)
    attempt.directory.exit.write_text('{"return_code": 0}')
    assert attempt.conclude(peak_bytes=0, available_bytes=0, co_located="").steps_done == steps


@pytest.mark.parametrize(("code", "told_to_stop"), [(1, False), (0, True)])
def test_the_last_epoch_of_a_job_that_failed_or_was_stopped_completes_nothing(
    tmp_path: Path, code: int, told_to_stop: bool
) -> None:
    attempt = attempt_of(tmp_path, RICH, steps_total=300)
    attempt.directory.exit.write_text(f'{{"return_code": {code}}}')
    if told_to_stop:
        attempt.directory.stop.write_text("{}")
    assert attempt.conclude(peak_bytes=0, available_bytes=0, co_located="").steps_done == 0
