"""A predictor of today serves from the folder of an earlier one: its graphs, versions, predictions and stretches."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cotenant.v1 import prediction_pb2 as messages
from cotenant.v1 import prediction_pb2_grpc, resources_pb2
from tests.goldens.predictor_state import question, serving, stretches_again
from tests.goldens.write_goldens import GOLDENS

pytestmark = pytest.mark.slow
TRUTH: dict[str, Any] = json.loads((GOLDENS / "predictor_truth.json").read_text())


@pytest.fixture(scope="module")
def predictor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[prediction_pb2_grpc.PredictionServiceStub]:
    state = Path(shutil.copytree(GOLDENS / "predictor", tmp_path_factory.mktemp("golden") / "state"))
    with serving(state) as stub:
        yield stub


def test_a_stored_graph_is_known_by_its_hash_and_its_job_by_its_key(
    predictor: prediction_pb2_grpc.PredictionServiceStub,
) -> None:
    answer = predictor.PredictJob(question(TRUTH["graph_sha256"]), timeout=90)
    assert answer.job_key == TRUTH["job_key"]
    assert answer.model_version == TRUTH["model_version"]


def test_an_outcome_of_an_earlier_prediction_is_joined_to_it(
    predictor: prediction_pb2_grpc.PredictionServiceStub,
) -> None:
    outcome = messages.Outcome(prediction_id=TRUTH["prediction_id"], step_ms_mean=3.1, window_ms=20_000)
    answer = predictor.RecordOutcomes(messages.RecordOutcomesRequest(request_id="later", outcomes=[outcome]))
    assert (answer.recorded, list(answer.unknown_prediction_ids)) == (1, [])


def test_what_was_measured_then_is_still_told(predictor: prediction_pb2_grpc.PredictionServiceStub) -> None:
    answer = predictor.PredictJob(question(TRUTH["graph_sha256"]), timeout=90)
    assert answer.step_ms.level == resources_pb2.ESTIMATE_LEVEL_OBSERVED
    assert 2.0 < answer.step_ms.value < 6.0


def test_a_stretch_that_was_kept_then_is_not_kept_twice(
    predictor: prediction_pb2_grpc.PredictionServiceStub,
) -> None:
    answer = predictor.RecordMeasurementWindows(stretches_again(TRUTH["graph_sha256"]), timeout=90)
    assert (answer.recorded, answer.already_recorded) == (0, 1)
