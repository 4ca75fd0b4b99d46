"""Memory on a device type that nobody measured: by what others measured of such jobs on another type."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotenant.job_settings import JobSettings
from predictor_service.commands.predict import open_predictor, read_graph_file
from predictor_service.commands.train import make_first_version
from predictor_service.features.devices import DEVICE_TYPES
from predictor_service.features.uncalibrated_memory import GENERATION_MEMORY
from predictor_service.inference.predictor import Predictor
from predictor_service.inference.records import Estimate, JobQuestion
from predictor_service.settings import Settings, default_datasets_dir

MEASURED = "NVIDIA A100-SXM4-40GB"
GRAPH = Path(__file__).parents[3] / "examples/jobs/graphs/cnn.onnx"


@pytest.fixture(scope="module")
def predictor(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    """Answers with the models that come with the program."""
    state = tmp_path_factory.mktemp("state")
    make_first_version(Settings(state_dir=state, datasets=default_datasets_dir()), lambda line: None)
    return open_predictor(state)


def memory(predictor: Predictor, device: str) -> Estimate:
    question = JobQuestion(
        settings=JobSettings(global_batch_size=64, optimizer="adam"), device=device, onnx_graph=read_graph_file(GRAPH)
    )
    return predictor.predict_job(question).memory_bytes


@pytest.mark.parametrize(
    "device", ["Tesla V100-SXM2-16GB", "Tesla T4", "NVIDIA GeForce RTX 4090", "NVIDIA H100 80GB HBM3"]
)
def test_a_job_is_expected_to_hold_what_it_holds_on_the_type_that_was_measured(
    device: str, predictor: Predictor
) -> None:
    """Peaks of the device that is asked about say nothing: they were those of one type in all rows."""
    known, here = memory(predictor, MEASURED), memory(predictor, device)
    widening = GENERATION_MEMORY[DEVICE_TYPES[device].generation].widening
    assert here.value == pytest.approx(known.value)
    assert here.upper_99 == pytest.approx(widening * (known.upper_99 or 0.0))
    assert here.lower == pytest.approx(known.lower / widening)
    assert here.range_not_calibrated
