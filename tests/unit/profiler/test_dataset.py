from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from cotenant_profiler.dataset import Sources, gather, pair_rows, settings_of, solo_rows, write_dataset
from cotenant_profiler.journal import Journal, Record
from cotenant_profiler.plan import Kind

from cotenant.job_settings import JobSettings
from cotenant.profile_schema import PairRow, SoloRow, check_row, read_rows
from tests.support.profiler import LENET, LENET_WAIT, RECOMMENDER, record

HEADER = {"campaign": "test", "device": "cpu-standin", "framework": "torch-x"}
GRAPHS = {"lenet": "a" * 64, "recommender": "b" * 64}
MEMORY = record(Kind.MEMORY, LENET, figures=({"peak_bytes": 5e7, "baseline_bytes": 2e8},))


def sources_of(*records: Record) -> Sources:
    return gather(Journal(Path("unused"), HEADER, list(records)), GRAPHS, drift_ratio_max=0.05)


def test_rows_follow_the_schema_and_carry_the_memory_of_the_job() -> None:
    sources = sources_of(record(Kind.SOLO, LENET), record(Kind.SOLO, LENET_WAIT, run_id="w"), MEMORY)
    rows = list(solo_rows(sources))
    for row in rows:
        check_row(row)
    assert [row.memory_peak_bytes for row in rows] == [50_000_000, 50_000_000]
    assert [row.input_wait_ratio for row in rows] == [0.0, 0.6]
    assert rows[0].job_key != rows[1].job_key


def test_a_row_says_the_precision_of_its_job_and_its_key_does() -> None:
    mixed = replace(LENET, precision="bf16")
    rows = list(solo_rows(sources_of(record(Kind.SOLO, LENET), record(Kind.SOLO, mixed, run_id="m"))))
    assert [row.precision for row in rows] == ["fp32", "bf16"]
    assert rows[0].job_key != rows[1].job_key


def test_slowdown_is_relative_to_the_job_alone_right_before_and_after() -> None:
    sources = sources_of(
        record(Kind.SOLO, LENET, step_ms=99.0),
        record(Kind.GROUP, LENET, RECOMMENDER, step_ms=[15.0, 10.0], references_ms=((9.0, 11.0), (4.0, 4.0))),
    )
    first, second = pair_rows(sources)
    check_row(first)
    check_row(second)
    assert first.slowdown_ratio == pytest.approx(0.5)
    assert second.slowdown_ratio == pytest.approx(1.5)
    assert first.other_job_keys == (second.victim_job_key,)


def test_a_triple_gives_three_rows_with_two_others_each() -> None:
    solo = [record(Kind.SOLO, job) for job in (LENET, LENET_WAIT, RECOMMENDER)]
    rows = list(pair_rows(sources_of(*solo, record(Kind.GROUP, LENET, LENET_WAIT, RECOMMENDER, step_ms=30.0))))
    assert [len(row.other_job_keys) for row in rows] == [2, 2, 2]
    assert all(list(row.other_job_keys) == sorted(row.other_job_keys) for row in rows)


def test_rejected_and_failed_attempts_stay_in_the_dataset_with_their_status() -> None:
    failed = record(Kind.SOLO, LENET, run_id="f", status="failed", figures=())
    rejected = record(Kind.SOLO, LENET, run_id="r", status="rejected", flags=("foreign_load",))
    rows = list(solo_rows(sources_of(record(Kind.SOLO, LENET), failed, rejected)))
    for row in rows:
        check_row(row)
    assert [row.status for row in rows] == ["ok", "failed", "rejected"]
    assert rows[1].step_ms_mean is None
    assert rows[2].quality_flags == ("foreign_load",)


def test_a_run_accepted_before_the_usual_speed_was_known_is_flagged_later() -> None:
    records = [record(Kind.SOLO, LENET, alone_ms=12.0), *[record(Kind.SOLO, LENET)] * 5]
    assert [row.quality_flags for row in solo_rows(sources_of(*records))] == [("anchor_drift",)] + [()] * 5


def test_a_dataset_is_written_with_graphs_under_their_hashes(tmp_path: Path) -> None:
    records = [record(Kind.SOLO, RECOMMENDER), record(Kind.GROUP, RECOMMENDER, RECOMMENDER, step_ms=[20.0, 21.0])]
    counts = write_dataset(Journal(tmp_path, HEADER, records), tmp_path, drift_ratio_max=0.05)
    solo = read_rows(tmp_path / "solo.csv", SoloRow)
    pairs = read_rows(tmp_path / "pairs.csv", PairRow)
    assert counts == (len(solo), len(pairs)) == (1, 2)
    assert (tmp_path / "graphs" / f"{solo[0].graph_sha256}.onnx").exists()
    assert {row.victim_job_key for row in pairs} == {solo[0].job_key}


def test_settings_are_those_that_the_prediction_service_reads() -> None:
    assert settings_of(LENET_WAIT) == JobSettings(
        global_batch_size=32, mode="train", precision="fp32", optimizer="momentum", input_wait_ratio=0.6
    )
