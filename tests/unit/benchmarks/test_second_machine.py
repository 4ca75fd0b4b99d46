"""What a calibration is worth on a machine that taught nothing: the rows that judge, and what is counted."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.second_machine import MACHINE, calibrate, count_held, read_machine
from cotenant.profile_schema import SoloRow, read_rows
from predictor_service.features.anchor_networks import STANDIN_ANCHORS
from predictor_service.inference.records import Estimate, Level
from predictor_service.retraining.datasets import read_datasets
from predictor_service.settings import default_datasets_dir


def test_no_model_learns_from_the_machine_that_judges() -> None:
    judging = {row.campaign for row in read_rows(MACHINE / "solo.csv", SoloRow)}
    learned = {row.campaign for dataset in read_datasets(default_datasets_dir()) for row in dataset.solo}

    assert judging
    assert not judging & learned


def test_a_calibration_of_the_machine_is_what_its_rows_say_of_the_anchors() -> None:
    rows = read_machine(MACHINE)
    first = STANDIN_ANCHORS[0]
    key = first.network, first.batch_size
    slower = [replace(row, step_ms_mean=2 * (row.step_ms_mean or 0.0)) for row in rows[key]]

    measured, twice = calibrate(rows), calibrate({**rows, key: slower})
    assert [each.graph_sha256 for each in measured.anchors] == [each.graph_sha256 for each in STANDIN_ANCHORS]
    assert twice.anchors[0].step_ms == 2 * measured.anchors[0].step_ms
    assert twice.anchors[1:] == measured.anchors[1:]


def test_a_range_holds_what_lies_between_its_ends() -> None:
    said = [Estimate(2.0, 1.0, 3.0, 0.9, Level.GRAPH, True)] * 4

    assert count_held(said, [0.9, 1.0, 3.0, 3.1]) == 0.5
