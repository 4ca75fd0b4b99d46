"""The measured-profile schema accepts what it wrote and names what it refuses."""

import dataclasses
from pathlib import Path

import pytest

from cotenant.profile_schema import (
    PairRow,
    ProfileSchemaError,
    SoloRow,
    check_row,
    columns,
    format_row,
    parse_row,
    read_rows,
    write_rows,
)
from tests.support.cases import for_each

SOLO = SoloRow(
    schema_version=1,
    run_id="r1",
    campaign="c1",
    mode="train",
    device="cpu-standin",
    host_memory_bytes=None,
    disk_read_bytes_per_s=None,
    network_bytes_per_s=None,
    driver="none",
    framework="torch-2.13.0",
    share_mode="exclusive",
    job_key="k1",
    graph_sha256="ab" * 32,
    architecture="small_cnn",
    family="cnn",
    batch=32,
    input_shape="3x32x32",
    precision="fp32",
    optimizer="adam",
    input_wait_ratio=0.0,
    gpus=1,
    nodes=1,
    workers=None,
    servers=None,
    sub_batch=32,
    sync_ms_mean=None,
    step_ms_mean=12.5,
    step_ms_p50=12.1,
    step_ms_p95=14.0,
    steps=100,
    utilization_ratio=0.93,
    sm_activity_ratio=None,
    dram_activity_ratio=None,
    memory_peak_bytes=1 << 28,
    memory_reserved_bytes=None,
    memory_context_bytes=None,
    power_watts=None,
    status="ok",
    quality_flags=("load_checked", "short"),
    features_json='{"parameters": 1000, "note": "a, \\"b\\""}',
)
PAIR = PairRow(
    run_id="p1",
    campaign="c1",
    device="cpu-standin",
    share_mode="time_slicing",
    victim_job_key="k1",
    other_job_keys=("k1", "k2"),
    victim_step_ms_mean=15.0,
    victim_solo_step_ms_mean=12.0,
    slowdown_ratio=0.25,
    repeat=0,
    status="ok",
    quality_flags=(),
)


def test_rows_survive_writing_and_reading(tmp_path: Path) -> None:
    write_rows(tmp_path / "solo.csv", [SOLO, SOLO], SoloRow)
    write_rows(tmp_path / "pairs.csv", [PAIR], PairRow)
    assert read_rows(tmp_path / "solo.csv", SoloRow) == [SOLO, SOLO]
    assert read_rows(tmp_path / "pairs.csv", PairRow) == [PAIR]


def test_a_file_without_rows_still_has_its_header(tmp_path: Path) -> None:
    write_rows(tmp_path / "pairs.csv", [], PairRow)
    assert read_rows(tmp_path / "pairs.csv", PairRow) == []


def test_a_run_out_of_memory_has_no_step_time() -> None:
    check_row(
        dataclasses.replace(
            SOLO, status="out_of_memory", step_ms_mean=None, step_ms_p50=None, step_ms_p95=None, steps=0
        )
    )
    with pytest.raises(ProfileSchemaError, match="step_ms_mean: is empty although status is ok"):
        check_row(dataclasses.replace(SOLO, step_ms_mean=None))


@for_each(
    ("change", "message"),
    [
        ({"batch": 0}, "column batch: 0 samples is below 1"),
        ({"step_ms_mean": -1.0}, "column step_ms_mean: -1 ms is not above 0"),
        ({"utilization_ratio": 93.0}, "column utilization_ratio: 93 is above 1"),
        ({"mode": "dream"}, "'dream' is none of train, infer"),
        ({"schema_version": 2}, "schema_version: 2 is above 1"),
        ({"sub_batch": 64}, "64 is more than the batch of 32"),
        ({"step_ms_p50": 20.0}, "20 is above step_ms_p95 of 14"),
        ({"features_json": "[1]"}, "is not a JSON object"),
        ({"step_ms_mean": float("nan")}, "'nan' is not finite"),
        ({"device": ""}, "column device: is empty"),
    ],
)
def test_a_bad_solo_row_is_refused_with_its_column(change: dict[str, object], message: str) -> None:
    with pytest.raises(ProfileSchemaError, match=message):
        check_row(dataclasses.replace(SOLO, **change))  # type: ignore[arg-type]


def test_a_slowdown_of_another_campaign_is_refused() -> None:
    with pytest.raises(ProfileSchemaError, match=r"slowdown_ratio: 0\.4 is not victim_step_ms_mean"):
        check_row(dataclasses.replace(PAIR, slowdown_ratio=0.4))


def test_unsorted_partners_are_refused() -> None:
    with pytest.raises(ProfileSchemaError, match="is not sorted"):
        check_row(dataclasses.replace(PAIR, other_job_keys=("k2", "k1")))


def test_unknown_missing_and_repeated_columns_are_all_named() -> None:
    cells = format_row(PAIR)
    del cells["repeat"]
    with pytest.raises(ProfileSchemaError) as caught:
        parse_row({**cells, "colour": "red"}, PairRow)
    assert [problem.column for problem in caught.value.problems] == ["repeat", "colour"]


def test_every_bad_line_is_named_at_once(tmp_path: Path) -> None:
    write_rows(tmp_path / "pairs.csv", [PAIR, PAIR, PAIR], PairRow)
    lines = (tmp_path / "pairs.csv").read_text().splitlines()
    lines[1] = lines[1].replace(",0,ok", ",x,ok")
    lines[3] = lines[3].replace(",0,ok", ",0,perhaps")
    (tmp_path / "pairs.csv").write_text("\n".join(lines))
    with pytest.raises(ProfileSchemaError) as caught:
        read_rows(tmp_path / "pairs.csv", PairRow)
    assert [(problem.line, problem.column) for problem in caught.value.problems] == [(2, "repeat"), (4, "status")]


def test_a_line_with_too_few_cells_is_refused(tmp_path: Path) -> None:
    write_rows(tmp_path / "pairs.csv", [PAIR], PairRow)
    with (tmp_path / "pairs.csv").open("a") as file:
        file.write("only,three,cells\n")
    with pytest.raises(ProfileSchemaError, match=r"line 3.*3 cells where the header has 12"):
        read_rows(tmp_path / "pairs.csv", PairRow)


def test_every_column_says_what_it_means() -> None:
    for row_type in (SoloRow, PairRow):
        assert all(item.rule.meaning for item in columns(row_type))
