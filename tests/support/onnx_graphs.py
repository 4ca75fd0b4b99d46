"""Well-known networks as ONNX graphs, written from the layer tables of their papers; weights are dimensions only."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import onnx
from onnx import TensorProto, helper

BATCH = "batch"
OPSET = 20
IR_VERSION = 10


class GraphBuilder:
    """Grows a graph layer by layer; every method returns the name of its output."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self._names = 0

    def name(self, prefix: str = "t") -> str:
        self._names += 1
        return f"{prefix}_{self._names}"

    def input(self, name: str, dims: Sequence[int | str | None], element_type: int = TensorProto.FLOAT) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, element_type, dims))
        return name

    def weight(self, dims: Sequence[int], prefix: str = "weight") -> str:
        name = self.name(prefix)
        self.initializers.append(absent_tensor(name, dims))
        return name

    def integers(self, values: Sequence[int]) -> str:
        name = self.name("integers")
        self.initializers.append(helper.make_tensor(name, TensorProto.INT64, [len(values)], list(values)))
        return name

    def scalar(self, value: float) -> str:
        name = self.name("scalar")
        self.initializers.append(helper.make_tensor(name, TensorProto.FLOAT, [], [value]))
        return name

    def node(self, op_type: str, inputs: Sequence[str], outputs: int = 1, **attributes: Any) -> str:
        names = [self.name(op_type.lower()) for _ in range(outputs)]
        self.nodes.append(helper.make_node(op_type, list(inputs), names, **attributes))
        return names[0]

    def conv(
        self, x: str, channels: tuple[int, int], *, kernel: int = 1, stride: int = 1, group: int = 1, bias: bool = False
    ) -> str:
        incoming, outgoing = channels
        inputs = [x, self.weight([outgoing, incoming // group, kernel, kernel])]
        if bias:
            inputs.append(self.weight([outgoing]))
        shape: dict[str, Any] = {
            "kernel_shape": [kernel] * 2,
            "strides": [stride] * 2,
            "pads": [kernel // 2] * 4,
            "group": group,
        }
        return self.node("Conv", inputs, **shape)

    def batch_norm(self, x: str, channels: int) -> str:
        return self.node("BatchNormalization", [x, *(self.weight([channels]) for _ in range(4))])

    def conv_norm(
        self, x: str, channels: tuple[int, int], *, kernel: int = 1, stride: int = 1, group: int = 1, relu: str = "Relu"
    ) -> str:
        normalized = self.batch_norm(self.conv(x, channels, kernel=kernel, stride=stride, group=group), channels[1])
        return self.node(relu, [normalized]) if relu else normalized

    def max_pool(self, x: str, kernel: int, stride: int, pad: int = 0) -> str:
        return self.node("MaxPool", [x], kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4)

    def dense(self, x: str, incoming: int, outgoing: int) -> str:
        """A fully connected layer on a matrix."""
        return self.node("Gemm", [x, self.weight([outgoing, incoming]), self.weight([outgoing])], transB=1)

    def projection(self, x: str, incoming: int, outgoing: int) -> str:
        """A fully connected layer on the last of several dimensions."""
        return self.node("Add", [self.node("MatMul", [x, self.weight([incoming, outgoing])]), self.weight([outgoing])])

    def model(self, output: str) -> onnx.ModelProto:
        outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)]
        graph = helper.make_graph(self.nodes, "network", self.inputs, outputs, self.initializers)
        opsets = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)


def absent_tensor(name: str, dims: Sequence[int], element_type: int = TensorProto.FLOAT) -> TensorProto:
    """An initializer whose data lies in a file that does not exist."""
    tensor = TensorProto(name=name, dims=dims, data_type=element_type, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="stripped")
    return tensor


def resnet50(batch: int | str = BATCH) -> onnx.ModelProto:
    """He et al., Table 1, 50 layers; the stride of a bottleneck sits on its 3 x 3 convolution."""
    net = GraphBuilder()
    x = net.conv_norm(net.input("image", [batch, 3, 224, 224]), (3, 64), kernel=7, stride=2)
    x = net.max_pool(x, 3, 2, pad=1)
    incoming = 64
    for blocks, width, first_stride in ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2)):
        for block in range(blocks):
            stride = first_stride if block == 0 else 1
            y = net.conv_norm(x, (incoming, width))
            y = net.conv_norm(y, (width, width), kernel=3, stride=stride)
            y = net.conv_norm(y, (width, 4 * width), relu="")
            if block == 0:
                x = net.conv_norm(x, (incoming, 4 * width), stride=stride, relu="")
            x = net.node("Relu", [net.node("Add", [y, x])])
            incoming = 4 * width
    pooled = net.node("Flatten", [net.node("GlobalAveragePool", [x])])
    return net.model(net.dense(pooled, 2048, 1000))


def vgg16(batch: int | str = BATCH) -> onnx.ModelProto:
    """Simonyan and Zisserman, Table 1, configuration D."""
    net = GraphBuilder()
    x, incoming = net.input("image", [batch, 3, 224, 224]), 3
    for width, convolutions in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(convolutions):
            x = net.node("Relu", [net.conv(x, (incoming, width), kernel=3, bias=True)])
            incoming = width
        x = net.max_pool(x, 2, 2)
    x = net.node("Flatten", [x])
    for incoming, outgoing in ((512 * 7 * 7, 4096), (4096, 4096)):
        x = net.node("Relu", [net.dense(x, incoming, outgoing)])
    return net.model(net.dense(x, 4096, 1000))


def mobilenet_v2(batch: int | str = BATCH) -> onnx.ModelProto:
    """Sandler et al., Table 2: (expansion, channels, repeats, stride)."""
    net = GraphBuilder()
    x, incoming = net.conv_norm(net.input("image", [batch, 3, 224, 224]), (3, 32), kernel=3, stride=2, relu="Clip"), 32
    stages = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for expansion, channels, repeats, first_stride in stages:
        for repeat in range(repeats):
            stride, hidden = (first_stride if repeat == 0 else 1), incoming * expansion
            y = x if expansion == 1 else net.conv_norm(x, (incoming, hidden), relu="Clip")
            y = net.conv_norm(y, (hidden, hidden), kernel=3, stride=stride, group=hidden, relu="Clip")
            y = net.conv_norm(y, (hidden, channels), relu="")
            x = net.node("Add", [x, y]) if stride == 1 and incoming == channels else y
            incoming = channels
    x = net.node("GlobalAveragePool", [net.conv_norm(x, (320, 1280), relu="Clip")])
    return net.model(net.dense(net.node("Flatten", [x]), 1280, 1000))


def bert_base(batch: int | str = BATCH, tokens: int | str = 128) -> onnx.ModelProto:
    """Devlin et al.: 12 layers, 12 heads, 768 wide, 3,072 inside; no pooler."""
    net = GraphBuilder()
    ids = net.input("input_ids", [batch, tokens], TensorProto.INT64)
    x = net.node("Gather", [net.weight([30522, 768]), ids])
    x = _layer_norm(net, x, 768)
    for _ in range(12):
        x = _encoder_layer(net, x, width=768, heads=12, inner=3072)
    return net.model(x)


def lstm_language_model(
    batch: int | str = BATCH, steps: int = 35, width: int = 512, words: int = 10_000
) -> onnx.ModelProto:
    """Two LSTM layers between an embedding and a decoder."""
    net = GraphBuilder()
    ids = net.input("tokens", [steps, batch], TensorProto.INT64)
    x = net.node("Gather", [net.weight([words, width]), ids])
    for _ in range(2):
        weights = [net.weight([1, 4 * width, width]), net.weight([1, 4 * width, width]), net.weight([1, 8 * width])]
        x = net.node("LSTM", [x, *weights], hidden_size=width)
        x = net.node("Squeeze", [x, net.integers([1])])
    return net.model(net.projection(x, width, words))


def perceptron(batch: int | str | None = BATCH, widths: Sequence[int] = (784, 512, 10)) -> onnx.ModelProto:
    """Fully connected layers with ReLU between them."""
    net = GraphBuilder()
    x = net.input("x", [batch, widths[0]])
    for incoming, outgoing in pairwise(widths[:-1]):
        x = net.node("Relu", [net.dense(x, incoming, outgoing)])
    return net.model(net.dense(x, widths[-2], widths[-1]))


def _layer_norm(net: GraphBuilder, x: str, width: int) -> str:
    return net.node("LayerNormalization", [x, net.weight([width]), net.weight([width])])


def _encoder_layer(net: GraphBuilder, x: str, *, width: int, heads: int, inner: int) -> str:
    query, key, value = (_split_heads(net, net.projection(x, width, width), width, heads) for _ in range(3))
    scores = net.node("MatMul", [query, net.node("Transpose", [key], perm=[0, 1, 3, 2])])
    weights = net.node("Softmax", [net.node("Mul", [scores, net.scalar((width // heads) ** -0.5)])], axis=-1)
    mixed = net.node("Transpose", [net.node("MatMul", [weights, value])], perm=[0, 2, 1, 3])
    joined = net.node("Reshape", [mixed, net.integers([0, 0, width])])
    x = _layer_norm(net, net.node("Add", [x, net.projection(joined, width, width)]), width)
    hidden = net.node("Gelu", [net.projection(x, width, inner)])
    return _layer_norm(net, net.node("Add", [x, net.projection(hidden, inner, width)]), width)


def _split_heads(net: GraphBuilder, x: str, width: int, heads: int) -> str:
    split = net.node("Reshape", [x, net.integers([0, 0, heads, width // heads])])
    return net.node("Transpose", [split], perm=[0, 2, 1, 3])
