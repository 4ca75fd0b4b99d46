"""What jobs share that differ in their input wait only gives each the columns and the excess that it has alone."""

from __future__ import annotations

import random

import numpy as np

from cotenant.job_settings import JobSettings
from cotenant.v1 import prediction_pb2 as messages
from predictor_service.features.devices import DEVICE_TYPES, STANDIN_DEVICE
from predictor_service.features.graphs.graph_description import describe_graph
from predictor_service.grpc_api.translate_answers import job_response
from predictor_service.inference.job_estimator import JobEstimator
from predictor_service.inference.job_work import JobWork
from predictor_service.inference.measured_graph import MeasuredGraph
from predictor_service.inference.records import JobQuestion
from predictor_service.inference.unusual_features import find_unusual
from tests.support.cases import for_each
from tests.support.measured_dataset import graphs
from tests.support.predictor_service import open_predictor


def work_of(family: str) -> JobWork:
    version = open_predictor().version
    assert version is not None
    settings = JobSettings(global_batch_size=1, optimizer="adamw")
    graph = MeasuredGraph(describe_graph(graphs()[family]))
    return JobWork(graph, settings, DEVICE_TYPES[STANDIN_DEVICE], version.devices[STANDIN_DEVICE])


@for_each("family", sorted(graphs()))
def test_columns_and_excess_from_another_wait_are_those_of_the_job_alone(family: str) -> None:
    work, random_ = work_of(family), random.Random(family)
    beyond = 0
    for wait in (0.0, 0.3, 0.999999, 1e-12, *(random_.random() for _ in range(20))):
        start, stop = sorted(random_.sample(range(12), 2))
        vectors = work.table(stop).waiting(wait).values
        for name in ("memory_bytes", "step_ms", "utilization_ratio"):
            model = work.models[name]
            alone = model.select(vectors[start:stop])
            columns, excess = work.columns(model, slice(start, stop), vectors[:stop], wait)
            np.testing.assert_array_equal(columns, alone)
            np.testing.assert_array_equal(excess, model.record.domain.excess(alone))
            beyond += bool(excess.any())
    assert beyond  # else nothing but zeros was compared


@for_each("family", sorted(graphs()))
def test_places_outside_of_what_is_accepted_are_those_that_numpy_finds(family: str) -> None:
    work = work_of(family)
    for wait in (0.0, 0.5, 0.999):
        for row in work.models["step_ms"].select(work.table(21).waiting(wait).values).astype(np.float64):
            domain = work.models["step_ms"].record.domain
            beyond = np.maximum(row - domain.high, domain.low - row)
            expected = [place for place in np.argsort(-beyond, kind="stable").tolist() if beyond[place] > 0]
            assert domain.outside(row) == expected


def test_the_reasons_of_each_estimate_reach_its_own_message_and_no_other() -> None:
    predictor = open_predictor()
    sha256 = predictor.keep_graph(graphs()["medium"])[0]
    question = JobQuestion(
        settings=JobSettings(global_batch_size=4, precision="bf16"), device=STANDIN_DEVICE, graph_sha256=sha256
    )
    answer = predictor.predict_job(question)
    reasons = (("a", "b"), (), ("c",))
    answer = answer._replace(
        utilization_ratio=answer.utilization_ratio._replace(unusual_features=reasons[0]),
        memory_bytes=answer.memory_bytes._replace(unusual_features=reasons[1]),
        step_ms=answer.step_ms._replace(unusual_features=reasons[2]),
    )
    for _ in range(2):  # the second one is written from what was kept
        found = messages.PredictJobResponse.FromString(job_response(answer).SerializeToString())
        parts = (found.utilization_ratio, found.memory_bytes, found.step_ms)
        assert tuple(tuple(part.unusual_features) for part in parts) == reasons
        assert found.memory_bytes.value == answer.memory_bytes.value
        assert not found.HasField("sm_activity_ratio")


def test_a_job_whose_precision_is_new_and_whose_columns_are_usual_is_unusual_by_its_precision_alone() -> None:
    work = work_of("medium")
    estimator = JobEstimator(work, 0.0, 0.9)
    model, vector = work.models["step_ms"], work.table(6).waiting(0.0).values[5]
    found = find_unusual(model, vector, "fp16")
    assert found.is_beyond
    assert found.texts[0].startswith("precision fp16, trained ")
    assert estimator.step(32).in_domain == (not find_unusual(model, vector, "fp32").texts)
