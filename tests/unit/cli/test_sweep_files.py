"""A sweep that was written by a spreadsheet is read, or refused with what to change."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cotenant.array_terms import TASKS_MAX
from cotenant.cli.array_tasks import read_array, read_sweep
from cotenant.client_errors import InputError
from cotenant.job_file import read_content


@pytest.mark.parametrize("text", ["lr;depth\n0.1;3\n", "lr\tdepth\n0.1\t3\n", "lr;depth\n0,1;3\n"])
def test_columns_that_are_not_parted_by_commas_are_refused_with_the_remedy(text: str, tmp_path: Path) -> None:
    path = tmp_path / "sweep.csv"
    path.write_text(text, encoding="utf-8-sig")
    with pytest.raises(InputError, match="is one column") as found:
        read_sweep(path)
    assert found.value.remedy == "part columns by commas, and write 0.1"


def test_a_sweep_may_begin_with_excels_mark_and_have_one_column(tmp_path: Path) -> None:
    path = tmp_path / "sweep.csv"
    path.write_text("lr\n0.1\n", encoding="utf-8-sig")
    assert read_sweep(path) == [{"lr": "0.1"}]


@pytest.mark.parametrize(
    ("read", "remedy"),
    [
        (read_sweep, f"text in UTF-8 of 1048576 bytes at most, a row for each of 1 to {TASKS_MAX} jobs"),
        (read_content, "is it a job file?"),
    ],
)
def test_of_a_pipe_no_more_is_read_than_of_a_file(read: Callable[[Path], object], remedy: str) -> None:
    """Its size is told by nothing, and a device such as /dev/zero never ends."""
    reader, writer = os.pipe()

    def write() -> None:
        with os.fdopen(writer, "wb") as file, pytest.raises(BrokenPipeError):
            file.write(b"lr\n" + b"0.1\n" * 2**21)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        with pytest.raises(InputError, match="has more than 1,048,576 bytes") as found:
            read(Path(f"/dev/fd/{reader}"))
    finally:
        os.close(reader)
        thread.join()
    assert found.value.remedy == remedy


@pytest.mark.parametrize(
    ("name", "content", "complaint", "remedy"),
    [
        ("sweep.csv", b"lr\n\xff\xfe\n", "is not UTF-8", "text in UTF-8 of"),
        ("sweep.json", b'[{"lr": 1, "lr": 2}]', "has a name twice in one object", "a name of its own"),
        ("sweep.csv", b"lr,depth\n1\n", "row 2 has 1 cell, the header 2", "correct it"),
    ],
)
def test_a_wrong_sweep_is_told_what_is_wrong_with_the_remedy_of_that(
    name: str, content: bytes, complaint: str, remedy: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match=complaint) as found:
        read_sweep(path)
    assert remedy in str(found.value.remedy)


@pytest.mark.parametrize("text", ["1-1000000000", "0-99999999999999999999:2", "2000000"])
def test_an_array_of_too_many_is_told_how_many_there_may_be(text: str) -> None:
    with pytest.raises(InputError, match="is not 1 to 1000 indexes up to 1000000"):
        read_array(text)
