"""What is counted from a graph is what autograd keeps of the network, exported as `cotenant.predict` exports it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from cotenant_profiler.convert_command import convert

from cotenant.capture.in_script.step_export import EXPORT_FILE, export_network
from predictor_service.features.graph_description import describe_graph
from tests.support import everyday_networks, frozen_networks, specialised_networks
from tests.support.autograd_ruler import kept_bytes

pytestmark = pytest.mark.slow
SPECIALISED = specialised_networks.NETWORKS
FROZEN = frozen_networks.NETWORKS
NETWORKS = {**everyday_networks.NETWORKS, **FROZEN, **SPECIALISED}
NOT_COUNTED = {"recommender": 3 * (5 + 2) * 8}
"""Bytes per sample: of each bag of five its place in the table of places, and one for each lookup."""
_BATCHES = (2, 5)


def slope(values: list[int]) -> float:
    """Bytes per sample; what is kept once for all samples, such as statistics of a normalization, counts nothing."""
    return (values[1] - values[0]) / (_BATCHES[1] - _BATCHES[0])


@pytest.mark.filterwarnings("ignore:The tensor attributes .* were assigned during export:UserWarning")
@pytest.mark.parametrize(
    "name",
    [*everyday_networks.NETWORKS, *FROZEN, *(pytest.param(name, marks=pytest.mark.endurance) for name in SPECIALISED)],
)
def test_what_is_counted_is_what_autograd_keeps(name: str, tmp_path: Path) -> None:
    build, sample = NETWORKS[name]
    torch.set_num_threads(1)
    inputs = sample(2)
    export_network(torch, build(), inputs if isinstance(inputs, tuple) else (inputs,), {}, tmp_path)
    description = describe_graph(convert(tmp_path / EXPORT_FILE))
    counted = [description.at_batch(batch) for batch in _BATCHES]
    for is_mixed, found in (
        (False, [each.activation_bytes_saved for each in counted]),
        (True, [each.activation_bytes_saved_mixed for each in counted]),
    ):
        kept = [kept_bytes(build, sample, batch, is_mixed=is_mixed) for batch in _BATCHES]
        assert slope(found) == slope(kept) - NOT_COUNTED.get(name, 0), f"mixed precision: {is_mixed}"


@pytest.mark.filterwarnings("ignore:The tensor attributes .* were assigned during export:UserWarning")
def test_gradients_are_counted_of_what_learns_and_the_rest_is_held_once(tmp_path: Path) -> None:
    build, sample = FROZEN["last layers"]
    network = build()
    export_network(torch, network, (sample(2),), {}, tmp_path)
    found = describe_graph(convert(tmp_path / EXPORT_FILE)).at_batch(2)
    bytes_of = dict.fromkeys((True, False), 0)
    for each in network.parameters():
        bytes_of[each.requires_grad] += each.nbytes
    statistics_bytes = sum(each.nbytes for each in network.buffers() if each.is_floating_point())
    assert found.parameter_bytes == bytes_of[True]
    assert found.buffer_bytes == bytes_of[False] + statistics_bytes


def test_a_network_of_which_nothing_learns_is_taken_for_one_that_is_to_be_trained(tmp_path: Path) -> None:
    network = torch.nn.Linear(4, 3).requires_grad_(False)
    export_network(torch, network, (torch.zeros(2, 4),), {}, tmp_path)
    assert describe_graph(convert(tmp_path / EXPORT_FILE)).at_batch(2).parameter_bytes == (4 * 3 + 3) * 4
