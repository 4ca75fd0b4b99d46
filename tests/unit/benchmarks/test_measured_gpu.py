"""What judges predictions of a GPU that was met: its rows, what was said before them, and how they are counted."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
import pytest

from benchmarks.measured_gpu import (
    DEVICE,
    MACHINE,
    WITH,
    WITHOUT,
    Said,
    compare_ways,
    judge_pairs,
    measure_again,
    read_first,
    score,
    settings_of,
)
from cotenant.device_calibration import read_calibration_file
from cotenant.device_sharing import DeviceSharing
from cotenant.graph_file import graph_sha256
from cotenant.profile_schema import PairRow, SoloRow, read_rows
from cotenant.system_clock import now_ms
from predictor_service.inference.predictor import Predictor
from predictor_service.inference.records import Estimate, Level, PairsAnswer, PairsQuestion
from predictor_service.retraining.datasets import read_datasets
from predictor_service.settings import default_datasets_dir

SOLO = read_rows(MACHINE / "solo.csv", SoloRow)
PAIRS = read_rows(MACHINE / "pairs.csv", PairRow)


def test_no_model_learns_from_the_gpu_that_judges() -> None:
    learned = {row.campaign for dataset in read_datasets(default_datasets_dir()) for row in dataset.solo}

    assert {row.device for row in SOLO} == {DEVICE}
    assert not {row.campaign for row in SOLO} & learned


def test_no_row_that_is_judged_is_one_of_the_calibrations() -> None:
    anchors = {
        (each.graph_sha256, each.batch_size, each.precision)
        for name in ("calibration", "calibration_first")
        for each in read_calibration_file(MACHINE / f"{name}.json", now_ms()).anchors
    }

    assert len(anchors) == 3
    assert not anchors & {(row.graph_sha256, row.batch, row.precision) for row in SOLO}


def test_every_row_has_its_graph_its_key_and_what_was_said_first() -> None:
    for row in SOLO:
        graph = (MACHINE / "graphs" / f"{row.graph_sha256}.onnx").read_bytes()
        assert graph_sha256(graph) == row.graph_sha256
        assert settings_of(row).key(row.graph_sha256) == row.job_key

    said = json.loads((MACHINE / "predicted_first.json").read_text())
    first = read_first(SOLO)
    assert len(first[WITH]) == len(first[WITHOUT]) == len(SOLO)
    for name, is_calibrated in ((WITH, True), (WITHOUT, False)):
        stated_ms = {each["step_ms"]["value"] for each in said if each["calibrated"] is is_calibrated}
        assert {each.step_ms.value for each in first[name]} == stated_ms


def test_both_victims_of_every_pair_are_rows_alone() -> None:
    keys = {row.job_key for row in SOLO}
    ordered = {(row.share_mode, row.victim_job_key, *row.other_job_keys) for row in PAIRS}

    assert len(ordered) == len(PAIRS)
    assert {key for _, *pair in ordered for key in pair} <= keys
    assert all((way, other, victim) in ordered for way, victim, other in ordered)


def _estimate(value: float, lower: float, upper: float, upper_99: float | None = None) -> Estimate:
    return Estimate(value, lower, upper, 0.9, Level.FALLBACK, False, upper_99)


def test_memory_is_what_the_driver_counts_and_steps_are_told_apart_by_who_waits() -> None:
    row = replace(SOLO[0], memory_reserved_bytes=60, memory_context_bytes=40, step_ms_mean=10.0, utilization_ratio=0.9)
    waiting = replace(row, utilization_ratio=0.5)
    right = Said(_estimate(100, 90, 120, 200), _estimate(10, 5, 20), _estimate(0.8, 0.7, 0.95))
    wrong = Said(_estimate(50, 40, 60, 90), _estimate(20, 15, 30), _estimate(0.9, 0.8, 1.0))

    figures = score([row, waiting], [right, wrong])

    assert figures["memory"] == {
        "error_mean": 0.25,
        "error_median": 0.25,
        "ratio": pytest.approx(0.5**0.5, abs=1e-3),
        "range_holds": 0.5,
        "bound_holds": 0.5,
        "bound_per_measured_mean": 1.45,
    }
    assert (figures["step"]["busy"], figures["step"]["range_holds"]) == (1, 0.5)
    assert (figures["step"]["ratio_of_busy"], figures["step"]["ratio_of_waiting"]) == (1.0, 2.0)
    assert figures["step"]["upper_per_lower_median"] == 3.0
    assert figures["utilization"] == {"mae": 0.25, "bias": 0.15, "range_holds": 0.5}


@dataclass
class _Asked:
    """A predictor that says 0.1 of the first job next to the second, and 1.5 of the second."""

    questions: list[PairsQuestion] = field(default_factory=list)

    def predict_pairs(self, question: PairsQuestion) -> PairsAnswer:
        self.questions.append(question)
        said = np.array([[9.0, 0.1], [1.5, 9.0]], dtype=np.float32)
        return PairsAnswer(
            prediction_id="",
            model_version="",
            job_ids=[job.job_id for job in question.jobs],
            slowdown_ratio=said,
            lower=said - 0.2,
            upper=said + 0.2,
            level=np.zeros((2, 2), dtype=np.int32),
            in_domain=np.zeros((2, 2), dtype=np.bool_),
            times_measured=np.zeros((2, 2), dtype=np.int32),
        )


def _pair(victim: SoloRow, other: SoloRow, slowdown: float, way: str) -> PairRow:
    return replace(
        PAIRS[0],
        share_mode=way,
        victim_job_key=victim.job_key,
        other_job_keys=(other.job_key,),
        victim_solo_step_ms_mean=10.0,
        victim_step_ms_mean=10.0 * (1 + slowdown),
        slowdown_ratio=slowdown,
    )


def test_a_victim_is_judged_by_what_was_said_of_it_and_only_in_pairs_that_shared_as_asked() -> None:
    first, second = SOLO[0], SOLO[1]
    pairs = [_pair(second, first, 1.0, "mps"), _pair(first, second, 0.2, "mps"), _pair(first, second, 5.0, "other")]
    asked = _Asked()

    figures = judge_pairs(cast("Predictor", asked), SOLO, pairs, "mps", None)

    assert figures["graphs_alone"] == {"mae": 0.3, "bias": 0.2, "range_holds": 0.5, "range_width_mean": 0.4}
    assert (figures["victims"], figures["mae_of_none"], figures["mae_of_twice_as_long"]) == (2, 0.6, 0.4)
    assert [each.sharing for each in asked.questions] == [DeviceSharing.MPS] * 2
    assert [each.jobs[0].known_step_ms for each in asked.questions] == [None, first.step_ms_mean]


def test_what_was_measured_twice_says_how_near_a_prediction_can_be() -> None:
    first, second = replace(SOLO[0], step_ms_mean=8.0), replace(SOLO[1], step_ms_mean=10.0)
    pairs = [_pair(first, second, 0.5, "mps"), _pair(first, second, 9.0, "mps"), _pair(second, first, 0.5, "mps")]
    apart_elsewhere = replace(pairs[0], share_mode="other", victim_solo_step_ms_mean=99.0, victim_step_ms_mean=99.0)

    figures = measure_again([first, second], [*pairs, apart_elsewhere], "mps")

    assert figures == {"steps": 3, "error_mean": 0.167, "error_max": 0.25}


def test_only_victims_that_were_measured_both_ways_say_what_one_tells_of_the_other() -> None:
    first, second, third = SOLO[:3]
    turns = [
        _pair(one, other, lost, "time_slicing") for one, other, lost in ((first, second, 1.0), (second, first, 3.0))
    ]
    under_mps = [_pair(first, second, 0.0, "mps"), _pair(second, first, 2.0, "mps"), _pair(third, first, 9.0, "mps")]

    figures = compare_ways([*turns, *reversed(under_mps)])

    assert (figures["victims"], figures["less_under_mps"], figures["apart_mean"]) == (2, 2, 1.0)
    assert (figures["time_slicing_mean"], figures["mps_mean"], figures["correlation"]) == (2.0, 1.0, 1.0)
    assert (figures["time_slicing_speed_of_both"], figures["mps_speed_of_both"]) == (0.75, 1.333)
