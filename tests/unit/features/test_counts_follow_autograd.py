"""What is counted from a graph is what autograd keeps of the network, exported as `cotenant.predict` exports it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from cotenant_profiler.convert_command import convert

from cotenant.capture.in_script.step_export import EXPORT_FILE, export_network
from predictor_service.features.graph_description import describe_graph
from tests.support.autograd_ruler import kept_bytes
from tests.support.everyday_networks import NETWORKS

pytestmark = pytest.mark.slow
_BATCHES = (2, 5)


def slope(values: list[int]) -> float:
    """Bytes per sample; what is kept once for all samples, such as statistics of a normalization, counts nothing."""
    return (values[1] - values[0]) / (_BATCHES[1] - _BATCHES[0])


@pytest.mark.parametrize("name", NETWORKS)
def test_what_is_counted_is_what_autograd_keeps(name: str, tmp_path: Path) -> None:
    build, sample = NETWORKS[name]
    torch.set_num_threads(1)
    export_network(torch, build(), (sample(2),), {}, tmp_path)
    description = describe_graph(convert(tmp_path / EXPORT_FILE))
    counted = [description.at_batch(batch) for batch in _BATCHES]
    for is_mixed, found in (
        (False, [each.activation_bytes_saved for each in counted]),
        (True, [each.activation_bytes_saved_mixed for each in counted]),
    ):
        kept = [kept_bytes(build, sample, batch, is_mixed=is_mixed) for batch in _BATCHES]
        assert slope(found) == slope(kept), f"mixed precision: {is_mixed}"
