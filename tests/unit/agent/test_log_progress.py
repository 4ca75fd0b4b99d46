"""Progress out of logs: bars, long lines, rotation, the end of a job, a next life of the agent, bad expressions."""

from __future__ import annotations

import gc
import json
import re
from pathlib import Path

import pytest

from cotenant_agent.attempts.attempt import Attempt
from cotenant_agent.progress_reading import log_progress
from cotenant_agent.progress_reading.log_progress import LogProgress
from cotenant_agent.storage.state_directory import AttemptDirectory

BAR = r"(?P<step>[0-9]+)/[0-9]+ \["


def bar(step: int, total: int, label: str = "") -> str:
    """What tqdm writes at one step: a carriage return, no end of line."""
    percent = 100 * step // total
    filled = "#" * (percent // 10)
    return f"\r{label}{percent:3d}%|{filled:<10}| {step}/{total} [00:01<00:02, 13.50it/s]"


def steps_of(tmp_path: Path, pattern: str, *texts: str) -> int:
    """Write the texts one after the other, reading after each, and then to the end; returns the steps."""
    log = tmp_path / "out.log"
    reader = LogProgress(log, pattern)
    newest = 0
    for number, text in enumerate(texts):
        with log.open("a") as file:
            file.write(text)
        newest = max([newest, *(report.step for report in reader.read(number))])
    return max([newest, *(report.step for report in reader.read_to_end(len(texts)))])


def test_the_newest_matching_line_of_a_log_counts(tmp_path: Path) -> None:
    log = tmp_path / "out.log"
    reader = LogProgress(log, r"step (?P<step>\d+) loss (?P<loss>\S+)")
    assert reader.read(1) == []
    log.write_text("step 1 loss 0.9\nstep 2 loss 0.8\nstep 3 lo")
    assert [(report.step, report.loss) for report in reader.read(2)] == [(2, 0.8)]
    with log.open("a") as file:
        file.write("ss 0.7\n")
    assert [(report.step, report.loss) for report in reader.read(3)] == [(3, 0.7)]


def test_for_a_job_that_prints_nothing_no_expression_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is recognised depends on the job's steps: 14 ms of every start, before its first line."""
    monkeypatch.setattr(log_progress, "recognised", lambda *_: "(which cannot be compiled")
    log = tmp_path / "out.log"
    reader = LogProgress(log, "", steps_total=100)
    assert reader.read(1) == []
    log.write_text("\n")
    assert (reader.read(2), reader.read_to_end(3)) == ([], [])
    log.write_text("\n1/100")
    with pytest.raises(re.error):
        reader.read(4)


def test_a_rotated_log_is_read_from_its_beginning(tmp_path: Path) -> None:
    log = tmp_path / "out.log"
    reader = LogProgress(log, r"step (?P<step>\d+)")
    log.write_text("step 1\n" * 10)
    reader.read(1)
    log.rename(tmp_path / "out.log.1")
    log.write_text("step 2\n")
    assert [report.step for report in reader.read(2)] == [2]


def test_an_expression_that_never_ends_is_given_up(tmp_path: Path) -> None:
    log = tmp_path / "out.log"
    log.write_text("a" * 60 + "\n")
    reader = LogProgress(log, r"(a+)+$b(?P<step>\d+)|(a|a)*c")
    assert reader.read(1) == []
    assert reader.read(2) == []


def test_a_bar_without_any_end_of_line_counts_every_step(tmp_path: Path) -> None:
    log = tmp_path / "out.log"
    log.write_text("".join(bar(step, 60) for step in range(31)))
    reader = LogProgress(log, BAR)
    # The newest number may still be growing.
    assert [report.step for report in reader.read(1)] == [29]
    with log.open("a") as file:
        file.write("".join(bar(step, 60) for step in range(31, 61)))
    assert [report.step for report in reader.read(2)] == [59]
    assert [report.step for report in reader.read_to_end(3)] == [60]
    assert reader.read_to_end(4) == []


@pytest.mark.parametrize("pieces", [1, 7, 180])
def test_a_bar_that_begins_again_with_every_epoch_counts_all_epochs(tmp_path: Path, pieces: int) -> None:
    text = "".join(bar(step, 60, f"Epoch {epoch}: ") for epoch in range(3) for step in range(61))
    size = -(-len(text) // pieces)
    texts = [text[start : start + size] for start in range(0, len(text), size)]
    assert steps_of(tmp_path, BAR, *texts) == 180


def test_a_line_end_of_windows_is_one_end(tmp_path: Path) -> None:
    assert steps_of(tmp_path, r"^step (?P<step>\d+)$", "step 1\r\nstep 2\r\n") == 2


def test_the_last_of_several_matches_in_a_line_counts(tmp_path: Path) -> None:
    assert steps_of(tmp_path, r"step (?P<step>\d+)", "step 1 step 2 step 3\n") == 3


def test_a_step_behind_many_characters_is_found(tmp_path: Path) -> None:
    assert steps_of(tmp_path, r'"step": (?P<step>\d+)', '{"settings": "' + "x" * 3_000 + '", "step": 41}\n') == 41
    assert steps_of(tmp_path, r'"step": (?P<step>\d+)', "y" * 2_000_000 + '"step": 42}\n') == 42


def test_a_line_that_never_ends_is_read_while_it_grows_and_no_number_is_cut(tmp_path: Path) -> None:
    log = tmp_path / "out.log"
    reader = LogProgress(log, r"step (?P<step>\d+)")
    seen = []
    for start in range(1_000, 21_000, 1_000):
        with log.open("a") as file:
            file.write("".join(f"step {step} " for step in range(start, start + 1_000)))
        seen += [report.step for report in reader.read(start)]
    assert seen == sorted(seen)
    assert seen[-1] > 19_000
    assert [report.step for report in reader.read_to_end(1)] == [20_999]


def test_memory_of_an_endless_line_is_bounded(tmp_path: Path) -> None:
    log = tmp_path / "out.log"
    log.write_text("x" * 3_000_000)
    reader = LogProgress(log, r"step (?P<step>\d+)")
    for number in range(12):
        assert reader.read(number) == []
    assert len(json.dumps(reader.to_record())) < 200
    assert len(reader._rest) <= 8192


def test_the_end_of_a_rotated_log_is_read_before_its_successor(tmp_path: Path) -> None:
    log = tmp_path / "out.log"
    reader = LogProgress(log, BAR)
    log.write_text("".join(bar(step, 60) for step in range(31)))
    reader.read(1)
    with log.open("a") as file:
        file.write("".join(bar(step, 60) for step in range(31, 61)))
    log.rename(tmp_path / "out.log.1")
    log.write_text("".join(bar(step, 60) for step in range(31)) + "\n")
    assert reader.read_to_end(2)[0].step == 90


def test_what_a_job_wrote_last_counts_however_much_it_was(tmp_path: Path) -> None:
    text = "".join(f"step {step} of a script that says a lot in its last second\n" for step in range(1, 200_001))
    log = tmp_path / "out.log"
    log.write_text(text)
    assert len(text) > 8 << 20
    assert LogProgress(log, r"step (?P<step>\d+)").read_to_end(1)[0].step == 200_000


def test_no_garbage_is_collected_while_an_expression_may_be_given_up() -> None:
    seen: list[bool] = []

    with log_progress._time_limit():
        seen.append(gc.isenabled())
    seen.append(gc.isenabled())
    assert seen == [False, True]


def test_the_newest_lines_count_where_the_time_does_not_suffice_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_progress, "_SEARCH_LIMIT_S", 0.004)
    log = tmp_path / "out.log"
    log.write_text("".join(f"step {step} of many\n" for step in range(1, 12_001)))
    assert LogProgress(log, r"step (?P<step>\d+)").read(1)[0].step == 12_000


def test_a_next_life_of_the_agent_goes_on_where_the_last_one_was(tmp_path: Path) -> None:
    log = tmp_path / "out.log"
    log.write_text("".join(bar(step, 60) for step in [*range(61), *range(21)]))
    first = LogProgress(log, BAR)
    assert first.read(1)[0].step == 79
    record = json.loads(json.dumps(first.to_record()))
    log.rename(tmp_path / "out.log.1")
    log.write_text("".join(bar(step, 60) for step in range(21, 61)))
    assert LogProgress(log, BAR, record).read_to_end(2)[0].step == 120


@pytest.mark.parametrize(
    "record",
    [
        {}, {"steps": "x"}, {"steps": 1, "bars": [[]]}, {"steps": 1, "bars": [["", 60, "a"]]}, {"steps": 1, "bars": 7},
        {"steps": 1 << 70, "bars": []}, {"steps": 1, "bars": [[1, 2, 3, 4, 5, 6, 7, 8, 9]]},
        {"inode": "x", "steps": -5},
        {"steps": 1, "bars": [["a", 60, 0, 0, 1 << 80, 0, 0, 0, 0]]}, {"steps": True},
    ],
)  # fmt: skip
def test_a_record_that_others_have_changed_costs_the_count_and_no_more(
    tmp_path: Path, record: dict[str, object]
) -> None:
    log = tmp_path / "out.log"
    log.write_text("step 5\n")
    assert LogProgress(log, r"step (?P<step>\d+)", record).read(1)[0].step == 5


def test_an_innocent_expression_outlives_a_flood(tmp_path: Path) -> None:
    log = tmp_path / "out.log"
    reader = LogProgress(log, r".*step (?P<step>\d+).*")
    for number in range(30):
        with log.open("a") as file:
            file.write(("s" * 300 + "\n") * 870)
        reader.read(number)
    with log.open("a") as file:
        file.write("step 7\n")
    assert reader.read_to_end(99)[0].step == 7


def test_an_expression_that_takes_for_ever_is_given_up_for_good(tmp_path: Path) -> None:
    log = tmp_path / "out.log"
    reader = LogProgress(log, r"(a+)+$b(?P<step>\d+)|(a|a)*c")
    for number in range(25):
        with log.open("a") as file:
            file.write("a" * 60 + "\n")
        reader.read(number)
    assert reader._pattern is None


def test_an_attempt_that_ends_in_the_middle_of_a_line_has_done_all_its_steps(tmp_path: Path) -> None:
    directory = AttemptDirectory(tmp_path / "jobs" / "job.1")
    directory.path.mkdir(parents=True)
    directory.log.write_text("".join(bar(step, 60, "train: ") for step in range(61)))
    directory.exit.write_text(json.dumps({"return_code": 0, "cause": ""}))
    spec: dict[str, object] = {"job_id": "job", "attempt": 1, "fence": 1, "progress_regex": BAR}
    attempt = Attempt(directory, spec, tmp_path / "checkpoints", tmp_path / "run")
    assert attempt.conclude(peak_bytes=0, available_bytes=0, co_located="nobody").steps_done == 60


def test_an_adopted_attempt_counts_on(tmp_path: Path) -> None:
    directory = AttemptDirectory(tmp_path / "jobs" / "job.1")
    directory.path.mkdir(parents=True)
    spec: dict[str, object] = {"job_id": "job", "attempt": 1, "fence": 1, "progress_regex": BAR}
    directory.log.write_text("".join(bar(step, 60) for step in [*range(61), *range(31)]))
    first = Attempt(directory, spec, tmp_path / "checkpoints", tmp_path / "run")
    first.read_progress()
    assert first.observe().steps_done == 89
    # Where the log was lost or rotated twice since, the count is not.
    directory.log.unlink()
    directory.log.write_text("".join(bar(step, 60) for step in range(31, 61)))
    directory.exit.write_text(json.dumps({"return_code": 0, "cause": ""}))
    second = Attempt(directory, spec, tmp_path / "checkpoints", tmp_path / "run")
    assert second.conclude(peak_bytes=0, available_bytes=0, co_located="nobody").steps_done == 120
