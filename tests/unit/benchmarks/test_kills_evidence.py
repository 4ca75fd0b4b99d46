"""What the files of killed jobs prove."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.kills_evidence import JobEvidence, read_evidence

FIRST = ("start 1", "step 1 1", "step 1 2")


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ((), JobEvidence(attempts=0, is_twice=False, missing_steps=3, has_ended=False)),
        ((*FIRST, "step 1 3", "end 1"), JobEvidence(attempts=1, is_twice=False, missing_steps=0, has_ended=True)),
        (
            (*FIRST, "start 9", "step 9 2", "step 9 3", "end 9"),
            JobEvidence(attempts=2, is_twice=False, missing_steps=0, has_ended=True),
        ),
        (
            (*FIRST, "start 9", "step 1 3", "step 9 3", "end 9"),
            JobEvidence(attempts=2, is_twice=True, missing_steps=0, has_ended=True),
        ),
        ((*FIRST, "twice 9", "start 9"), JobEvidence(attempts=2, is_twice=True, missing_steps=1, has_ended=False)),
        (("start 9", "step 9 3", "end 9"), JobEvidence(attempts=1, is_twice=False, missing_steps=2, has_ended=True)),
    ],
    ids=["never begun", "whole", "gone on", "beside its successor", "lock taken", "steps skipped"],
)
def test_what_the_lines_of_a_job_prove(tmp_path: Path, lines: tuple[str, ...], expected: JobEvidence) -> None:
    path = tmp_path / "steps"
    if lines:
        path.write_text("".join(f"{line}\n" for line in lines))
    assert read_evidence(path, steps_total=3) == expected
