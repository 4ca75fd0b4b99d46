from __future__ import annotations

import hashlib
import os
import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from cotenant.graph_file import GraphFileError, GraphTooLargeError, graph_sha256, read_graph, strip_weights
from tests.support.onnx_graphs import GraphBuilder, resnet50


def network_with_weights(seed: int, rows: int = 64) -> onnx.ModelProto:
    """A matrix, a small bias, a reshape, a resize: every kind of tensor that matters."""
    generator = np.random.default_rng(seed)
    net = GraphBuilder()
    x = net.input("x", ["batch", rows])
    for name, values in (
        ("matrix", generator.normal(size=(rows, 64)).astype(np.float32)),
        ("bias", generator.normal(size=(64,)).astype(np.float32)),
        ("scales", np.array([1, 1, 2, 2], dtype=np.float32)),
    ):
        net.initializers.append(numpy_helper.from_array(values, name))
    y = net.node("Add", [net.node("MatMul", [x, "matrix"]), "bias"])
    y = net.node("Reshape", [y, net.integers([0, 1, 8, 8])])
    return net.model(net.node("Resize", [y, "", "scales"]))


def tensors(stripped: bytes) -> dict[str, TensorProto]:
    return {tensor.name: tensor for tensor in onnx.load_from_string(stripped).graph.initializer}


def test_weights_go_and_dimensions_stay() -> None:
    stripped = tensors(strip_weights(network_with_weights(0).SerializeToString()))

    assert list(stripped["matrix"].dims) == [64, 64]
    assert stripped["matrix"].data_location == TensorProto.EXTERNAL
    assert not stripped["matrix"].raw_data
    assert not stripped["bias"].raw_data


@pytest.mark.parametrize("is_marked", [True, False])
def test_a_client_without_this_package_leaves_large_weights_out_by_hand_and_gets_the_same_hash(
    *, is_marked: bool
) -> None:
    model = network_with_weights(0)
    whole = graph_sha256(strip_weights(model.SerializeToString()))
    for tensor in model.graph.initializer:
        if len(tensor.raw_data) > 4_096:
            tensor.ClearField("raw_data")
            if is_marked:
                tensor.data_location = TensorProto.EXTERNAL
    assert len(model.SerializeToString()) < 4_096
    assert graph_sha256(strip_weights(model.SerializeToString())) == whole


def test_values_that_shapes_depend_on_stay() -> None:
    stripped = tensors(strip_weights(network_with_weights(0).SerializeToString()))

    (target,) = (tensor for name, tensor in stripped.items() if name.startswith("integers"))
    assert numpy_helper.to_array(target).tolist() == [0, 1, 8, 8]
    assert numpy_helper.to_array(stripped["scales"]).tolist() == [1, 1, 2, 2]


def test_one_network_has_one_hash_whatever_its_weights() -> None:
    first, second = (strip_weights(network_with_weights(seed).SerializeToString()) for seed in (1, 2))

    assert graph_sha256(first) == graph_sha256(second) == hashlib.sha256(first).hexdigest()


def test_another_width_has_another_hash() -> None:
    first, second = (strip_weights(network_with_weights(0, rows).SerializeToString()) for rows in (64, 65))

    assert graph_sha256(first) != graph_sha256(second)


@pytest.mark.parametrize("build", [lambda: network_with_weights(0), resnet50], ids=["with_weights", "without"])
def test_stripping_twice_changes_nothing(build: object) -> None:
    assert callable(build)
    once = strip_weights(build().SerializeToString())

    assert strip_weights(once) == once


def test_source_code_of_the_user_does_not_leave_with_the_graph() -> None:
    model = network_with_weights(0)
    model.doc_string = model.graph.doc_string = model.graph.node[0].doc_string = "my_secret.py line 7"
    model.metadata_props.add(key="author", value="my_secret")
    model.graph.node[1].metadata_props.add(key="stack_trace", value="File my_secret.py")
    model.graph.input[0].doc_string = "my_secret"
    model.graph.initializer[0].doc_string = "my_secret"

    stripped = strip_weights(model.SerializeToString())

    assert b"my_secret" not in stripped
    assert stripped == strip_weights(network_with_weights(0).SerializeToString())


def test_weights_inside_constants_and_branches_go_too() -> None:
    large = numpy_helper.from_array(np.ones((64, 64), dtype=np.float32), "large")
    branch = helper.make_graph(
        [helper.make_node("Constant", [], ["c"], value=large)],
        "branch",
        [],
        [helper.make_tensor_value_info("c", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.ones(40, dtype=np.float32), "inner")],
    )
    net = GraphBuilder()
    net.input("flag", [], TensorProto.BOOL)
    model = net.model(net.node("If", ["flag"], then_branch=branch, else_branch=branch))

    stripped = strip_weights(model.SerializeToString())

    inner = onnx.load_from_string(stripped).graph.node[0].attribute[0].g
    assert not inner.node[0].attribute[0].t.raw_data
    assert list(inner.node[0].attribute[0].t.dims) == [64, 64]
    assert not inner.initializer[0].raw_data
    assert len(stripped) < 1_000


def test_small_integers_come_back_from_the_side_file(tmp_path: Path) -> None:
    model = network_with_weights(0)
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)

    assert read_graph(tmp_path / "m.onnx") == strip_weights(network_with_weights(0).SerializeToString())


def test_a_side_file_outside_the_folder_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"\x01" * 64)
    folder = tmp_path / "inside"
    folder.mkdir()
    tensor = TensorProto(name="shape", dims=[4], data_type=TensorProto.INT64, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="../secret")
    net = GraphBuilder()
    net.initializers.append(tensor)
    model = net.model(net.node("Reshape", [net.input("x", ["batch", 4]), "shape"]))
    (folder / "m.onnx").write_bytes(model.SerializeToString())

    assert b"\x01" * 32 not in read_graph(folder / "m.onnx")


@pytest.mark.parametrize(
    ("location", "offset"), [("a\0b", "0"), ("a" * 5_000, "0"), ("m.onnx", "9" * 5_000), ("m.onnx", "9" * 30)]
)
def test_a_side_file_that_cannot_be_is_as_good_as_absent(location: str, offset: str, tmp_path: Path) -> None:
    tensor = TensorProto(name="shape", dims=[4], data_type=TensorProto.INT64, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    tensor.external_data.add(key="offset", value=offset)
    net = GraphBuilder()
    net.initializers.append(tensor)
    model = net.model(net.node("Reshape", [net.input("x", ["batch", 4]), "shape"]))
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())

    assert read_graph(tmp_path / "m.onnx") == strip_weights(model.SerializeToString())


def test_a_large_file_needs_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "large.onnx"
    path.write_bytes(network_with_weights(0, rows=100_000).SerializeToString())
    tracemalloc.start()

    stripped = read_graph(path)

    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert path.stat().st_size > 25_000_000
    assert len(stripped) < 1_000
    assert peak_bytes < 1_000_000


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"hello, I am a text file", "not protobuf"),
        (b"\x08\x0a", "not an ONNX model"),
        (b"\x80" * 20, "not protobuf"),
        (network_with_weights(0).SerializeToString()[:-100], "truncated"),
        # A graph with two tensors, the second of which claims more bytes than there are.
        (b"\x3a\x14\x2a\x09\x08\x01\x10\x07\x42\x01w\x4a\x00\x2a\x07\x08\x01\x4a\x7fabc", "truncated"),
    ],
    ids=["empty", "text", "no_graph", "endless_number", "truncated", "truncated_inside"],
)
def test_a_broken_file_is_named_with_the_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(content)

    with pytest.raises(GraphFileError, match=reason) as caught:
        read_graph(path)

    assert "broken.onnx" in str(caught.value)


def test_more_nodes_or_fields_than_accepted_are_refused() -> None:
    data = resnet50().SerializeToString()

    with pytest.raises(GraphTooLargeError, match="100 nodes"):
        strip_weights(data, node_limit=100)
    with pytest.raises(GraphTooLargeError, match="1000 protobuf fields"):
        strip_weights(data, field_limit=1000)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "pipe.onnx"
    os.mkfifo(path)
    with pytest.raises(GraphFileError, match="pipe or device and no file; write the graph to a file first"):
        read_graph(path)
