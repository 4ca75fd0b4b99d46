from __future__ import annotations

from pathlib import Path

import pytest
from cotenant_profiler.errors import JournalError
from cotenant_profiler.journal import FILE_NAME, open_journal, read_journal
from cotenant_profiler.plan import Kind, build_plan

from tests.support.profiler import LENET, record, small_campaign

HEADER = {"campaign": "test", "device": "cpu-standin", "framework": "torch-x"}


def test_what_was_appended_is_read_back(tmp_path: Path) -> None:
    written = record(Kind.GROUP, LENET, LENET, flags=("unsteady",), waits_ms=(0.0, 1.5))
    open_journal(tmp_path, HEADER).append(written)
    assert read_journal(tmp_path).records == [written]


def test_a_line_cut_short_by_a_crash_is_dropped_and_the_journal_goes_on(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, HEADER)
    journal.append(record(Kind.SOLO, LENET))
    content = journal.path.read_bytes()
    journal.path.write_bytes(content + content.splitlines()[-1][:40])
    extrapolated = open_journal(tmp_path, HEADER)
    extrapolated.append(record(Kind.SOLO, LENET, repeat=1))
    assert [item.repeat for item in read_journal(tmp_path).records] == [0, 1]


@pytest.mark.parametrize("key", ["campaign", "device", "framework"])
def test_results_of_something_else_are_never_continued(tmp_path: Path, key: str) -> None:
    open_journal(tmp_path, HEADER)
    with pytest.raises(JournalError, match="choose another --out"):
        open_journal(tmp_path, {**HEADER, key: "other"})


def test_a_damaged_journal_is_refused(tmp_path: Path) -> None:
    open_journal(tmp_path, HEADER)
    with (tmp_path / FILE_NAME).open("a") as file:
        file.write("{}\n")
    with pytest.raises(JournalError, match="damaged"):
        read_journal(tmp_path)


def test_a_folder_without_results_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="run the campaign first"):
        read_journal(tmp_path)


def test_a_run_is_finished_by_one_accepted_attempt_or_by_the_last_one_allowed(tmp_path: Path) -> None:
    run = build_plan(small_campaign())[0]
    journal = open_journal(tmp_path, HEADER)
    for attempt in range(run.method.attempts_max):
        assert not journal.is_finished(run)
        journal.append(record(Kind.SOLO, *run.jobs, run_id=run.run_id, attempt=attempt, status="rejected"))
    assert journal.is_finished(run)
    accepted = open_journal(tmp_path / "accepted", HEADER)
    accepted.append(record(Kind.SOLO, *run.jobs, run_id=run.run_id))
    assert accepted.is_finished(run)
