"""A number that no word names may count epochs: of a script that says how many it has, only what is beyond counts."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from cotenant_agent.progress_reading.log_progress import LogProgress
from cotenant_agent.progress_reading.sparse_counters import stated_epochs

STATED = [
    "Namespace(batch_size=64, epochs=100, lr=0.1)",
    '{"num_epochs": 100, "lr": 0.1}',
    "max_epochs: 100",
    "  n_epoch = 100",
    "Epochs          100",
    "Training for 100 epochs",
    "epochs=5, warmup_epochs=2, total epochs: 100",
]
FORMS = ["[{0}] loss=0.5", "[{0:05d}] bce=0.69", "{0}: loss 0.69", "{0} of 100 | loss 0.3"]
EVERY_TENTH = range(10, 101, 10)


def read(log: Path, form: str, numbers: Iterable[int], *, first: str = "", steps_total: int = 0) -> int:
    log.write_text(f"{first}\n" + "".join(f"{form.format(number)}\n" for number in numbers))
    return max([0, *(report.step for report in LogProgress(log, "", None, steps_total).read_to_end(1))])


@pytest.mark.parametrize("stated", STATED)
def test_the_number_of_epochs_is_found_as_scripts_print_it(stated: str) -> None:
    assert stated_epochs(stated) == 100


@pytest.mark.parametrize(
    "text",
    [
        "epoch: 100 loss 0.3",
        "Epoch 3/100",
        "epochs: 0.5",
        "epochs per second: 100",
        "loss after epochs",
        "reps=100",
        "epochs=100000000000",
    ],
)
def test_what_states_no_number_of_epochs_is_none(text: str) -> None:
    assert stated_epochs(text) == 0


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("stated", STATED[:3])
def test_every_tenth_epoch_counts_as_no_step_where_the_script_says_how_many_epochs_it_has(
    tmp_path: Path, form: str, stated: str
) -> None:
    log = tmp_path / "out.log"
    assert read(log, form, EVERY_TENTH, first=stated) == 0
    assert read(log, form, EVERY_TENTH) == 100  # nothing tells epochs then


def test_numbers_beyond_the_epochs_are_steps(tmp_path: Path) -> None:
    assert read(tmp_path / "out.log", FORMS[0], range(50, 2001, 50), first=STATED[0]) == 2_000


def test_epochs_that_the_job_states_as_its_steps_count(tmp_path: Path) -> None:
    assert read(tmp_path / "out.log", FORMS[0], EVERY_TENTH, first=STATED[0], steps_total=100) == 100


def test_a_named_step_counts_whatever_the_epochs_are(tmp_path: Path) -> None:
    assert read(tmp_path / "out.log", "step {0} loss 0.5", EVERY_TENTH, first=STATED[0]) == 100


def test_epochs_of_the_command_hold_back_numbers_too_and_a_later_life_of_the_agent_knows_them(tmp_path: Path) -> None:
    log = tmp_path / "out.log"
    log.write_text("".join(f"[{number}] loss=0.5\n" for number in (10, 20, 30)))
    reading = LogProgress(log, "")
    reading.note_epochs("python train.py --epochs 100")
    assert [report.step for report in reading.read(1)] == [0]
    log.write_text("".join(f"[{number}] loss=0.5\n" for number in EVERY_TENTH))
    again = LogProgress(log, "", json.loads(json.dumps(reading.to_record())))
    assert [report.step for report in again.read_to_end(2)] == [0]
