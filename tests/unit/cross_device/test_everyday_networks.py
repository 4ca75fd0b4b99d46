"""What no one would believe of ten everyday networks on nine GPU types, whatever the model learned."""

from __future__ import annotations

import numpy as np

from predictor_service.cross_device.step_model import StepRange, load_step_folds, load_step_model
from predictor_service.cross_device.step_physics import StepKind
from predictor_service.cross_device.step_work import StepWork, work_of_facts
from predictor_service.features.devices import DEVICE_TYPES
from predictor_service.learning.graph_tables import find_figures
from tests.support.cases import for_each

NETWORKS = (
    "resnet18", "resnet50", "vit_b16", "bert_base", "gpt2", "unet_diffusion", "lstm_wikitext", "mlp", "mobilenet_v2",
    "lenet",
)  # fmt: skip
WITH_LARGE_CONSTANTS = ("transformer_translation", "recommender", "gru", "ncf")
"""Most of what these move at small batches does not grow with the batch: embeddings, states of layers."""
GPU_TYPES = (
    "NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3", "NVIDIA L4", "Tesla T4", "Tesla V100-SXM2-16GB",
    "NVIDIA GeForce RTX 3090", "NVIDIA GeForce RTX 4090", "NVIDIA B200", "AMD Instinct MI300X",
)  # fmt: skip
FASTER = (
    ("Tesla K80", "Tesla T4"),
    ("Tesla T4", "Tesla V100-SXM2-16GB"),
    ("Tesla V100-SXM2-16GB", "NVIDIA A100-SXM4-40GB"),
    ("NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3"),
    ("NVIDIA H100 80GB HBM3", "NVIDIA B200"),
    ("NVIDIA GeForce RTX 3090", "NVIDIA GeForce RTX 4090"),
    ("NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 5090"),
    ("NVIDIA L4", "NVIDIA L40S"),
)
"""A card, and one that is faster in every rate."""
BATCHES = (1, 4, 16, 64, 512, 4096)


def everyday_work(network: str) -> StepWork:
    found = work_of_facts([(find_figures(f"zoo_features/{network}"), batch) for batch in BATCHES])
    assert found is not None
    return found


def kind(device: str, precision: str = "fp32", *, is_training: bool = True, slots: float = 2.0) -> StepKind:
    return StepKind(
        device=DEVICE_TYPES[device], precision=precision, is_training=is_training, optimizer_slots=slots
    )  # fmt: skip


def estimate(network: str, of_kind: StepKind) -> StepRange:
    return load_step_model().estimate(everyday_work(network), of_kind, 0.9)


@for_each("network", [*NETWORKS, *WITH_LARGE_CONSTANTS])
def test_a_larger_batch_never_takes_less_in_the_mean_and_at_either_end(network: str) -> None:
    for device in GPU_TYPES:
        for precision in ("fp32", "fp16"):
            for is_training in (True, False):
                found = estimate(network, kind(device, precision, is_training=is_training))
                for each in (found.value, found.lower, found.upper):
                    assert (np.diff(each) >= 0).all(), (device, precision, is_training)


@for_each("network", [*NETWORKS, *WITH_LARGE_CONSTANTS])
def test_mixed_precision_never_takes_longer_than_32_bits_on_matrix_units(network: str) -> None:
    for device in GPU_TYPES:
        for is_training in (True, False):
            half, single = (estimate(network, kind(device, each, is_training=is_training)) for each in ("fp16", "fp32"))
            assert (half.value <= single.value * (1 + 1e-9)).all(), device
            assert (half.upper <= single.upper * (1 + 1e-9)).all(), device


@for_each("network", NETWORKS)
def test_an_optimizer_that_keeps_more_numbers_never_takes_less(network: str) -> None:
    for device in GPU_TYPES:
        sgd, momentum, adam = (estimate(network, kind(device, slots=slots)) for slots in (0.0, 1.0, 2.0))
        assert (sgd.value <= momentum.value).all(), device
        assert (momentum.value <= adam.value).all(), device


@for_each("network", NETWORKS)
def test_a_card_that_is_faster_in_every_rate_never_takes_longer(network: str) -> None:
    for slow, fast in FASTER:
        for precision in ("fp32", "fp16"):
            slower, faster = (estimate(network, kind(device, precision)) for device in (slow, fast))
            assert (faster.value <= slower.value * (1 + 1e-9)).all(), (slow, fast, precision)


def test_the_models_that_judge_trainings_keep_the_same_order() -> None:
    for model in load_step_folds():
        for network in ("transformer_translation", "mobilenet_v2"):
            for device in GPU_TYPES:
                half, single = (
                    model.time_ms(everyday_work(network), [kind(device, each)]) for each in ("fp16", "fp32")
                )
                assert (np.diff(half) >= 0).all()
                assert (half <= single * (1 + 1e-9)).all()
