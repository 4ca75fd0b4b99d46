"""Lines as strangers print them, collected from scripts that know no cluster: what counts steps, and what does not."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from cotenant_agent.progress_reading.log_progress import LogProgress
from cotenant_agent.progress_reading.progress_recognition import steps_of_last_epoch

PROGRESS = [
    # A number that nothing names, with a training loss behind it.
    "[{0:05d}] bce=0.69",
    "[{0}] train loss: 0.69",
    "2026-11-29 06:10:15,123 - root - INFO - [{0:05d}] loss=0.3",
    "2026-11-29 06:10:15 INFO [{0:05d}] nll 0.3",
    "{0:05d} | loss 0.69",
    "{0:>6}  loss=0.69  lr=1e-3",
    "{0}: loss 0.69",
    "{0}) mse=0.3",
    "#{0} train_loss=0.3",
    "sailing {0:03d} of 400 | focal=0.2",
    "tide {0} of 400: pinball 0.2143",
    "[{0}] triplet 0.21",
    "[{0}] kd-loss 0.21",
    "{0}/400 recon-loss: 0.21",
    "{0}/400 cross_entropy=0.21",
    "INFO:__main__:{0}/400 loss 0.3",
    "({0}/400) loss 0.3",
    "[{0} / 400] loss 0.3",
    "{0}/400: loss 0.3",
    "{0} of 400: perplexity 80.3",
    "{0}/400 | loss 0.3 | 12.1 it/s",
    "Progress: 10.0% ({0}/400) loss 0.3",
    "epoch 1, {0}/400, loss 0.3",
    # The unit behind the number.
    "{0} steps done, loss 0.32",
    "[{0} steps] loss 0.32",
    "INFO: {0} iters: loss 0.32",
    "after {0} gradient steps: loss 0.32",
    "epoch 1: {0} batches seen; train loss 0.32",
    "[{0}] avg loss: 0.32",
    "{0:05d} | running loss 0.32",
    # Colours between a word and its number.
    "\x1b[32mstep\x1b[0m \x1b[1m{0}\x1b[0m loss 0.3",
    "\x1b[31mstep: \x1b[32m {0}  \x1b[32mloss: 12.2  \x1b[38;2;180;60;0mgrad_norm:  4.1\x1b[39m",
    "\x1b[36m[{0:05d}]\x1b[0m loss 0.3",
    "\x1b[1;34miter\x1b[0m=\x1b[33m{0}\x1b[0m",
    # Plurals right before a loss.
    '{{"steps": {0}, "loss": 0.4}}',
    '{{"num_steps": {0}, "train_loss": 0.4}}',
    "steps: {0} | loss: 0.3",
    "total steps {0} | loss 0.3",
    "steps done: {0}, loss 0.3",
    "iters {0}/400 loss 0.3",
    "iterations: {0}, training loss 0.3",
    # Other words.
    "iter_num: {0} time 12.31ms",
    "step no. {0} mse 0.3",
    "step number {0} mse 0.3",
    "Step-{0} mse 0.3",
    "step_{0} mse 0.3",
    "minibatch {0} mse 0.3",
    "Minibatch[{0}]: mse 0.3",
    "batch_idx {0} mse 0.3",
    "Batch idx: {0}",
    "step\t{0}\tmse\t0.3",
    # Other languages.
    "06:10:15 | Trainingsschritt {0} | Verlust 0,312",
    "Optimierungsschritt {0}, Verlust 0,3",
    "迭代 {0} 损失 0.3",
    "迭代次数: {0}, 损失: 0.3",
    "步数 {0}/400 损失 0.3",
    "步骤 {0} 损失 0.3",
    "step\uff1a{0}\uff0closs\uff1a0.3",
    "反復 {0} 損失 0.3",
    "Iterasi {0}, galat 0.3",
]
NO_PROGRESS = [
    "[{0}] val-loss 0.21",
    "[{0}] kd-val-loss 0.21",
    # Times, versions, settings and speeds.
    "[{0}:12:13] loss=0.3",
    "[12:{0}] loss=0.3",
    "12:{0}:13 loss 0.3",
    "2026-11-{0} loss 0.3",
    "v1.{0} loss 0.3",
    "version {0}.1 loss 0.3",
    "{0}% | loss 0.3",
    "{0} steps/s loss 0.3",
    "{0} steps left, loss 0.3",
    "{0} episodes, loss 0.3",
    "{0} validation steps, loss 0.3",
    "{0} steps, val loss 0.3",
    "[{0}] avg val loss 0.3",
    "steps/s {0} loss 0.3",
    "iterations/s: {0} loss 0.3",
    "steps per second {0} loss 0.3",
    "warmup_steps={0} loss=0.3",
    "warmup steps: {0}, loss 0.3",
    "remaining steps: {0} loss 0.3",
    "steps left {0} loss 0.3",
    "eval_steps={0} loss=0.3",
    "num_train_steps: {0}",
    "batch_size {0} loss 0.3",
    "batch size={0}, loss=0.3",
    # What has many steps.
    "epoch {0} | loss 0.3",
    "Epoch {0}/400 | loss 0.3",
    "Ep [{0}] loss 0.3",
    "ep: [{0}] loss 0.3",
    "epoch {0} of 400 | loss=0.3",
    "fold {0} of 400: loss 0.3",
    "seed {0} of 400 | loss=0.3",
    "trial {0} of 400: loss 0.3",
    "stage {0} of 400 | loss=0.3",
    "round {0}/400 | loss 0.3",
    "episode {0} of 400, loss 0.3",
    "Episode 3 | steps: {0} | loss 0.3",
    "第 {0} 轮 损失 0.3",
    "第{0}个epoch, loss=0.3",
    # What is no training, or no count.
    "file {0} of 400 | loss=0.3",
    "rank {0} of 400: loss 0.3",
    "GPU {0}/400 | loss=0.3",
    "[worker {0}] loss=0.3",
    "reading {0} of 400 | loss=0.3",
    "line {0} of 400: loss 0.3",
    "layer {0}/400 loss 0.3",
    "[{0}] val_loss=0.3",
    "[{0}] test loss 0.3",
    "[{0}] norm=0.3",
    "[{0}] tokens=0.3",
    "[{0}] loss",
    "val batch {0}/400 loss 0.3",
    "val_step {0} loss 0.3",
    "Validation: {0}/400 loss 0.3",
    "patience {0} of 400 | loss=0.3",
    "EarlyStopping counter: {0} out of 400, loss 0.3",
    "Test set: Average loss: 0.3, Accuracy: {0}/400 (30%)",
    "Correct: {0} of 400, loss 0.3",
    "score {0}/400 loss 0.3",
    "{0} of 400 MB | rate=0.3",
]
SPACINGS = [(10, 20, 30), (1, 2, 3), range(1, 26), (25, 50, 75, 100), (0, 5, 10, 15, 20, 25)]


def read(tmp_path: Path, form: str, numbers: Iterable[int], steps_total: int = 0) -> int:
    log = tmp_path / "out.log"
    log.write_text("".join(f"{form.format(number)}\n" for number in numbers))
    return max([0, *(report.step for report in LogProgress(log, "", None, steps_total).read_to_end(1))])


@pytest.mark.parametrize("form", PROGRESS)
def test_what_strangers_print_counts(tmp_path: Path, form: str) -> None:
    assert read(tmp_path, form, (25, 50, 75)) == 75
    assert read(tmp_path, form, (0, 10, 20, 30)) == 30
    assert read(tmp_path, form, (25, 50, 75), steps_total=400) == 75


@pytest.mark.parametrize("form", NO_PROGRESS)
def test_what_only_looks_like_it_does_not(tmp_path: Path, form: str) -> None:
    assert [read(tmp_path, form, numbers) for numbers in SPACINGS] == [0] * len(SPACINGS)


@pytest.mark.parametrize("form", ["[{0}] loss=0.3", "{0} of 400 | loss 0.3"])
@pytest.mark.parametrize(
    "numbers",
    [
        range(1, 101),  # epochs, devices, files
        (4711, 4718, 4725, 4732),  # numbers of processes, of which each prints
        (10, 20),  # once is no distance
        (3, 17, 19, 44, 45),  # sizes
        range(64, 400, 64),  # samples
    ],
)
def test_a_number_without_a_name_counts_only_at_equal_distances_of_several(
    tmp_path: Path, form: str, numbers: Iterable[int]
) -> None:
    assert read(tmp_path, form, numbers) == 0


def test_a_count_of_no_name_that_begins_again_counts_all_passes(tmp_path: Path) -> None:
    assert read(tmp_path, "sailing {0:03d} of 100 | focal=0.2", [*range(20, 101, 20)] * 3) == 300


@pytest.mark.parametrize("distance", [1, 5])
@pytest.mark.parametrize("steps_total", [0, 120])
def test_a_count_of_no_name_behind_an_epoch_counts_all_epochs(tmp_path: Path, distance: int, steps_total: int) -> None:
    log = tmp_path / "out.log"
    lines = [
        f"Epoch {epoch}/6: {5 * step}%| {step}/20 huber=0.4\n" for epoch in range(6) for step in range(0, 20, distance)
    ]
    log.write_text("".join(lines))
    reading = LogProgress(log, "", None, steps_total)
    assert [report.step for report in reading.read_to_end(1)] == [120 - distance]
    assert reading.steps_by_last_line("", steps_total) == 120


def bar(step: int, total: int, *, is_below: bool = False) -> str:
    """What tqdm writes; of a bar below another one between two moves of the cursor."""
    drawn = f"\r{100 * step // total:3d}%|###   | {step}/{total} [00:0{step % 10}<00:00, 42.51it/s]"
    return f"\n{drawn}\x1b[A" if is_below else drawn


def steps_of(tmp_path: Path, text: str, steps_total: int) -> int:
    log = tmp_path / "out.log"
    log.write_text(text)
    return [report.step for report in LogProgress(log, "", None, steps_total).read_to_end(1)][-1]


@pytest.mark.parametrize("steps_total", [0, 40])
@pytest.mark.parametrize("batches", [15, 40])
def test_evaluations_below_the_bar_of_all_steps_are_no_steps(tmp_path: Path, batches: int, steps_total: int) -> None:
    evaluation = "".join(bar(number, batches, is_below=True) for number in range(batches + 1))
    save = "Writing model shards: "
    saving = f"\n\r{save}  0%|    | 0/1 [00:00<?, ?it/s]\r{save}100%|####| 1/1 [00:00<00:00, 9.01it/s]"
    steps = [bar(step, 40) + (saving + evaluation if step % 10 == 0 < step else "") for step in range(41)]
    assert steps_of(tmp_path, "".join(steps), steps_total) == 40


@pytest.mark.parametrize("batches", [3, 15])
@pytest.mark.parametrize("steps_total", [0, 1])
def test_batches_below_the_bar_of_all_epochs_are_the_steps(tmp_path: Path, batches: int, steps_total: int) -> None:
    epoch = "".join(bar(number, batches, is_below=True) for number in range(batches + 1))
    text = "".join(bar(number, 12) + (epoch if number < 12 else "") for number in range(13))
    assert steps_of(tmp_path, text, 12 * batches * steps_total) == 12 * batches


def test_samples_behind_an_epoch_count_nothing(tmp_path: Path) -> None:
    assert read(tmp_path, "Epoch 1, {0}/60000, loss 0.4", range(64, 1000, 64)) == 0


def test_of_a_count_of_no_name_another_total_than_the_stated_one_counts_nothing(tmp_path: Path) -> None:
    assert read(tmp_path, "sailing {0:03d} of 100 | focal=0.2", range(20, 101, 20), steps_total=60) == 0


@pytest.mark.parametrize(
    ("form", "is_counted"),
    [
        ("epoch {0}/6  {1:>3}/20  kd-T4={2:.4f}", True),
        ("Epoch {0}/6: {1}/20 [acc {2:.2f}]", True),
        ("epoch {0}/6, sample {1}/20 sim={2:.4f}", False),
        ("epoch {0}/6 {1}/20 s", False),
    ],
)
def test_batches_behind_an_epoch_that_are_written_over_count_all_epochs(
    tmp_path: Path, form: str, is_counted: bool
) -> None:
    lines = ["\r" + form.format(epoch, step, 1 / step) for epoch in range(1, 7) for step in range(1, 21)]
    log = tmp_path / "out.log"
    log.write_text("".join(lines))
    steps = [report.step for report in LogProgress(log, "", None, 120).read_to_end(1)]
    assert steps == ([120] if is_counted else [])


@pytest.mark.parametrize(
    ("form", "is_counted"),
    [
        ("0m 1s (- 0m 7s) ({0} {1}%) 2.3143", True),
        ("{0} {1}% (0m 33s) 2.2208 Ireland / Irish", True),
        ("{0} ({1}%) 0.31", True),
        ("{0} {2}% 2.3143", False),
        ("12:{0} {1}% used", False),
        ("{0} of 700 files ({1}%)", False),
    ],
)
def test_a_number_counts_before_the_percentage_that_it_is_of_the_stated_steps(
    tmp_path: Path, form: str, is_counted: bool
) -> None:
    log = tmp_path / "out.log"
    lines = [form.format(step, step * 100 // 80, 100 - step) for step in range(10, 81, 10)]
    log.write_text("".join(f"{line}\n" for line in lines))
    for steps_total, counted in ((80, 80 if is_counted else 0), (0, 0)):
        reading = LogProgress(log, "", None, steps_total)
        assert max([0, *(report.step for report in reading.read_to_end(1))]) == counted


@pytest.mark.parametrize(
    ("words", "is_counted"),
    [
        ("Epoch 1", True),
        ("Training", True),
        ("train on dataset A", True),
        ("Adding EOS to train dataset", False),
        ("Applying chat template to train dataset", False),
        ("Truncating train dataset", False),
        ("Packing train dataset", False),
        ("Grouping texts in chunks of 128", False),
        ("Converting train dataset to ChatML", False),
        ("Creating json from Arrow format", False),
        ("Flattening the indices", False),
    ],
)
def test_bars_of_a_data_set_that_is_made_ready_count_no_samples(
    tmp_path: Path, words: str, *, is_counted: bool
) -> None:
    """Libraries of data sets draw theirs in examples too, and the batch of the job is known."""
    log = tmp_path / "out.log"
    bars = [f"\r{words}: {10 * part}%|###  | {100 * part}/1000 [00:01<00:02, 5123.4 examples/s]" for part in range(11)]
    log.write_text("".join(bars))
    steps = [report.step for report in LogProgress(log, "", None, 500, batch_size=10).read_to_end(1)]
    assert steps == ([100] if is_counted else [])


LOOPS_IN_LOOPS = [
    "season {outer} of 2 > group {inner}/40 > poisson {loss:.3f}",
    "tour {outer}/2, leg {inner}/40: {loss:.2f}",
    "Durchgang {outer} von 2 | Baum {inner} von 40 | {loss:.3f}",
    "[{outer}/2] <{inner}/40> {loss:.2f} m",
    "2026-11-29 16:49:20 INFO season {outer} / 2 leg {inner} / 40",
]


def of_loops(form: str, *, legs: Iterable[int], tours: Iterable[int]) -> str:
    lines = [form.format(outer=outer, inner=inner, loss=3 - inner / 40) for outer in tours for inner in legs]
    return "".join(f"{line}\n" for line in lines)


@pytest.mark.parametrize("form", LOOPS_IN_LOOPS)
@pytest.mark.parametrize("tours", [(1, 2), (0, 1)])
@pytest.mark.parametrize("legs", [range(5, 41, 5), range(1, 41), range(0, 40, 5)])
def test_two_loops_that_make_the_stated_steps_count_them(
    tmp_path: Path, form: str, tours: tuple[int, int], legs: range
) -> None:
    done = steps_of(tmp_path, of_loops(form, legs=legs, tours=tours), 80)
    assert done == 40 + legs[-1]
    half = of_loops(form, legs=legs, tours=tours[:1])
    assert steps_of(tmp_path, half, 80) == legs[-1]


def test_two_loops_count_steps_however_many_batches_a_step_takes(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(of_loops(LOOPS_IN_LOOPS[0], legs=range(5, 41, 5), tours=(1, 2)))
    log = LogProgress(tmp_path / "log", "", steps_total=80)
    log.note_batches(4)
    assert log.read_to_end(1)[-1].step == 80


@pytest.mark.parametrize(
    "form",
    [
        "tour {outer}/2 leg {inner}/39",  # makes no 80
        "tour {outer}/2 leg {inner}/40 of 3/3",
        "epoch {outer}/2 validation {inner}/40",
        "tour {outer}/2 file {inner}/40",
        "tour {outer}/2 {inner}/40 GiB",
        "leg {inner}/40",
    ],
)
def test_two_loops_of_something_else_count_nothing(tmp_path: Path, form: str) -> None:
    (tmp_path / "log").write_text(of_loops(form, legs=range(1, 41), tours=(1, 2)))
    assert LogProgress(tmp_path / "log", "", steps_total=80).read_to_end(1) == []


@pytest.mark.parametrize(
    ("log", "total", "steps"),
    [
        ("[ROUND 29]\n[ROUND 30]\n", 30, 30),  # federated learning
        ("Round 28 | loss 0.2\nRound 29 | loss 0.1\n", 30, 30),
        ("[ROUND 29]\n[ROUND 30]\n", 300, 0),  # rounds of many steps
        ("[ROUND 29]\n[ROUND 30]\n", 0, 0),
        ("Ground 30\n", 30, 0),
        ("Ground 30/30\n", 30, 0),
        ("Epoch: 7, Loss: 1\n[ROUND 30]\n", 30, 0),  # rounds are not what it counts
        ("Epoch 1/2: loss 2\nEpoch 2/2: loss 1\n[round 7]\n", 2, 2),
    ],
)
def test_rounds_complete_a_job_of_as_many_steps_where_nothing_else_is_counted(log: str, total: int, steps: int) -> None:
    assert steps_of_last_epoch(log, total) == steps
