"""What is kept of earlier questions changes no answer and stays bounded."""

import dataclasses

import pytest

from cotenant.job_settings import JobSettings
from predictor_service.features.devices import DEVICE_TYPES
from predictor_service.features.graphs.graph_description import describe_graph
from predictor_service.inference import estimator_cache
from predictor_service.inference.estimator_cache import EstimatorCache
from predictor_service.inference.graph_library import GraphLibrary
from predictor_service.inference.in_process_describer import InProcessDescriber
from predictor_service.inference.measured_graph import MeasuredGraph
from predictor_service.inference.predictor import Predictor
from predictor_service.inference.records import JobAnswer, JobQuestion, PairJob, PairsQuestion
from predictor_service.registry.version_holder import VersionHolder
from tests.support.measured_dataset import DEVICE, FAMILIES, graphs
from tests.support.predictor_service import trained_store

GRAPHS = graphs()
OPTIMIZERS = ("sgd", "momentum", "adam", "adamw")


def holder() -> VersionHolder:
    versions = VersionHolder(trained_store())
    versions.reload()
    return versions


def questions() -> list[JobQuestion]:
    """Every family at batches that lengthen a kept curve, shorten it and lie between its points."""
    return [
        JobQuestion(
            settings=JobSettings(
                global_batch_size=batch, optimizer=OPTIMIZERS[index % 4], input_wait_ratio=index % 3 / 10
            ),
            device=DEVICE if batch != 7 else "NVIDIA H200",
            onnx_graph=GRAPHS[family],
            explain=batch == 33,
            find_largest_batch=batch == 5,
            micro_batch_sizes=(1, batch),
            device_memory_bytes=1 << 34 if batch == 64 else 0,
        )
        for index, family in enumerate(FAMILIES)
        for batch in (32, 33, 7, 64, 1000, 5, 1)
    ]


def without_id(answer: JobAnswer) -> JobAnswer:
    return answer._replace(prediction_id="")


def test_a_kept_estimator_answers_exactly_as_a_new_one() -> None:
    keeping = Predictor(GraphLibrary(InProcessDescriber(), None), holder())
    forgetting = Predictor(GraphLibrary(InProcessDescriber(), None), holder(), estimators_max=0)
    for question in questions() * 2:
        assert without_id(keeping.predict_job(question)) == without_id(forgetting.predict_job(question))


@pytest.mark.parametrize(
    ("device", "is_one"), [("Tesla T4", True), ("AMD Instinct MI50", True), (DEVICE, True), ("NVIDIA A10", False)]
)
def test_tf32_is_fp32_where_nothing_multiplies_in_it(device: str, is_one: bool) -> None:
    kept, graph = EstimatorCache(), MeasuredGraph(describe_graph(GRAPHS[FAMILIES[0]]))
    version = holder().current()
    found = {
        precision: kept.find(
            graph, JobSettings(global_batch_size=8, precision=precision), DEVICE_TYPES[device], version, 0.9
        )
        for precision in ("fp32", "tf32", "fp16")
    }
    assert (found["tf32"] is found["fp32"]) is is_one
    assert found["fp16"] is not found["fp32"]


def test_pairs_of_graphs_are_the_same_with_and_without_kept_estimators() -> None:
    keeping = Predictor(GraphLibrary(InProcessDescriber(), None), holder())
    forgetting = Predictor(GraphLibrary(InProcessDescriber(), None), holder(), estimators_max=0)
    jobs = []
    for index, family in enumerate(FAMILIES):
        hashes = [predictor.keep_graph(GRAPHS[family])[0] for predictor in (keeping, forgetting)]
        settings = JobSettings(global_batch_size=10 + 7 * index, optimizer=OPTIMIZERS[index % 4])
        jobs.append(PairJob(job_id=family, settings=settings, graph_sha256=hashes[0]))
    question = PairsQuestion(device=DEVICE, jobs=jobs)
    for _ in range(2):
        kept, new = keeping.predict_pairs(question), forgetting.predict_pairs(question)
        for name in ("slowdown_ratio", "lower", "upper", "level", "in_domain"):
            assert (getattr(kept, name) == getattr(new, name)).all()


def test_settings_that_matter_are_distinguished_and_the_batch_is_not() -> None:
    kept, version = EstimatorCache(), holder().current()
    graph = MeasuredGraph(InProcessDescriber().describe(GRAPHS["wide"]))
    device = Predictor(GraphLibrary(InProcessDescriber(), None), holder()).devices()[0][0]
    base = JobSettings(global_batch_size=8)
    first = kept.find(graph, base, device, version, 0.9)
    assert kept.find(graph, dataclasses.replace(base, global_batch_size=9), device, version, 0.9) is first
    for change in ({"optimizer": "adam"}, {"mode": "infer"}, {"precision": "bf16"}, {"host_memory_bytes": 1 << 30}):
        assert kept.find(graph, dataclasses.replace(base, **change), device, version, 0.9) is not first
    assert kept.find(graph, base, device, version, 0.8) is not first
    assert kept.find(graph, base, dataclasses.replace(device, memory_bytes=1), version, 0.9) is not first
    assert kept.find(graph, base, device, None, 0.9) is not first


def test_what_is_kept_stays_within_its_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = MeasuredGraph(InProcessDescriber().describe(GRAPHS["deep"]))
    device = Predictor(GraphLibrary(InProcessDescriber(), None), holder()).devices()[0][0]
    monkeypatch.setattr(estimator_cache, "NODES_MAX", 3 * graph.description.nodes)
    kept = EstimatorCache(estimators_max=50)
    made = [
        kept.find(graph, JobSettings(global_batch_size=1, input_wait_ratio=n / 100), device, None, 0.9)
        for n in range(40)
    ]
    again = [
        kept.find(graph, JobSettings(global_batch_size=1, input_wait_ratio=n / 100), device, None, 0.9)
        for n in range(37, 40)
    ]
    assert all(new is old for new, old in zip(again, made[37:], strict=True))
    assert kept.find(graph, JobSettings(global_batch_size=1, input_wait_ratio=0.36), device, None, 0.9) is not made[36]
