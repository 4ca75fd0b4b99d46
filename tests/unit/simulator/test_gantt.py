"""The picture of jobs on GPUs: no bar hides another one."""

from __future__ import annotations

import re

from cotenant_simulator.report.gantt import gantt
from cotenant_simulator.run.records import AttemptInterval

Rows = dict[str, tuple[float, float]]


def drawn(*intervals: tuple[str, int, int], gpu_id: str = "n0.0") -> Rows:
    """Draw attempts on one GPU; return where each bar begins from above, and its height."""
    spans = [
        AttemptInterval(job_id=job_id, gpu_id=gpu_id, from_ms=from_ms, until_ms=until_ms)
        for job_id, from_ms, until_ms in intervals
    ]
    picture = gantt(spans, [gpu_id], from_ms=0, until_ms=100)
    bars = re.findall(r'y="([0-9.]+)" width="[0-9.]+" height="([0-9.]+)"[^>]*><title>(\w+) on', picture)
    return {job_id: (float(y), float(height)) for y, height, job_id in bars}


def test_a_job_that_has_its_gpu_to_itself_takes_the_whole_row() -> None:
    rows = drawn(("a", 0, 40), ("b", 40, 90))
    assert rows["a"] == rows["b"]
    assert rows["a"][1] == 12.0


def test_two_jobs_that_share_a_gpu_have_a_half_each() -> None:
    rows = drawn(("a", 0, 40), ("b", 10, 90))
    assert {height for _, height in rows.values()} == {6.0}
    assert rows["b"][0] == rows["a"][0] + 6.0


def test_a_third_job_takes_the_half_of_the_one_that_has_left() -> None:
    rows = drawn(("a", 0, 40), ("b", 10, 90), ("c", 50, 95))
    assert rows["c"][0] == rows["a"][0]
    assert rows["b"][0] != rows["c"][0]


def test_the_whole_row_is_taken_again_once_all_others_have_left() -> None:
    rows = drawn(("a", 0, 40), ("b", 10, 60), ("c", 60, 95))
    assert rows["c"][1] == 12.0
