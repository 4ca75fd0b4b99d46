"""Questions whose features and models are asked at once are answered as if each part of them had been asked alone."""

from __future__ import annotations

import random
from typing import Any, Final

import numpy as np
import pytest
from google.protobuf.message import Message

from cotenant.job_settings import JobSettings
from cotenant.v1 import prediction_pb2 as messages
from cotenant.v1 import resources_pb2
from predictor_service.errors import PredictorError
from predictor_service.features.devices import DEVICE_TYPES, STANDIN_DEVICE
from predictor_service.features.graphs.graph_description import GraphDescription, describe_graph
from predictor_service.features.job_features import FEATURES, build_features, tabulate_job
from predictor_service.grpc_api.translate_answers import job_response
from predictor_service.grpc_api.translate_requests import job_question
from predictor_service.inference.calibrated_devices import place_notices
from predictor_service.inference.measured_graph import GRID, MeasuredGraph
from predictor_service.inference.observed_jobs import ObservedJobs
from predictor_service.inference.predictor import Predictor
from predictor_service.inference.prepared_job import PreparedJob
from tests.support.cases import for_each
from tests.support.literal_estimator import LiteralEstimator
from tests.support.literal_features import literal_step_ms, literal_values
from tests.support.measured_dataset import graphs
from tests.support.onnx_graphs import lstm_language_model, mobilenet_v2
from tests.support.predictor_service import open_predictor

GRAPHS: Final = {
    **graphs(),
    "recurrent": lstm_language_model("batch").SerializeToString(),
    "depthwise": mobilenet_v2("batch").SerializeToString(),
}
DESCRIPTIONS: Final[dict[str, GraphDescription]] = {name: describe_graph(data) for name, data in GRAPHS.items()}
QUESTIONS: Final = 200
ADDING_ORDER_RATIO: Final = 1e-6
"""On one processor answers are equal to the last bit; another one may add a product of two rows in another order."""
ODD_BATCHES: Final = (1, 2, 3, 999_999, 1_000_000, 0)


def draw_settings(random_: random.Random) -> dict[str, Any]:
    """Settings in their range, absurd ones among them, and some outside of it."""
    settings: dict[str, Any] = {
        "global_batch_size": random_.choice([*ODD_BATCHES, random_.randrange(1, 700), 1 << random_.randrange(20)]),
        "mode": random_.randrange(3),
        "precision": random_.randrange(5),
        "optimizer": random_.randrange(5),
    }
    if random_.random() < 0.6:
        settings["input_wait_ratio"] = random_.choice([random_.random(), 1e-12, 0.999999])
    for name, values in {
        "host_memory_bytes": (1, 1 << 62),
        "disk_read_bytes_per_s": (1e-300, 1e308),
        "network_bytes_per_s": (1.0, 1e11),
    }.items():
        if random_.random() < 0.2:
            settings[name] = random_.choice(values)
    return settings


def draw_request(random_: random.Random, hashes: list[str]) -> messages.PredictJobRequest:
    settings = draw_settings(random_)
    request = messages.PredictJobRequest(
        settings=resources_pb2.JobSettings(**settings),
        device=random_.choice([*["cpu-standin"] * 6, "NVIDIA H200", "a100 80gb", "NVIDIA Unheard 1", "gibberish"]),
        graph_sha256=random_.choice(hashes),
        explain=random_.random() < 0.05,
        find_largest_batch_size=random_.random() < 0.2,
        device_memory_bytes=random_.choice([0, 0, 1, 1 << 28, 1 << 36, 1 << 60]),
        confidence=random_.choice([0.0, 0.0, 0.5, 0.95, 0.99, 0.999]),
    )
    if random_.random() < 0.3:
        request.micro_batch_sizes.extend(random_.choice([[1], [1, 3], [settings["global_batch_size"]], [7, 1 << 30]]))
    return request


def assert_alike(found: messages.PredictJobResponse, literal: messages.PredictJobResponse) -> None:
    """Numbers agree but for the order in which a processor adds them up; everything else is equal."""
    assert [name for name, _ in leaves(found)] == [name for name, _ in leaves(literal)]
    for (name, one), (_, other) in zip(leaves(found), leaves(literal), strict=True):
        assert one == (pytest.approx(other, rel=ADDING_ORDER_RATIO) if isinstance(other, float) else other), name


def leaves(message: Message, prefix: str = "") -> list[tuple[str, object]]:
    """Every value of a message that is set, with its place."""
    found: list[tuple[str, object]] = []
    for field, value in message.ListFields():
        parts = value if field.is_repeated else [value]
        for place, part in enumerate(parts):
            name = f"{prefix}{field.name}[{place}]"
            found += leaves(part, f"{name}.") if isinstance(part, Message) else [(name, part)]
    return found


def literally(predictor: Predictor, request: messages.PredictJobRequest) -> messages.PredictJobResponse:
    """The answer of a service that keeps nothing and asks for every part apart."""
    question = job_question(request)
    named, version = predictor.check_job(question), predictor.version
    graph = predictor._graphs.find(question.graph_sha256, {}).description
    estimator = LiteralEstimator(graph, question.settings, named.device, version, question.confidence)
    notices = place_notices(None, named.device, version)
    prepared = PreparedJob(question, named, graph, estimator, version, notices=notices)
    return job_response(prepared.answer(question.settings.global_batch_size, "", ObservedJobs()))


def test_varied_and_odd_questions_are_answered_as_if_every_part_were_asked_alone() -> None:
    predictor, random_ = open_predictor(), random.Random(11)
    hashes = [predictor.keep_graph(content)[0] for content in GRAPHS.values()]
    answered = refused = 0
    for _ in range(QUESTIONS):
        request = draw_request(random_, hashes)
        try:
            found = job_response(predictor.predict_job(job_question(request)))
        except PredictorError as error:
            with pytest.raises(type(error)):
                literally(predictor, request)
            refused += 1
            continue
        found.prediction_id = ""
        assert_alike(found, literally(predictor, request))
        answered += 1
    assert answered > QUESTIONS / 2
    assert refused > QUESTIONS / 20


def test_jobs_that_only_wait_longer_or_shorter_are_answered_as_if_each_were_asked_alone() -> None:
    predictor, random_ = open_predictor(), random.Random(13)
    hashes = [predictor.keep_graph(content)[0] for content in GRAPHS.values()]
    for device in ("cpu-standin", "NVIDIA H200"):
        for sha256 in hashes:
            for batch in (300, 3, 700, 90_000, 17, 1):
                settings = resources_pb2.JobSettings(global_batch_size=batch, input_wait_ratio=random_.random())
                request = messages.PredictJobRequest(settings=settings, device=device, graph_sha256=sha256)
                found = job_response(predictor.predict_job(job_question(request)))
                found.prediction_id = ""
                assert_alike(found, literally(predictor, request))


@for_each("family", sorted(GRAPHS))
def test_every_row_of_a_table_is_the_vector_that_its_values_spell_out(family: str) -> None:
    random_, graph = random.Random(family), MeasuredGraph(DESCRIPTIONS[family])
    for _ in range(12):
        settings = JobSettings(
            global_batch_size=1,
            mode=random_.choice(["train", "infer"]),
            precision=random_.choice(["fp32", "tf32", "bf16", "fp16"]),
            optimizer=random_.choice(["sgd", "momentum", "adam", "adamw"]),
            input_wait_ratio=random_.choice([0.0, random_.random()]),
            host_memory_bytes=random_.choice([None, 1 << 34]),
        )
        device = DEVICE_TYPES[random_.choice([STANDIN_DEVICE, "NVIDIA H200", "Tesla K80"])]
        table = tabulate_job(graph.table(random_.randrange(1, len(GRID) + 1)), settings, device)
        for place in range(len(table)):
            features = DESCRIPTIONS[family].at_batch(GRID[place])
            literal = literal_values(features, settings, device)
            spelled = [literal[feature.name] for feature in FEATURES]
            assert spelled == pytest.approx(table.values[place].tolist(), rel=ADDING_ORDER_RATIO)
            step_ms = literal_step_ms(features, settings, device) / (1.0 - settings.input_wait_ratio)
            assert table.roofline_ms[place] == pytest.approx(step_ms, rel=ADDING_ORDER_RATIO)
            alone = build_features(features, settings, device).values
            np.testing.assert_allclose(alone, table.values[place], rtol=ADDING_ORDER_RATIO)
