"""Memory of steps of several passes, beside what autograd leaves between the passes."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import pytest
import torch
from cotenant_profiler.convert_command import convert

from cotenant.capture.in_script.step_export import EXPORT_FILE, export_network
from cotenant.job_settings import JobSettings
from predictor_service.features.analytical_memory import MemoryBreakdown
from predictor_service.features.devices import STANDIN_DEVICE
from predictor_service.inference.graph_library import GraphLibrary
from predictor_service.inference.in_process_describer import InProcessDescriber
from predictor_service.inference.predictor import Predictor
from predictor_service.inference.records import Estimate, JobQuestion
from predictor_service.registry.version_holder import VersionHolder
from predictor_service.registry.version_store import VersionStore
from tests.support.everyday_networks import NETWORKS
from tests.support.measured_dataset import graphs
from tests.support.predictor_service import open_predictor

NETWORK = "attention by hand"
BATCH, PASSES = 4096, 4
A100 = "NVIDIA A100-SXM4-40GB"
COUNTED = MemoryBreakdown(
    weights_bytes=10.0,
    gradients_bytes=10.0,
    optimizer_state_bytes=20.0,
    activations_bytes=40.0,
    workspace_bytes=2.0,
    context_bytes=5.0,
    update_bytes=10.0,
)


@functools.cache
def exported() -> bytes:
    """The network's graph, as `cotenant.predict` exports it."""
    build, sample = NETWORKS[NETWORK]
    with tempfile.TemporaryDirectory() as folder:
        export_network(torch, build(), (sample(2),), {}, Path(folder))
        return convert(Path(folder) / EXPORT_FILE)


def left_between_passes_bytes() -> int:
    """What autograd itself leaves when a pass has ended and its answer is gone."""
    build, sample = NETWORKS[NETWORK]
    network = build()
    network(sample(2)).sum().backward()
    return sum(each.grad.untyped_storage().nbytes() for each in network.parameters() if each.grad is not None)


def one_and_several(predictor: Predictor, graph: bytes, device: str) -> tuple[Estimate, Estimate]:
    """Memory of one pass and of several as large."""

    def ask(batch: int, sizes: tuple[int, ...]) -> JobQuestion:
        settings = JobSettings(global_batch_size=batch, optimizer="adam")
        return JobQuestion(settings=settings, device=device, onnx_graph=graph, micro_batch_sizes=sizes)

    one = predictor.predict_job(ask(BATCH, ())).memory_bytes
    return one, predictor.predict_job(ask(PASSES * BATCH, (BATCH,))).micro_batches[0].memory_bytes


@pytest.mark.parametrize("device", [A100, STANDIN_DEVICE])
def test_several_passes_hold_what_autograd_leaves_between_them_and_no_context_twice(
    tmp_path: Path, device: str
) -> None:
    versions = VersionHolder(VersionStore(tmp_path / "models"))
    versions.reload()
    one, several = one_and_several(Predictor(GraphLibrary(InProcessDescriber(), None), versions), exported(), device)
    more_bytes = pytest.approx(left_between_passes_bytes(), abs=1.0)

    assert several.value - one.value == more_bytes
    assert one.upper_99 is not None
    assert several.upper_99 is not None
    if device == STANDIN_DEVICE:  # its bound counts gradients as the step of one pass has them
        assert several.upper - one.upper == more_bytes
        assert several.upper_99 - one.upper_99 == more_bytes
    else:
        assert (several.upper, several.upper_99) == (one.upper, one.upper_99)


def test_the_bound_of_a_trained_model_rises_by_no_more_than_the_gradients() -> None:
    predictor, graph = open_predictor(), graphs()["wide"]
    one, several = one_and_several(predictor, graph, STANDIN_DEVICE)
    gradients_bytes = (784 * 1024 + 1024 * 10) * 4

    assert one.upper_99 is not None
    assert several.upper_99 is not None
    assert 0 < several.value - one.value <= gradients_bytes
    assert several.value - one.value <= several.upper_99 - one.upper_99 <= gradients_bytes + 1.0
    assert several.value <= several.upper <= several.upper_99


@pytest.mark.parametrize(
    ("computing_ratio", "more_bytes"), [(1.0, 10.0), (0.5, 10.0), (0.4, 6.8), (0.25, 0.5), (0.2, 0.0), (9.0, 10.0)]
)
def test_gradients_add_nothing_where_the_update_is_the_peak(computing_ratio: float, more_bytes: float) -> None:
    assert COUNTED.gradients_left_bytes(computing_ratio) == pytest.approx(more_bytes)
