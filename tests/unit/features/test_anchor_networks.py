"""The anchors' graphs are those of the zoo, and of the stand-in's dataset."""

from __future__ import annotations

from pathlib import Path

import pytest
from cotenant_profiler import zoo

from cotenant.profile_schema import SoloRow, read_rows
from predictor_service.features.anchor_networks import (
    GPU_ANCHORS,
    STANDIN_ANCHORS,
    AnchorNetwork,
    find_anchor_graph,
    read_anchor_graph,
)
from tests.support.cases import for_each

DATASET = Path(__file__).resolve().parents[3] / "datasets" / "cpu_standin" / "solo.csv"


def test_every_anchor_of_the_stand_in_was_measured_several_times_for_its_dataset() -> None:
    rows = [row for row in read_rows(DATASET, SoloRow) if row.status == "ok" and not row.input_wait_ratio]
    for reference in STANDIN_ANCHORS:
        job = (reference.graph_sha256, reference.batch_size, reference.optimizer)
        assert sum((row.graph_sha256, row.batch, row.optimizer) == job for row in rows) >= 3


@for_each("reference", [*STANDIN_ANCHORS, *GPU_ANCHORS])
def test_every_anchor_is_in_the_zoo_with_its_optimizer(reference: AnchorNetwork) -> None:
    network = zoo.find(reference.network)
    assert network.optimizer == reference.optimizer


def test_a_graph_is_found_by_its_hash() -> None:
    reference = STANDIN_ANCHORS[0]
    assert find_anchor_graph(reference.graph_sha256) == read_anchor_graph(reference.network)
    assert find_anchor_graph("0" * 64) is None
    with pytest.raises(KeyError):
        read_anchor_graph("../../../etc/passwd")
