"""Epochs, pieces of data and stages that together make the stated steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from cotenant_agent.progress_reading.log_progress import LogProgress
from cotenant_agent.progress_reading.step_counting import PrintedStep, StepCounter


@pytest.mark.parametrize(
    "form",
    [
        "epoch {0} steps {1} MAE 0.531",
        "Epoch {0} | {1} steps done | avg loss 0.51",
        "Epoch   {0} finished | {1} batches done | avg margin loss 0.51",
    ],
)
@pytest.mark.parametrize("distance", [10, 20])
def test_steps_of_all_epochs_behind_the_number_of_the_epoch_count_to_the_last(
    tmp_path: Path, form: str, distance: int
) -> None:
    # The last line has the stated number, before which that of the epoch stands.
    text = "".join(f"{form.format(epoch, epoch * distance)}\n" for epoch in range(1, 9))
    log = tmp_path / "out.log"
    log.write_text(text)
    assert [report.step for report in LogProgress(log, "", None, 8 * distance).read_to_end(1)] == [8 * distance]


@pytest.mark.parametrize("unit", ["chunk", "shard", "part"])
@pytest.mark.parametrize(("steps_total", "expected"), [(60, 60), (600, 0), (0, 0)])
def test_pieces_of_the_data_are_steps_where_the_stated_ones_are_as_many(
    tmp_path: Path, unit: str, steps_total: int, expected: int
) -> None:
    lines = [f"pass {each}/3 {unit} {piece}/20 gain 0.3\n" for each in (1, 2, 3) for piece in range(5, 21, 5)]
    log = tmp_path / "out.log"
    log.write_text("".join(lines))
    found = [report.step for report in LogProgress(log, "", None, steps_total).read_to_end(1)]
    assert found == [expected] * bool(expected)


@pytest.mark.parametrize(
    ("names", "steps_total", "expected"),
    [
        (("[AE] step", "[CLF] step"), 50, 50),
        (("[AE] step", "[CLF] step"), 60, 30),  # stated are others
        (("train step", "val step"), 50, 30),
        (("step",), 50, 30),
    ],
)
def test_stages_one_after_the_other_make_the_stated_steps_together(
    tmp_path: Path, names: Sequence[str], steps_total: int, expected: int
) -> None:
    log = tmp_path / "out.log"
    bars = zip(names, (30, 20), strict=False)
    log.write_text(
        "".join(f"{name} {step}/{total} bce 0.3\n" for name, total in bars for step in range(5, total + 1, 5))
    )
    reading = LogProgress(log, "", None, steps_total)
    assert reading.read_to_end(1)[-1].step == 30
    assert reading.steps_by_last_line("", steps_total) == expected


def test_a_stage_that_did_not_end_makes_no_stated_steps(tmp_path: Path) -> None:
    log = tmp_path / "out.log"
    log.write_text(
        "".join(
            f"[{name}] step {step}/30 bce 0.3\n"
            for name in ("one", "two")
            for step in range(5, 31 - 5 * (name == "two"), 5)
        )
    )
    reading = LogProgress(log, "", None, 60)
    reading.read_to_end(1)
    assert reading.steps_by_last_line("", 60) == 30


@pytest.mark.parametrize("is_read_on", [False, True])
def test_two_bars_side_by_side_are_no_stages(tmp_path: Path, is_read_on: bool) -> None:
    # A generator and its critic: thirty steps of each, not thirty and then thirty more.
    log = tmp_path / "out.log"
    log.write_text(
        "".join(f"[{name}] step {step}/30 bce 0.3\n" for step in range(5, 31, 5) for name in ("gen", "critic"))
    )
    reading = LogProgress(log, "", None, 60)
    reading.read_to_end(1)
    if is_read_on:
        reading = LogProgress(log, "", reading.to_record(), 60)
    assert reading.steps_by_last_line("", 60) == 30


def test_a_stage_that_is_told_again_while_the_next_one_runs_stays_a_stage(tmp_path: Path) -> None:
    log = tmp_path / "out.log"
    first, second = bars(("[AE] step", 30)), bars(("[CLF] step", 20)).splitlines(keepends=True)
    log.write_text("".join((first, *second[:2], first.splitlines(keepends=True)[-1], *second[2:])))
    reading = LogProgress(log, "", None, 50)
    reading.read_to_end(1)
    assert reading.steps_by_last_line("", 50) == 50


def test_the_record_of_an_agent_that_did_not_note_when_bars_grew_is_read_on(tmp_path: Path) -> None:
    counter = StepCounter()
    counter.take(PrintedStep(step=30, total=30, label="[AE] step"))
    record = counter.to_record()
    record["bars"] = [bar[:-2] for bar in record["bars"]]  # type: ignore[attr-defined]
    counter = StepCounter.from_record(record)
    for step in (10, 20):
        counter.take(PrintedStep(step=step, total=20, label="[CLF] step"))
    assert counter.steps_of_stages(50) == 50


def test_stages_are_known_in_the_next_life_of_the_agent(tmp_path: Path) -> None:
    log = tmp_path / "out.log"
    log.write_text(bars(("[AE] step", 30)))
    before = LogProgress(log, "", None, 50)
    before.read_to_end(1)
    with log.open("a") as stream:
        stream.write(bars(("[CLF] step", 20)))
    reading = LogProgress(log, "", before.to_record(), 50)
    reading.read_to_end(2)
    assert reading.steps_by_last_line("", 50) == 50


def bars(*named: tuple[str, int], behind: str = " bce 0.3") -> str:
    return "".join(f"{name} {step}/{total}{behind}\n" for name, total in named for step in range(5, total + 1, 5))


def pieces(form: str) -> str:
    return "".join(form.format(each, piece) for each in (1, 2, 3) for piece in range(5, 21, 5))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (pieces("pass {0}/3 chunk {1}/20 gain 0.3\n"), 60),
        (pieces("read file {0}/3 part {1}/20\n") + bars(("step", 20)), 20),
        (pieces("corpus {0}/3: shard {1}/20 written\n") + bars(("step", 20)), 20),
        (bars(("[AE] step", 40), ("[CLF] step", 20)), 60),
        (bars(("train step", 40), ("dev step", 20)), 40),
        (bars(("train step", 40), ("held-out batch", 20)), 40),
        (bars(("Downloading shard", 20), ("step", 40)), 40),
        ("".join(f"{number} steps done, mean loss 0.3\n" for number in range(10, 61, 10)), 60),
        ("".join(f"{number} samples loss 0.3\n" for number in range(10, 51, 10)), 0),
        ("".join(f"{number} tokens seen loss 0.3\n" for number in range(10, 51, 10)), 0),
        ("".join(f"{number} | held out loss 0.3\n" for number in range(10, 51, 10)), 0),
        ("".join(f"[{number:05}] image loss 0.3\n" for number in range(10, 51, 10)), 50),
    ],
)
def test_logs_that_look_alike_count_what_they_mean(tmp_path: Path, text: str, expected: int) -> None:
    log = tmp_path / "out.log"
    log.write_text(text)
    reading = LogProgress(log, "", None, 60)
    reading.read_to_end(1)
    assert reading.steps_by_last_line("", 60) == expected
