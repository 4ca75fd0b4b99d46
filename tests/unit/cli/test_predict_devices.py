"""How `predict` and a dry run speak of device types: as they were understood, and never of a fit that is unknown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cotenant.calibration_files import calibration_path, keep_calibration
from cotenant.device_calibration import write_calibration
from cotenant.v1 import prediction_pb2
from tests.support.calibrations import calibration
from tests.support.cli_cluster import CommandLine
from tests.support.fake_services import GIB, FakePredictor, FakeScheduler, sample_prediction

GRAPH = str(Path(__file__).parents[3] / "examples" / "jobs" / "graphs" / "mlp.onnx")


def generic(*, memory_bytes: int) -> prediction_pb2.PredictJobResponse:
    answer = sample_prediction(fits=memory_bytes > 0)
    answer.device, answer.device_is_generic, answer.device_memory_bytes = "NVIDIA X990", True, memory_bytes
    answer.ClearField("largest_batch_size_that_fits")
    return answer


def test_a_type_of_unknown_memory_never_fits(cotenant: CommandLine, predictor: FakePredictor) -> None:
    predictor.answer = generic(memory_bytes=0)
    outcome = cotenant("predict", GRAPH, "--batch-size", "8", "--device", "NVIDIA X990")
    assert "unknown: state --device-memory" in outcome.out
    assert "yes:" not in outcome.out
    assert outcome.code == 4


def test_with_its_memory_it_may_fit(cotenant: CommandLine, predictor: FakePredictor) -> None:
    predictor.answer = generic(memory_bytes=180 * GIB)
    outcome = cotenant("predict", GRAPH, "--batch-size", "8", "--device", "NVIDIA X990", "--device-memory", "180GiB")
    assert "of 180.00 GiB on NVIDIA X990" in " ".join(outcome.out.split())
    assert outcome.code == 0
    (request,) = predictor.seen
    assert isinstance(request, prediction_pb2.PredictJobRequest)
    assert request.device_memory_bytes == 180 * GIB


def test_the_verdict_names_the_type_as_it_was_understood(cotenant: CommandLine, predictor: FakePredictor) -> None:
    predictor.answer.device = "NVIDIA H200"
    outcome = cotenant("predict", GRAPH, "--batch-size", "8", "--device", "h200")
    assert "on NVIDIA H200" in " ".join(outcome.out.split())


def test_a_short_name_that_is_a_slip_is_wrong_use_and_is_asked_back(cotenant: CommandLine) -> None:
    outcome = cotenant("predict", GRAPH, "--batch-size", "8", "--device", "rtx 4900", "--offline")
    assert outcome.code == 2
    assert outcome.out == ""
    (asked_back,) = [part for part in outcome.err.split("; ") if part.startswith("did you mean ")]
    assert "NVIDIA GeForce RTX 4090" in asked_back


def test_a_dry_run_states_the_memory_that_the_nodes_report(
    cotenant: CommandLine, scheduler: FakeScheduler, predictor: FakePredictor
) -> None:
    cotenant("submit", "--steps", "5", "--batch-size", "8", "--graph", GRAPH, "--dry-run", "--", "python", "train.py")
    asked = {
        one.device: one.device_memory_bytes
        for one in predictor.seen
        if isinstance(one, prediction_pb2.PredictJobRequest)
    }
    assert asked == {gpu.device: gpu.memory_bytes for node in scheduler.nodes for gpu in node.gpus}
    assert all(asked.values())


def test_a_short_name_means_the_card_at_hand_that_was_calibrated(
    cotenant: CommandLine, predictor: FakePredictor, tmp_path: Path
) -> None:
    kept = replace(calibration(), device="NVIDIA H200")
    folder = tmp_path / "state"
    keep_calibration(calibration_path(folder, kept.device, kept.driver), kept)
    for flags in ([], ["--device-memory", "141GiB"]):
        cotenant("predict", GRAPH, "--batch-size", "8", "--device", "h200", *flags)
    known, stated = (each for each in predictor.seen if isinstance(each, prediction_pb2.PredictJobRequest))
    assert (known.device, known.calibration.device) == ("NVIDIA H200", "NVIDIA H200")
    assert stated.device == "h200", "who states its memory names a device that may be elsewhere"


@pytest.mark.parametrize("batches", ["8", "8,16"])
def test_a_calibration_that_cannot_be_read_is_told_once_with_its_remedy(
    cotenant: CommandLine, predictor: FakePredictor, tmp_path: Path, batches: str
) -> None:
    corrupt = calibration_path(tmp_path / "state", "NVIDIA H200", "1")
    corrupt.parent.mkdir(parents=True)
    corrupt.write_text("{")
    outcome = cotenant("predict", GRAPH, "--batch-size", batches, "--device", "h200")
    assert outcome.err.count(f"passed over: {corrupt}: no calibration: no JSON") == 1
    assert "`cotenant calibrate`, or delete the file" in outcome.err
    kept = tmp_path / "kept.json"
    kept.write_text(write_calibration(replace(calibration(), device="h200")))
    outcome = cotenant("predict", GRAPH, "--batch-size", batches, "--device", "h200", "--calibration", str(kept))
    assert "passed over" not in outcome.err
