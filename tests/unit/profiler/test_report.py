from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from cotenant_profiler.commands import main
from cotenant_profiler.report import facts, render_page, write_report
from cotenant_profiler.report_figures import gather_figures

from cotenant.profile_schema import PairRow, SoloRow, read_rows

DATASET = Path("datasets/cpu_standin")


@pytest.fixture(scope="module")
def solo() -> list[SoloRow]:
    return list(read_rows(DATASET / "solo.csv", SoloRow))


@pytest.fixture(scope="module")
def pairs() -> list[PairRow]:
    return list(read_rows(DATASET / "pairs.csv", PairRow))


def test_rejected_rows_are_counted_but_not_drawn(solo: list[SoloRow], pairs: list[PairRow]) -> None:
    [figures] = gather_figures(solo, pairs)
    assert figures.rejected > 0
    assert len(figures.slowdown_ratio) == sum(row.status == "ok" for row in pairs)


def test_the_prediction_of_a_pair_does_not_know_the_pair(solo: list[SoloRow], pairs: list[PairRow]) -> None:
    good = [row for row in pairs if row.status == "ok" and row.slowdown_ratio is not None]
    spoiled_group = {good[0].victim_job_key, *good[0].other_job_keys}
    spoiled = [
        dataclasses.replace(row, slowdown_ratio=(row.slowdown_ratio or 0) + 100)
        if {row.victim_job_key, *row.other_job_keys} == spoiled_group
        else row
        for row in good
    ]
    [before], [after] = gather_figures(solo, good), gather_figures(solo, spoiled)
    assert after.predicted_ratio[0] == pytest.approx(before.predicted_ratio[0])
    assert not np.allclose(after.predicted_ratio, before.predicted_ratio, equal_nan=True)


def test_campaigns_are_never_drawn_together(solo: list[SoloRow], pairs: list[PairRow]) -> None:
    other = [dataclasses.replace(row, campaign="another") for row in solo]
    figures = gather_figures([*solo, *other], pairs)
    assert [(item.campaign, len(item.slowdown_ratio) > 0) for item in figures] == [
        ("another", False),
        ("cpu_standin_large", True),
    ]


def test_the_page_needs_no_network_and_is_the_same_every_time(tmp_path: Path) -> None:
    for name in ("first.html", "second.html"):
        write_report(DATASET, tmp_path / name)
    page = (tmp_path / "first.html").read_text()
    assert page == (tmp_path / "second.html").read_text()
    assert page.count("<svg") == 4
    assert "<script" not in page
    assert 'src="' not in page
    assert "@import" not in page


def test_a_dataset_without_pairs_is_reported_as_not_measured(solo: list[SoloRow]) -> None:
    [figures] = gather_figures(solo, [])
    assert dict(facts(figures))["mean slowdown"] == "not measured"
    assert "not measured" in render_page("<b>", [figures])
    assert "<b>" not in render_page("<b>", [figures]).replace("<body>", "")


def test_a_folder_without_measurements_is_refused_in_one_line(tmp_path: Path) -> None:
    answer = CliRunner().invoke(main, ["report", str(tmp_path), "-o", str(tmp_path / "page.html")])
    assert answer.exit_code == 1
    assert answer.output.startswith("Error: ")
    assert "solo.csv" in answer.output
