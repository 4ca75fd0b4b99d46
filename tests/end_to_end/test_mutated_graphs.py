"""Real graphs with something broken, through the real path: answered or refused with a remedy, never crashed on.

How long the slowest takes and how much memory the service needs meanwhile is measured by `benchmarks.mutated_graphs`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from cotenant.v1 import prediction_pb2 as messages
from cotenant.v1 import prediction_pb2_grpc
from predictor_service.features.graphs.extraction_pool import ExtractionPool
from tests.support.grpc_errors import code_of, details_of, error_info_of
from tests.support.measured_dataset import DEVICE, graphs
from tests.support.mutated_graphs import MUTATIONS, mutated_graphs
from tests.support.predictor_service import open_predictor, running_server, stub_of

ACCEPTED = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED}
DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[prediction_pb2_grpc.PredictionServiceStub]:
    folder = tmp_path_factory.mktemp("mutated")
    with (
        ExtractionPool(workers=1) as pool,
        running_server(folder, open_predictor(folder / "graphs", pool)) as channel,
    ):
        yield stub_of(channel)


def ask(stub: prediction_pb2_grpc.PredictionServiceStub, content: bytes) -> str:
    """Returns OK or the reason of the refusal."""
    settings: Any = {"global_batch_size": 8}
    request = messages.PredictJobRequest(
        onnx_graph=content, settings=settings, device=DEVICE, find_largest_batch_size=True, micro_batch_sizes=[4]
    )
    refusal = stub.PredictJob.future(request, timeout=DEADLINE_S)
    error = refusal.exception()
    if error is not None:
        assert code_of(error) in ACCEPTED, error
        info = error_info_of(error)
        assert info.metadata["remedy"], details_of(error)
        return str(info.reason)
    answer = refusal.result()
    assert answer.memory_bytes.lower <= answer.memory_bytes.value <= answer.memory_bytes.upper
    return "OK"


def ask_all(stub: prediction_pb2_grpc.PredictionServiceStub, count: int, seed: int) -> Counter[str]:
    answers: Counter[str] = Counter()
    for name, content in mutated_graphs(count, seed):
        try:
            answers[ask(stub, content)] += 1
        except AssertionError as error:
            raise AssertionError(f"mutation {name}: {error}") from error
    assert ask(stub, graphs()["medium"]) == "OK"
    return answers


@pytest.mark.slow
def test_sixty_broken_graphs_are_answered_or_refused_with_a_remedy(
    stub: prediction_pb2_grpc.PredictionServiceStub,
) -> None:
    answers = ask_all(stub, 60, seed=1)
    assert answers["OK"] >= 5
    assert answers["MALFORMED_GRAPH"] >= 5


@pytest.mark.endurance
@pytest.mark.timeout(1200)
def test_a_thousand_broken_graphs_are_answered_or_refused_with_a_remedy(
    stub: prediction_pb2_grpc.PredictionServiceStub,
) -> None:
    assert sum(ask_all(stub, 1_000, seed=2).values()) == 1_000


def test_the_same_seed_breaks_the_same_graphs_in_every_way() -> None:
    first = list(mutated_graphs(120, seed=3))
    assert first == list(mutated_graphs(120, seed=3))
    assert {name for name, _ in first} == set(MUTATIONS)
