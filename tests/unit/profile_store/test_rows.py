"""Windows become rows that the profile schema accepts; what has no row is named."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from cotenant.profile_schema import PairRow, SoloRow, check_row, read_rows
from predictor_service.errors import InvalidRequestError
from predictor_service.learning.profile_files import read_profiles
from predictor_service.profile_store.export import BOUND, export_folder, export_table
from predictor_service.profile_store.measurement_window import MeasurementWindow, Source
from predictor_service.profile_store.rows import (
    DUPLICATE_REPORT,
    NEVER_ALONE,
    NEVER_ALONE_FLAG,
    ODD_SLOWDOWN,
    make_rows,
)
from tests.support.measurement_windows import job, kept_job, window

VICTIM, OTHER = job(1), job(2, mode="infer")


def co_located(number: int, window_ms: int = 25_000) -> MeasurementWindow:
    return window(number, job=VICTIM, others=(OTHER,), window_ms=window_ms)


def test_a_window_alone_is_a_solo_row() -> None:
    rows = make_rows([window(1, sm_activity_ratio=0.4, power_watts=50.0)], {job().graph_sha256: ("vgg11", "vgg")})
    (row,) = rows.solo
    check_row(row)
    assert (row.step_ms_mean, row.steps, row.utilization_ratio, row.sm_activity_ratio) == (5.0, 4_000, 0.7, 0.4)
    assert (row.architecture, row.family, row.quality_flags) == ("vgg11", "vgg", ("from_agent",))
    assert (row.memory_peak_bytes, row.memory_context_bytes, row.power_watts) == (50_000_000, 0, 50.0)


def test_a_colocated_window_is_a_row_of_pairs_against_the_same_machine_alone() -> None:
    alone = [window(number, job=VICTIM, window_ms=time_ms) for number, time_ms in enumerate((16_000, 20_000, 90_000))]
    elsewhere = window(7, job=VICTIM, window_ms=1_000_000, campaign="collected_ffffffff")
    rows = make_rows([*alone, elsewhere, co_located(10), co_located(11)])
    for solo in rows.solo:
        check_row(solo)
    for pair in rows.pairs:
        check_row(pair)
    assert [row.slowdown_ratio for row in rows.pairs] == [pytest.approx(0.25)] * 2
    assert [row.repeat for row in rows.pairs] == [0, 1]
    assert rows.pairs[0].other_job_keys == (OTHER.key,)


def test_jobs_under_mps_did_not_take_turns_and_are_compared_with_times_under_mps() -> None:
    alone, together = window(0, job=VICTIM, window_ms=16_000), co_located(10)
    under_mps = dataclasses.replace(together, window_id="f" * 32, under_mps=True)
    assert make_rows([alone, together, under_mps]).left_out == {NEVER_ALONE: 1}
    slow = dataclasses.replace(alone, window_id="e" * 32, window_ms=2 * alone.window_ms, under_mps=True)
    rows = make_rows([alone, slow, together, under_mps])
    assert [row.share_mode for row in rows.pairs] == ["time_slicing", "mps"]
    in_turns, side_by_side = (1.0 + (row.slowdown_ratio or 0.0) for row in rows.pairs)
    assert in_turns == pytest.approx(2 * side_by_side)


def test_a_job_that_never_ran_alone_still_has_a_row_that_says_so() -> None:
    rows = make_rows([window(1, job=VICTIM), co_located(2), co_located(3)])
    (missing,) = [row for row in rows.solo if row.status != "ok"]
    check_row(missing)
    assert (missing.job_key, missing.status, missing.quality_flags) == (OTHER.key, "failed", (NEVER_ALONE_FLAG,))


def test_a_job_that_an_agent_measured_is_not_stored_twice() -> None:
    reported = window(1, source=Source.OUTCOME, campaign="outcomes")
    assert [row.run_id for row in make_rows([reported]).solo] == [reported.window_id]
    rows = make_rows([reported, window(2)])
    assert [row.run_id for row in rows.solo] == [window(2).window_id]
    assert rows.left_out == {DUPLICATE_REPORT: 1}


def test_times_in_doubt_are_no_measure_of_a_slowdown() -> None:
    rows = make_rows([window(1, job=VICTIM, quality_flags=("foreign_load",)), co_located(2)])
    assert rows.pairs == []
    assert rows.left_out == {NEVER_ALONE: 1}


def test_another_micro_batch_is_no_measure_of_a_slowdown() -> None:
    rows = make_rows([window(1, job=VICTIM, micro_batch_size=8), co_located(2)])
    assert rows.left_out == {NEVER_ALONE: 1}


@pytest.mark.parametrize("window_ms", [2_000, 20_000_000])
def test_a_slowdown_that_no_colocated_job_explains_has_no_row(window_ms: int) -> None:
    rows = make_rows([window(1, job=VICTIM), co_located(2, window_ms)])
    assert (rows.pairs, rows.left_out) == ([], {ODD_SLOWDOWN: 1})


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("kind", ["solo", "pairs"])
def test_an_exported_table_reads_back_as_it_was(tmp_path: Path, suffix: str, kind: str) -> None:
    windows = [window(1, job=VICTIM), window(2, job=OTHER, utilization_ratio=None), co_located(3)]
    path = tmp_path / f"{kind}.{suffix}"
    export_table(windows, path, kind)
    rows = make_rows(windows)
    if kind == "solo":
        assert read_rows(path, SoloRow) == rows.solo
    else:
        assert read_rows(path, PairRow) == rows.pairs


def test_an_exported_folder_is_a_data_set_with_its_graphs(tmp_path: Path) -> None:
    known = kept_job(tmp_path / "graphs", 64, 48, 10)
    bound = kept_job(tmp_path / "graphs", 32, 10, dimension_bindings={"tokens": 4})
    windows = [window(1, job=known), window(2), window(3, job=known, others=(job(),)), window(4, job=bound)]
    exported = export_folder(windows, tmp_path / "set", tmp_path / "graphs")
    assert (exported.solo, exported.pairs, exported.graphs) == (2, 1, 1)
    assert exported.left_out == {BOUND: 1}
    profiles = read_profiles(tmp_path / "set")
    assert set(profiles.graphs) == {known.graph_sha256}
    assert export_folder(windows, tmp_path / "set", tmp_path / "graphs") == exported


def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "thesis.tex").write_text("dear")
    with pytest.raises(InvalidRequestError, match=r"thesis\.tex"):
        export_folder([window(1)], tmp_path / "set", tmp_path / "graphs")
    assert [path.name for path in (tmp_path / "set").iterdir() if path.is_file()] == ["thesis.tex"]
