"""Profiles as CSV and Parquet hold the same rows, and old files stay readable."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from cotenant.profile_cells import MAX_FEATURES_CHARACTERS
from cotenant.profile_schema import (
    LossCurveRow,
    PairRow,
    ProfileSchemaError,
    SoloRow,
    check_row,
    columns,
    read_rows,
    write_rows,
)
from predictor_service.importers.imported_set import solo_row
from tests.support.cases import for_each

SOLO = solo_row(
    run_id="r0", campaign="c", device="d", job_key="k", architecture="a", family="f", batch=8, memory_peak_bytes=1 << 33
)
PAIR = PairRow(
    run_id="p0", campaign="c", device="d", share_mode="mps", victim_job_key="k", other_job_keys=("a", "b"),
    victim_step_ms_mean=3.0, victim_solo_step_ms_mean=2.0, slowdown_ratio=0.5, repeat=0, status="ok",
    quality_flags=("short", "noisy"),
)  # fmt: skip
# Names and order of version 1. A change here needs a new SCHEMA_VERSION and a way to read old files.
VERSION_1_SOLO = (
    "schema_version run_id campaign mode device host_memory_bytes disk_read_bytes_per_s network_bytes_per_s "
    "driver framework share_mode job_key graph_sha256 architecture family batch input_shape precision "
    "optimizer input_wait_ratio gpus nodes workers servers sub_batch sync_ms_mean step_ms_mean step_ms_p50 "
    "step_ms_p95 steps utilization_ratio sm_activity_ratio dram_activity_ratio memory_peak_bytes "
    "memory_reserved_bytes memory_context_bytes power_watts status quality_flags features_json "
)
OLD_PAIRS = """\
run_id,campaign,device,share_mode,victim_job_key,other_job_keys,victim_step_ms_mean,victim_solo_step_ms_mean,\
slowdown_ratio,repeat,status,quality_flags
p0,c,d,mps,k,a|b,3.0,2.0,0.5,0,ok,short|noisy
"""


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_what_was_written_is_read_back(tmp_path: Path, ending: str) -> None:
    failed = dataclasses.replace(SOLO, run_id="r1", status="failed", memory_peak_bytes=None, quality_flags=("x", "y"))
    write_rows(tmp_path / f"solo.{ending}", [SOLO, failed], SoloRow)
    assert read_rows(tmp_path / f"solo.{ending}", SoloRow) == [SOLO, failed]
    write_rows(tmp_path / f"pairs.{ending}", [PAIR], PairRow)
    assert read_rows(tmp_path / f"pairs.{ending}", PairRow) == [PAIR]
    write_rows(tmp_path / f"loss_curves.{ending}", [], LossCurveRow)
    assert read_rows(tmp_path / f"loss_curves.{ending}", LossCurveRow) == []


def test_a_table_library_may_write_the_parquet_file(tmp_path: Path) -> None:
    write_rows(
        tmp_path / "solo.csv", [SOLO, dataclasses.replace(SOLO, run_id="r1", steps=3, step_ms_mean=2.5)], SoloRow
    )
    table = pd.read_csv(tmp_path / "solo.csv")
    assert table["memory_peak_bytes"].dtype.kind in "if"
    table["host_memory_bytes"] = [float("nan"), 4096.0]
    table.to_parquet(tmp_path / "solo.parquet")
    first, second = read_rows(tmp_path / "solo.parquet", SoloRow)
    assert first == SOLO
    assert second.host_memory_bytes == 4096


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_unknown_and_missing_columns_are_refused_by_name(tmp_path: Path, ending: str) -> None:
    write_rows(tmp_path / "solo.csv", [SOLO], SoloRow)
    table = pd.read_csv(tmp_path / "solo.csv").drop(columns="family").assign(colour="red")
    path = tmp_path / f"other.{ending}"
    table.to_csv(path, index=False) if ending == "csv" else table.to_parquet(path)
    with pytest.raises(ProfileSchemaError, match=r"(?s)family: is missing.*colour: is not a column of SoloRow"):
        read_rows(path, SoloRow)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_columns_that_may_be_null_may_be_absent_and_the_order_is_free(tmp_path: Path, ending: str) -> None:
    write_rows(tmp_path / "solo.csv", [SOLO], SoloRow)
    table = pd.read_csv(tmp_path / "solo.csv")
    unknown = [item.name for item in columns(SoloRow) if item.nullable and table[item.name].isna().all()]
    table = table[sorted(set(table.columns) - set(unknown))]
    path = tmp_path / f"other.{ending}"
    table.to_csv(path, index=False) if ending == "csv" else table.to_parquet(path)
    assert "host_memory_bytes" not in table.columns
    assert read_rows(path, SoloRow) == [SOLO]


def test_a_bad_value_in_parquet_is_named_with_its_line(tmp_path: Path) -> None:
    write_rows(tmp_path / "solo.csv", [SOLO, SOLO], SoloRow)
    table = pd.read_csv(tmp_path / "solo.csv")
    table.loc[1, "batch"] = 0
    table.to_parquet(tmp_path / "solo.parquet")
    with pytest.raises(ProfileSchemaError, match="line 3, column batch: 0 samples is below 1"):
        read_rows(tmp_path / "solo.parquet", SoloRow)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + bytes(200) + b"PAR1"])
def test_a_damaged_parquet_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "solo.parquet"
    path.write_bytes(content)
    with pytest.raises(ProfileSchemaError, match=r"is not a Parquet file|cannot be read"):
        read_rows(path, SoloRow)


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ProfileSchemaError, match="pip install pyarrow, or use CSV"):
        read_rows(tmp_path / "solo.parquet", SoloRow)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_bytes(OLD_PAIRS.encode() + b"\xff\xfe")
    with pytest.raises(ProfileSchemaError, match="is not UTF-8"):
        read_rows(tmp_path / "pairs.csv", PairRow)


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("\ufeff" + OLD_PAIRS)
    assert read_rows(tmp_path / "pairs.csv", PairRow) == [PAIR]


def test_a_file_of_version_1_stays_readable(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text(OLD_PAIRS)
    assert read_rows(tmp_path / "pairs.csv", PairRow) == [PAIR]
    assert [item.name for item in columns(SoloRow)] == VERSION_1_SOLO.split()


def test_an_ok_row_has_measured_something() -> None:
    with pytest.raises(ProfileSchemaError, match="status: is ok although none of step_ms_mean"):
        check_row(dataclasses.replace(SOLO, memory_peak_bytes=None))
    with pytest.raises(ProfileSchemaError, match="step_ms_mean: is empty although status is ok and 7 steps were timed"):
        check_row(dataclasses.replace(SOLO, steps=7))


@for_each(
    ("changes", "message"),
    [
        ({"step_ms_mean": 1e308}, "step_ms_mean: is beyond"),
        ({"memory_peak_bytes": 10**400}, "memory_peak_bytes: is beyond"),
        ({"job_key": "x" * 5_000}, "job_key: has 5,000 characters"),
        ({"device": "K80\0"}, "device: .* cannot be printed"),
        ({"architecture": "a\nb"}, "architecture: .* cannot be printed"),
    ],
)
def test_no_machine_measures_such_values(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ProfileSchemaError, match=message):
        check_row(dataclasses.replace(SOLO, **changes))


@for_each(
    ("features", "message"),
    [
        ('{"a": [1]}', "'a' is neither a number nor a text nor null"),
        ('{"a": {"b": 1}}', "'a' is neither a number"),
        ('{"a": true}', "'a' is neither a number"),
        ('{"a": NaN}', "'a' is not finite"),
        ('{"a": 1e999}', "'a' is not finite"),
        ('{"a": 1' + "0" * 400 + "}", "'a' is beyond 1e"),
        ('{"": 1}', "is not a name of 1 to 100 characters"),
        ('{"a": 1, "a": 2}', "names a feature twice"),
        ('{"a": "' + "x" * MAX_FEATURES_CHARACTERS + '"}', "characters, more than"),
        ("[" * 50_000, "is not JSON"),
        ("{", "is not JSON"),
    ],
)
def test_features_are_flat_finite_and_bounded(features: str, message: str) -> None:
    with pytest.raises(ProfileSchemaError, match=message):
        check_row(dataclasses.replace(SOLO, features_json=features))


def test_features_may_be_numbers_texts_and_null() -> None:
    check_row(dataclasses.replace(SOLO, features_json='{"set.a": 1, "set.b": 2.5, "set.c": "x", "graph.d": null}'))
