"""What is counted from a graph is what autograd keeps of the network, exported as `cotenant.predict` exports it."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import pytest
import torch
from cotenant_profiler.convert_command import convert

from cotenant.capture.in_script.step_export import EXPORT_FILE, export_network
from predictor_service.features.graphs.graph_description import GraphDescription, describe_graph
from tests.support import everyday_networks, partly_trained_networks, specialised_networks
from tests.support.autograd_ruler import kept_bytes

pytestmark = pytest.mark.slow
SPECIALISED = specialised_networks.NETWORKS
PARTLY_TRAINED = partly_trained_networks.NETWORKS
NETWORKS = {**everyday_networks.NETWORKS, **SPECIALISED, **PARTLY_TRAINED}
EVERY_TIME = ("residual", "causal attention", "mobile", "adapted decoder", "frozen middle")
"""A convolution with a sum, attention, narrow convolutions, and both ways of freezing; an export takes seconds."""
NOT_COUNTED = {"recommender": 3 * (5 + 2) * 8}
"""Bytes per sample: of each bag of five its place in the table of places, and one for each lookup."""
_BATCHES = (2, 5)


def slope(values: list[int]) -> float:
    """Bytes per sample; what is kept once for all samples, such as statistics of a normalization, counts nothing."""
    return (values[1] - values[0]) / (_BATCHES[1] - _BATCHES[0])


@functools.cache
def described(name: str) -> GraphDescription:
    """What is counted of a network that was exported."""
    build, sample = NETWORKS[name]
    torch.set_num_threads(1)
    inputs = sample(2)
    with tempfile.TemporaryDirectory() as folder:
        export_network(torch, build(), inputs if isinstance(inputs, tuple) else (inputs,), {}, Path(folder))
        return describe_graph(convert(Path(folder) / EXPORT_FILE))


@pytest.mark.filterwarnings("ignore:The tensor attributes .* were assigned during export:UserWarning")
@pytest.mark.parametrize(
    "name",
    [
        name if name in EVERY_TIME else pytest.param(name, marks=pytest.mark.endurance)
        for name in (*everyday_networks.NETWORKS, *PARTLY_TRAINED, *SPECIALISED)
    ],
)
def test_what_is_counted_is_what_autograd_keeps(name: str) -> None:
    build, sample = NETWORKS[name]
    counted = [described(name).at_batch(batch) for batch in _BATCHES]
    for is_mixed, found in (
        (False, [each.activation_bytes_saved for each in counted]),
        (True, [each.activation_bytes_saved_mixed for each in counted]),
    ):
        kept = [kept_bytes(build, sample, batch, is_mixed=is_mixed) for batch in _BATCHES]
        assert slope(found) == slope(kept) - NOT_COUNTED.get(name, 0), f"mixed precision: {is_mixed}"


@pytest.mark.parametrize(
    "name", [name if name in EVERY_TIME else pytest.param(name, marks=pytest.mark.endurance) for name in PARTLY_TRAINED]
)
def test_weights_that_are_frozen_are_held_and_have_no_gradient(name: str) -> None:
    network, found = PARTLY_TRAINED[name][0](), described(name).at_batch(2)
    frozen = [each for each in network.parameters() if not each.requires_grad]
    statistics = [each for each in network.buffers() if each.dim()]

    assert found.parameters == sum(each.numel() for each in network.parameters() if each.requires_grad)
    assert found.buffers == sum(each.numel() for each in (*frozen, *statistics))


def test_a_network_of_which_nothing_learns_is_taken_for_one_that_is_to_be_trained(tmp_path: Path) -> None:
    network = torch.nn.Linear(4, 3).requires_grad_(False)
    export_network(torch, network, (torch.zeros(2, 4),), {}, tmp_path)
    assert describe_graph(convert(tmp_path / EXPORT_FILE)).at_batch(2).parameter_bytes == (4 * 3 + 3) * 4
