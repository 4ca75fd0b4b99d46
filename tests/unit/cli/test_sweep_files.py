"""A sweep that was written by a spreadsheet is read, or refused with what to change."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotenant.cli.array_tasks import read_sweep
from cotenant.client_errors import InputError


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
