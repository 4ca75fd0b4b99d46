"""Graphs on disk survive what happens to disks, and never stand in the way of an answer."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from predictor_service.errors import StoreFullError, UnknownGraphError
from predictor_service.features.graphs.graph_description import GraphDescription
from predictor_service.inference import graph_library
from predictor_service.inference.graph_library import GraphLibrary
from predictor_service.inference.in_process_describer import InProcessDescriber
from tests.support.onnx_graphs import perceptron

GRAPH = perceptron().SerializeToString()


def open_library(folder: Path) -> GraphLibrary:
    return GraphLibrary(InProcessDescriber(), folder)


@contextmanager
def full_disk() -> Iterator[None]:
    """Files of this process end after ten bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_graph_that_a_power_cut_emptied_is_whole_again_once_it_was_sent_again(tmp_path: Path) -> None:
    graph_sha256 = open_library(tmp_path).describe(GRAPH, {}).description.graph_sha256
    (tmp_path / f"{graph_sha256}.onnx").write_bytes(b"")
    with pytest.raises(UnknownGraphError):
        open_library(tmp_path).find(graph_sha256, {})
    open_library(tmp_path).describe(GRAPH, {})
    assert open_library(tmp_path).find(graph_sha256, {}).description.graph_sha256 == graph_sha256


def test_a_full_disk_costs_the_file_not_the_answer(tmp_path: Path) -> None:
    library = open_library(tmp_path)
    with full_disk():
        description = library.describe(GRAPH, {}).description
    assert description.nodes > 0
    assert list(tmp_path.iterdir()) == []
    assert library.find(description.graph_sha256, {}).description == description


def test_a_graph_that_is_kept_nowhere_is_not_said_to_be_kept(tmp_path: Path) -> None:
    library = open_library(tmp_path)
    with full_disk(), pytest.raises(StoreFullError, match="check room"):
        library.keep(GRAPH)
    assert list(tmp_path.iterdir()) == []


def test_a_library_in_memory_takes_whatever_its_describer_reads() -> None:
    description = InProcessDescriber().describe(GRAPH)

    class AlreadyDescribed:
        def describe(self, data: bytes, bindings: Mapping[str, int] | None = None) -> GraphDescription:
            return description

    library = GraphLibrary(AlreadyDescribed(), None)
    assert library.describe(b"the name of a graph", {}).description == description
    assert library.find(description.graph_sha256, {}).description == description


def test_what_a_killed_service_was_writing_is_swept_away(tmp_path: Path) -> None:
    (tmp_path / ".partial-abc").write_bytes(b"half")
    open_library(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_graphs_beyond_the_bound_leave_the_disk_the_least_recently_used_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = [perceptron(widths=(784, width, 10)).SerializeToString() for width in (512, 513, 514)]
    library = open_library(tmp_path)
    first, second = (library.describe(graph, {}).description.graph_sha256 for graph in graphs[:2])
    sizes = [path.stat().st_size for path in tmp_path.glob("*.onnx")]
    os.utime(tmp_path / f"{first}.onnx", ns=(2, 2))
    os.utime(tmp_path / f"{second}.onnx", ns=(1, 1))
    monkeypatch.setattr(graph_library, "DISK_BYTES_MAX", sum(sizes))
    third = library.describe(graphs[2], {}).description.graph_sha256
    assert {path.stem for path in tmp_path.glob("*.onnx")} == {first, third}
