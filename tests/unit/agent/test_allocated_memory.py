"""What a job says that it has allocated becomes the two states of its memory; all of it is untrusted."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cotenant import job
from cotenant_agent.devices.allocated_memory import SAMPLES_MAX, SAMPLES_MIN, AllocatedMemory
from cotenant_agent.progress_reading.progress import ProgressReport, ProgressSocket, ProgressTrack, parse_report
from cotenant_agent.records import MemoryStates

MIB = 2**20


def states(low_bytes: int, extra_bytes: int, high_state_ratio: float) -> MemoryStates:
    """States whose share of time is that of a sum of samples."""
    return MemoryStates(low_bytes=low_bytes, extra_bytes=extra_bytes, high_state_ratio=1.0 - (1.0 - high_state_ratio))


def seen(samples: list[int]) -> AllocatedMemory:
    found = AllocatedMemory()
    for sample in samples:
        found.add(sample)
    return found


def test_a_job_with_two_levels_has_them_as_its_states() -> None:
    samples = [300] * 800 + [920] * 200
    random.Random(1).shuffle(samples)
    found = seen(samples).states(0)
    assert found == states(300, 620, 0.2)


def test_what_its_processes_hold_besides_is_held_in_both_states() -> None:
    found = seen([300] * 800 + [920] * 200).states(100)
    assert found == states(400, 620, 0.2)


def test_the_low_state_of_a_ramp_ends_where_most_room_is_left_to_others() -> None:
    found = seen(list(range(1_000))).states(0)
    assert found is not None
    assert (found.low_bytes, found.extra_bytes) == (499, 500)
    assert found.high_state_ratio == pytest.approx(0.5)


@pytest.mark.parametrize("samples", [[], [300] * (SAMPLES_MIN - 1), [300] * 1_000, [300] * 900 + [310] * 100])
def test_too_few_samples_and_memory_that_is_kept_have_no_states(samples: list[int]) -> None:
    assert seen(samples).states(0) is None


def test_old_samples_are_forgotten_and_bounded() -> None:
    found = seen([5_000] * SAMPLES_MAX + [10] * (SAMPLES_MAX // 2) + [1_000] * (SAMPLES_MAX // 2))
    assert found.states(0) == states(10, 990, 0.5)
    assert found.peak_bytes == 5_000


def test_the_most_since_the_last_look_is_told_once() -> None:
    found = seen([3, 9, 4])
    assert [found.observe(0), found.observe(0)] == [(None, 9), (None, None)]


def test_what_processes_held_above_the_samples_is_held_besides() -> None:
    found = seen([300] * 800 + [920] * 200)
    told, highest_bytes = found.observe(1_000)
    assert told == states(380, 620, 0.2)
    assert highest_bytes == 1_000


def test_a_sample_says_nothing_about_progress() -> None:
    track = ProgressTrack()
    track.accept(ProgressReport(step=7, at_ns=10))
    sample = parse_report(b'{"allocated": 512, "at_ns": 20}')
    assert sample == ProgressReport(step=0, at_ns=20, allocated_bytes=512)
    track.accept(sample)
    track.accept(ProgressReport(step=8, at_ns=30))
    assert (track.steps_done, track.close_window().steps) == (8, 1)
    assert track.allocated.observe(0) == (None, 512)


@pytest.mark.parametrize("allocated", [-1, 1.5, True, "9", None, [], 10**30])
def test_what_is_no_number_of_bytes_is_dropped(allocated: object) -> None:
    assert parse_report(json.dumps({"allocated": allocated, "at_ns": 1}).encode()) is None


def test_a_sample_without_an_instant_is_dropped() -> None:
    assert parse_report(b'{"allocated": 1}') is None


def run_helper(folder: Path, source: str, **environment: str) -> subprocess.Popen[str]:
    """Run a script next to a copy of the helper."""
    shutil.copy(job.__file__, folder / "job.py")
    (folder / "script.py").write_text(f"import job\n{source}")
    command = [sys.executable, "-S", str(folder / "script.py")]
    variables = {"PATH": os.environ["PATH"], **environment}
    return subprocess.Popen(command, env=variables, cwd=folder, stdout=subprocess.PIPE, text=True)


def test_the_helper_tells_what_is_allocated_until_its_process_ends(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 40)
    folder.mkdir()
    listener = ProgressSocket(folder / "progress.sock", lambda pid: True)
    readings = "readings = iter([None, ValueError])\n"  # a reader that fails at first
    source = f"{readings}import time\njob.watch_memory(lambda: next(readings, 7))\ntime.sleep(30)\n"
    done = run_helper(folder, source, COTENANT_PROGRESS=str(folder / "progress.sock"))
    try:
        found: list[ProgressReport] = []
        deadline = time.monotonic() + 30
        while len(found) < 3 and time.monotonic() < deadline:
            found += listener.receive()
            time.sleep(0.02)
        assert {one.allocated_bytes for one in found} == {7}
        assert len(found) >= 3
    finally:
        done.kill()
        done.communicate()
        listener.close()


@pytest.mark.parametrize(
    "environment",
    [{}, {"COTENANT_PROGRESS": "/nowhere/progress.sock", "RANK": "1", "WORLD_SIZE": "2"}],
    ids=["outside a cluster", "another rank than the first"],
)
def test_elsewhere_the_helper_does_nothing(tmp_path: Path, environment: dict[str, str]) -> None:
    source = "import threading\njob.watch_memory(lambda: 7)\nprint(threading.active_count())"
    said, _ = run_helper(tmp_path, source, **environment).communicate(timeout=60)
    assert said == "1\n"
