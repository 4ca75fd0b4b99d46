"""What is unlike everything that was measured is wider, is flagged, and says what is unusual."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from cotenant.job_settings import JobSettings
from predictor_service.features.graphs.graph_extraction import GraphWarning
from predictor_service.grpc_api.translate_answers import job_response
from predictor_service.inference.observed_jobs import ObservedJobs
from predictor_service.inference.records import Estimate, JobAnswer, JobQuestion
from predictor_service.inference.unusual_features import UNUSUAL_MAX, _range
from predictor_service.selection.domain import MARGIN_MAX, learn_domain
from tests.support.cases import for_each
from tests.support.measured_dataset import DEVICE, dense_network, graphs
from tests.support.predictor_service import open_predictor


def ask(graph: bytes, batch: int = 32, device: str = DEVICE, **settings: str) -> JobAnswer:
    job = JobSettings(global_batch_size=batch, **{"optimizer": "adam", **settings})  # type: ignore[arg-type]
    question = JobQuestion(settings=job, device=device, onnx_graph=graph)
    return open_predictor().predict_job(question)


def width(estimate: Estimate) -> float:
    return estimate.upper / estimate.lower


def codes(answer: JobAnswer) -> list[str]:
    return [notice.code for notice in answer.warnings]


def test_a_measured_job_is_usual() -> None:
    answer = ask(graphs()["wide"])
    assert answer.memory_bytes.unusual_features == ()
    assert answer.memory_bytes.in_domain
    assert "OUT_OF_DOMAIN" not in codes(answer)


def test_a_network_far_larger_than_the_trained_ones_is_wider_and_says_in_what() -> None:
    known, large = ask(graphs()["wide"]), ask(dense_network([4096, 16384, 16384, 4096]), batch=4096)
    memory = large.memory_bytes
    assert not memory.in_domain
    assert memory.range_not_calibrated
    assert width(memory) > 1.5 * width(known.memory_bytes)
    assert memory.upper_99 is not None
    assert memory.upper_99 / memory.value > 1.25
    assert 1 <= len(memory.unusual_features) <= UNUSUAL_MAX
    assert any("iB, trained" in text and "iB to " in text for text in memory.unusual_features)
    assert list(job_response(large).memory_bytes.unusual_features) == list(memory.unusual_features)
    [notice] = [notice for notice in large.warnings if notice.code == "OUT_OF_DOMAIN"]
    assert memory.unusual_features[0] in notice.message


def test_a_graph_whose_multiply_adds_are_not_all_counted_is_flagged_and_wider() -> None:
    plain = ask(graphs()["wide"])
    job = open_predictor().prepare_job(
        JobQuestion(
            settings=JobSettings(global_batch_size=32, optimizer="adam"),
            device=DEVICE,
            onnx_graph=graphs()["wide"],
            micro_batch_sizes=(8,),
        )
    )
    nodes = job.graph.nodes
    missing = GraphWarning(code="UNCOUNTED_MACS", message="some multiply")
    job.graph = dataclasses.replace(job.graph, unshaped_nodes=nodes // 2, warnings=(missing,))
    answer = job.answer(32, "p", ObservedJobs())
    factor = nodes / (nodes - nodes // 2)
    for one, known in ((answer.memory_bytes, plain.memory_bytes), (answer.step_ms, plain.step_ms)):
        assert (one.value, one.lower) == (known.value, known.lower)
        assert one.upper == pytest.approx(factor * known.upper)
    assert answer.memory_bytes.upper_99 == pytest.approx(factor * (plain.memory_bytes.upper_99 or 0))
    assert answer.utilization_ratio.upper == plain.utilization_ratio.upper
    (micro,) = answer.micro_batches
    for estimate in (answer.memory_bytes, answer.step_ms, answer.utilization_ratio, micro.memory_bytes, micro.step_ms):
        assert (estimate.in_domain, estimate.range_not_calibrated) == (False, True)
        assert "multiply-adds" in estimate.unusual_features[-1]


def test_counts_are_told_as_they_are_counted() -> None:
    unusual = ask(dense_network([2, 2])).memory_bytes.unusual_features
    assert unusual[0].startswith("parameters 4, trained ")


def test_a_network_larger_than_the_device_does_not_fit() -> None:
    answer = ask(dense_network([4096, 16384, 16384, 4096]), batch=65_536)
    assert answer.memory_bytes.value > answer.device_memory_bytes
    assert not answer.fits
    assert "DOES_NOT_FIT" in codes(answer)
    assert "DOES_NOT_FIT" not in codes(ask(graphs()["wide"]))


@for_each("settings", [{"mode": "infer"}, {"precision": "fp16"}, {"optimizer": "sgd"}, {}])
def test_the_bound_of_memory_is_never_below_the_end_of_its_own_range(settings: dict[str, str]) -> None:
    for name, graph in {**graphs(), "tiny": dense_network([2, 2])}.items():
        for batch in (1, 16, 4096):
            memory = ask(graph, batch=batch, **settings).memory_bytes
            assert memory.upper_99 is not None
            assert memory.lower <= memory.value <= memory.upper <= memory.upper_99 * (1 + 1e-9), (name, batch)


def test_the_bound_of_a_mode_that_was_never_trained_is_wider() -> None:
    known, other = (ask(graphs()["wide"], mode=mode).memory_bytes for mode in ("train", "infer"))
    assert known.upper_99 is not None
    assert other.upper_99 is not None
    assert other.upper_99 / other.value > 1.2 * known.upper_99 / known.value


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_a_precision_that_was_never_trained_is_unusual_and_wider(precision: str) -> None:
    known, other = ask(graphs()["wide"]), ask(graphs()["wide"], precision=precision)
    assert f"precision {precision}, trained fp32" in other.memory_bytes.unusual_features
    assert not other.memory_bytes.in_domain
    assert other.memory_bytes.range_not_calibrated
    assert width(other.memory_bytes) > 1.2 * width(known.memory_bytes)


def test_a_device_type_without_models_is_what_is_unusual() -> None:
    answer = ask(graphs()["wide"], device="NVIDIA H200")
    assert answer.memory_bytes.unusual_features == (f"device NVIDIA H200, measured {DEVICE}",)
    assert answer.utilization_ratio.unusual_features == answer.memory_bytes.unusual_features


def test_a_size_is_accepted_up_to_twice_the_largest_trained_one_however_wide_the_trained_range() -> None:
    sizes = np.linspace(0.0, math.log(1e10), 40)[:, None].astype(np.float32)
    domain = learn_domain(sizes, [frozenset({str(row)}) for row in range(40)])
    low, high = domain.trained
    assert (low[0], high[0]) == pytest.approx((0.0, math.log(1e10)), abs=1e-5)
    inside, outside = np.array([[high[0] + 0.9 * MARGIN_MAX]]), np.array([[high[0] + 1.1 * MARGIN_MAX]])
    assert not domain.outside(inside[0])
    assert domain.outside(outside[0]) == [0]


def test_what_lies_beyond_grows_from_nothing_at_the_edge_of_what_was_trained() -> None:
    domain = learn_domain(np.array([[0.0], [1.0], [4.0]], dtype=np.float32), [frozenset({name}) for name in "abc"])
    beyond, above = domain.excess(np.array([[-1.0], [0.0], [2.0], [4.0], [4.5], [7.0]], dtype=np.float32))
    assert beyond == pytest.approx([1.0, 0.0, 0.0, 0.0, 0.5, 3.0], abs=1e-4)
    assert above == pytest.approx([0.0, 0.0, 0.0, 0.0, 0.5, 3.0], abs=1e-4)


def test_batches_below_all_that_was_trained_do_not_raise_the_bound_of_the_trained_ones() -> None:
    memory = ask(graphs()["wide"]).memory_bytes
    assert memory.in_domain
    assert memory.upper_99 is not None
    assert memory.upper_99 < 1.1 * memory.upper


def test_a_column_that_never_varied_is_named_with_the_one_value_that_was_trained() -> None:
    answer = ask(graphs()["wide"], mode="infer")
    assert answer.memory_bytes.unusual_features[0] == "training (1) or inference (0) 0, trained 1"


def test_a_range_that_begins_at_nothing_has_no_minus() -> None:
    assert _range("recurrent_work_ratio", -1e-9, 0.68) == "0% to 68%"
    assert _range("log_parameters", -1e-9, 2.0) == "0 to 6"
