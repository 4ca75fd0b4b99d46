"""What a training step of a PyTorch model allocates, keeps and computes, found without computing anything.

The model runs forward and backward on PyTorch's meta device: shapes are real, storage is not. Every storage that an
operator creates is followed until it is freed, so views and in-place operators count once, as they do on a GPU. Two
batches are traced; the same operators run at both, so every count is a line over the batch, and live memory is a line
at each operator: the peak at any batch is the largest of these lines.

Attention counts as on a GPU with a fused kernel: queries, keys, values, output and one number per row are kept, the
matrix of scores is not. Workspaces of convolution libraries, allocator rounding and the CUDA context are not seen.
"""

from __future__ import annotations

import itertools
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from predictor_service.features.graphs.allocator_replay import replay_events
from predictor_service.features.graphs.operator_families import OperatorFamily
from predictor_service.importers.shape_memory import ShapeMemory

PEAK_BATCHES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Batches at which the peak is tabulated; between them it is at most the straight line, because it is convex."""

_FREED: Final = -1

# Consecutive batches, so that slopes are exact; above 1, because batch normalization cannot train on one sample.
_FIRST_BATCH, _SECOND_BATCH = 2, 3
_REPLAYED_BATCH: Final = 32
"""What does not grow with the batch counts little beside what does."""

_FAMILY_WORDS: Final = (
    (OperatorFamily.MATRIX_MULTIPLY, "mm matmul linear"),
    (OperatorFamily.NORMALIZATION, "norm"),
    (OperatorFamily.POOLING, "pool"),
    (OperatorFamily.EMBEDDING, "embedding"),
    (OperatorFamily.ACTIVATION, "relu elu silu gelu sigmoid tanh mish softmax softplus hardswish dropout hardtanh"),
    (OperatorFamily.MOVEMENT, "cat clone copy roll index gather pad upsample stack im2col flip"),
)


@dataclass(frozen=True, slots=True)
class _Convolution:
    """Sizes of one convolution, which decide what its library takes as workspace.

    Attributes:
        input_bytes: Read.
        output_bytes: Written.
        weight_bytes: Of its weight.
        unfolded_bytes: The input when the convolution is computed as one matrix product.
        signature: Equal for equal shapes of sample and weight.
        grouped: Whether channels are treated in groups.
        pointwise: Whether the kernel has one place.
    """

    input_bytes: int
    output_bytes: int
    weight_bytes: int
    unfolded_bytes: int
    signature: tuple[int, ...]
    grouped: bool
    pointwise: bool


@dataclass
class _Trace:
    """Counts of one step at one batch."""

    saved_bytes: int = 0
    saved_tensors: int = 0
    created_bytes: list[int] = field(default_factory=list)
    backward_bytes: int = 0
    normalized_bytes: int = 0
    score_bytes: int = 0
    multiplying_output_elements: int = 0
    convolutions: list[_Convolution] = field(default_factory=list)
    macs: Counter[str] = field(default_factory=Counter)
    families: Counter[str] = field(default_factory=Counter)
    forward_nodes: int = 0
    live_bytes: list[int] = field(default_factory=list)
    events: tuple[tuple[int, int], ...] = ()
    output_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Call:
    """One operator with what went in and came out."""

    operator: Any
    arguments: tuple[Any, ...]
    named: dict[str, Any]
    output: Any

    def family(self) -> OperatorFamily:
        """By name; convolutions of one channel each are distinguished by their weight."""
        name = str(self.operator).removeprefix("aten.")
        if name == "convolution":
            depthwise = self.arguments[1].shape[1] == 1 and self.arguments[8] > 1
            return OperatorFamily.DEPTHWISE_CONVOLUTION if depthwise else OperatorFamily.CONVOLUTION
        for family, words in _FAMILY_WORDS:
            if any(word in name for word in words.split()):
                return family
        return OperatorFamily.ELEMENTWISE

    def convolution(self) -> _Convolution:
        """Sizes of the operator, which is a convolution."""
        sample, weight = self.arguments[0], self.arguments[1]
        places = self.output.shape[2:].numel() * self.output.shape[0]
        return _Convolution(
            input_bytes=sample.nbytes,
            output_bytes=self.output.nbytes,
            weight_bytes=weight.nbytes,
            unfolded_bytes=weight.shape[1:].numel() * places * self.output.element_size(),
            signature=(*sample.shape[1:], *weight.shape),
            grouped=self.arguments[8] > 1,
            pointwise=weight.shape[2:].numel() == 1,
        )


class _Tracer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operator of the step, forward and backward; storages of `owned` keys are not the step's."""

    def __init__(self, owned: Set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.trace = _Trace()
        self.forward = True
        self._shapes = ShapeMemory()
        self._owned = owned
        self._sizes: dict[int, int] = {}
        self._numbers = itertools.count(1)
        self.events: list[tuple[int, int]] = []
        self._references: dict[int, weakref.ref[Any]] = {}
        self._total_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        """Runs one operator and follows what it creates; the signature is PyTorch's."""
        output = self._shapes.run(func, args, kwargs or {})
        created_bytes = sum(self._follow(item) for item in tree_leaves(output) if isinstance(item, torch.Tensor))
        self.trace.live_bytes.append(self._total_bytes)
        self.events += _workspaces(func._overloadpacket.__name__, args, output)
        if not self.forward:
            self.trace.backward_bytes += created_bytes
        elif created_bytes or (func._schema.is_mutable and not self._is_owned(output)):
            self._count(_Call(func._overloadpacket, args, kwargs or {}, output), created_bytes)
        return output

    def _is_owned(self, output: object) -> bool:
        """Whether an in-place operator changed a buffer of the model, such as the count of batches seen."""
        return isinstance(output, torch.Tensor) and output.untyped_storage()._cdata in self._owned

    def _follow(self, tensor: torch.Tensor) -> int:
        """Bytes of the tensor's storage when it is new, else 0."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._sizes or key in self._owned:
            return 0
        self._sizes[key] = storage.nbytes()
        self._total_bytes += storage.nbytes()
        number = next(self._numbers)
        self.events.append((number, storage.nbytes()))
        self._references[key] = weakref.ref(storage, self._forgetter(key, number))
        return storage.nbytes()

    def _forgetter(self, key: int, number: int) -> Callable[[object], None]:
        def forget(_: object) -> None:
            self.events.append((number, _FREED))
            self._total_bytes -= self._sizes.pop(key, 0)
            self._references.pop(key, None)

        return forget

    def _count(self, call: _Call, created_bytes: int) -> None:
        trace, family = self.trace, call.family()
        trace.forward_nodes += 1
        trace.families[family] += 1
        trace.created_bytes.append(created_bytes)
        if call.operator in flop_registry:
            flops = flop_registry[call.operator](*call.arguments, **call.named, out_val=call.output)
            trace.macs[family] += int(flops) // 2
            trace.multiplying_output_elements += call.output.numel()
        if family in {OperatorFamily.CONVOLUTION, OperatorFamily.DEPTHWISE_CONVOLUTION}:
            trace.convolutions.append(call.convolution())
        if family is OperatorFamily.NORMALIZATION:
            trace.normalized_bytes += created_bytes

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Counts a fused attention."""
        scores = query.shape[:-1].numel() * key.shape[-2]
        self.trace.macs[OperatorFamily.ATTENTION] += scores * (query.shape[-1] + value.shape[-1])
        self.trace.families[OperatorFamily.ATTENTION] += 1
        self.trace.score_bytes = max(self.trace.score_bytes, scores * query.element_size())


def _workspaces(name: str, arguments: Sequence[Any], output: Any) -> Iterator[tuple[int, int]]:  # noqa: ANN401 (of any operator)
    """Room for copies of input and output of a convolution without groups, see `allocator_replay`."""
    if name == "convolution" and arguments[8] == 1:
        yield 0, arguments[0].nbytes + output.nbytes
    elif name == "convolution_backward" and arguments[9] == 1:
        yield from ((0, arguments[0].nbytes + arguments[1].nbytes) for _ in range(2))


class _FusedAttention(torch.autograd.Function):
    """Shapes and kept tensors of a fused kernel."""

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any, mask: Any) -> Any:  # noqa: ANN401 (signature of PyTorch)
        output = query.new_empty((*query.shape[:-1], value.shape[-1]))
        rows = query.new_empty(query.shape[:-1])
        ctx.save_for_backward(query, key, value, mask, output, rows)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:  # noqa: ANN401 (signature of PyTorch)
        tensors = ctx.saved_tensors[:4]
        return tuple(
            torch.empty_like(tensor) if needed and tensor is not None else None
            for tensor, needed in zip(tensors, ctx.needs_input_grad, strict=True)
        )


@contextmanager
def _fused_attention(tracer: _Tracer) -> Iterator[None]:
    functional = torch.nn.functional
    original = functional.scaled_dot_product_attention

    def attend(query: Any, key: Any, value: Any, attn_mask: Any = None, *_: Any, **__: Any) -> Any:  # noqa: ANN401
        tracer.attend(query, key, value)
        return _FusedAttention.apply(query, key, value, attn_mask)  # type: ignore[no-untyped-call]

    functional.scaled_dot_product_attention = attend
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = original


def trace_step(model: torch.nn.Module, sample_shape: Sequence[int]) -> dict[str, float]:
    """Traces a training step of a model on the meta device.

    Args:
        model: Its parameters on `torch.device("meta")`.
        sample_shape: Shape of one input, without the batch.

    Returns:
        Features by name: counts, and bytes of 32-bit numbers. `_per_sample` grows with the batch, `_constant` is added
        once; `step_peak_bytes_at_batch_N` is the largest live memory besides parameters, buffers, input and
        optimizer state.

    Raises:
        RuntimeError: The model cannot run without data, or not the same way at both batches.
    """
    model.train()
    first, second = (_trace(model, (batch, *sample_shape)) for batch in (_FIRST_BATCH, _SECOND_BATCH))
    if len(first.live_bytes) != len(second.live_bytes):
        # Some models compute tables in their first pass and keep them.
        first = _trace(model, (_FIRST_BATCH, *sample_shape))
    if len(first.live_bytes) != len(second.live_bytes):
        raise RuntimeError(
            f"{len(first.live_bytes)} operators run at one batch and {len(second.live_bytes)} at another"
        )
    parameters, buffers = list(model.parameters()), list(model.buffers())
    features: dict[str, float] = {
        "parameters": sum(item.numel() for item in parameters),
        "parameter_tensors": len(parameters),
        "parameter_bytes": sum(item.nbytes for item in parameters),
        "largest_parameter_bytes": max((item.nbytes for item in parameters), default=0),
        "buffer_bytes": sum(item.nbytes for item in buffers),
        "input_bytes_per_sample": 4 * int(np.prod(sample_shape)),
        **{name: read(second) for name, read in _COUNTS.items()},
    }
    for name, read in _LINES.items():
        constant, per_sample = _line(read(first), read(second))
        features[f"{name}_per_sample"] = per_sample
        if name in _WITH_CONSTANT:
            features[f"{name}_constant"] = constant
    features["reserved_bytes_per_sample"] = _reserved_bytes(first, second)
    for family in _COUNTED_FAMILIES:
        features[f"{family.value}_nodes"] = second.families[family]
    for family in _MULTIPLYING:
        features[f"{family.value}_macs_per_sample"] = _line(first.macs[family], second.macs[family])[1]
    return features | _peaks(first, second)


def _largest(sizes: Iterable[int]) -> int:
    return max(sizes, default=0)


def _dense(trace: _Trace) -> Iterator[_Convolution]:
    return (item for item in trace.convolutions if not item.grouped)


_LINES: Final[dict[str, Callable[[_Trace], int]]] = {
    "saved_for_backward_bytes": lambda trace: trace.saved_bytes,
    "allocated_bytes": lambda trace: sum(trace.created_bytes),
    "backward_allocated_bytes": lambda trace: trace.backward_bytes,
    "widest_activation_bytes": lambda trace: _largest(trace.created_bytes),
    "five_widest_bytes": lambda trace: sum(sorted(trace.created_bytes)[-5:]),
    "twenty_widest_bytes": lambda trace: sum(sorted(trace.created_bytes)[-20:]),
    "normalization_output_bytes": lambda trace: trace.normalized_bytes,
    "convolution_input_bytes": lambda trace: sum(item.input_bytes for item in trace.convolutions),
    "convolution_output_bytes": lambda trace: sum(item.output_bytes for item in trace.convolutions),
    "largest_unfolded_bytes": lambda trace: _largest(item.unfolded_bytes for item in trace.convolutions),
    "largest_dense_unfolded_bytes": lambda trace: _largest(item.unfolded_bytes for item in _dense(trace)),
    "largest_dense_input_bytes": lambda trace: _largest(item.input_bytes for item in _dense(trace)),
    "largest_dense_output_bytes": lambda trace: _largest(item.output_bytes for item in _dense(trace)),
    "largest_dense_bytes": lambda trace: _largest(item.input_bytes + item.output_bytes for item in _dense(trace)),
    "largest_pointwise_bytes": lambda trace: _largest(
        item.input_bytes + item.output_bytes for item in _dense(trace) if item.pointwise
    ),
    "largest_score_bytes": lambda trace: trace.score_bytes,
    "multiplying_output_elements": lambda trace: trace.multiplying_output_elements,
    "forward_macs": lambda trace: trace.macs.total(),
    "output_bytes": lambda trace: trace.output_bytes,
}
_COUNTS: Final[dict[str, Callable[[_Trace], int]]] = {
    "nodes": lambda trace: trace.forward_nodes,
    "step_nodes": lambda trace: len(trace.live_bytes),
    "saved_tensors": lambda trace: trace.saved_tensors,
    "distinct_sizes": lambda trace: len(set(trace.created_bytes)),
    "distinct_convolutions": lambda trace: len({item.signature for item in trace.convolutions}),
    "grouped_convolution_nodes": lambda trace: sum(item.grouped for item in trace.convolutions),
    "pointwise_convolution_nodes": lambda trace: sum(item.pointwise for item in trace.convolutions),
    "largest_convolution_weight_bytes": lambda trace: _largest(item.weight_bytes for item in trace.convolutions),
}
_WITH_CONSTANT: Final = frozenset({"saved_for_backward_bytes", "allocated_bytes"})
_MULTIPLYING: Final = (
    OperatorFamily.CONVOLUTION,
    OperatorFamily.DEPTHWISE_CONVOLUTION,
    OperatorFamily.MATRIX_MULTIPLY,
    OperatorFamily.ATTENTION,
)
_COUNTED_FAMILIES: Final = (*_MULTIPLYING, *(family for family, _ in _FAMILY_WORDS[1:]), OperatorFamily.ELEMENTWISE)


def _trace(model: torch.nn.Module, shape: Sequence[int]) -> _Trace:
    owned = {item.untyped_storage()._cdata for item in (*model.parameters(), *model.buffers())}
    saved: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in owned:
            saved[storage._cdata] = storage.nbytes()
        return tensor

    model.zero_grad(set_to_none=True)
    sample = torch.empty(tuple(shape), device="meta")
    tracer = _Tracer(owned)
    with _fused_attention(tracer), tracer:
        with saved_tensors_hooks(keep, lambda tensor: tensor):
            outputs = [item for item in tree_leaves(model(sample)) if isinstance(item, torch.Tensor)]
        tracer.forward = False
        tracer.trace.output_bytes = sum(item.nbytes for item in outputs)
        loss = torch.stack([item.sum() for item in outputs]).sum()
        del outputs
        loss.backward()  # type: ignore[no-untyped-call]
    tracer.trace.events = tuple(tracer.events)  # as the step ended: what is left is freed later
    tracer.trace.saved_bytes, tracer.trace.saved_tensors = sum(saved.values()), len(saved)
    return tracer.trace


def _reserved_bytes(first: _Trace, second: _Trace) -> int:
    """What the allocator reserves for a sample, of a batch to which sizes at both are extended.

    Raises:
        RuntimeError: Tensors come and go in another order at each batch.
    """
    if [number for number, _ in first.events] != [number for number, _ in second.events]:
        raise RuntimeError("tensors are freed in another order at another batch")
    steps = (_REPLAYED_BATCH - _FIRST_BATCH) // (_SECOND_BATCH - _FIRST_BATCH)
    pairs = zip(first.events, second.events, strict=True)
    extended = ((number, size + steps * (other - size)) for (number, size), (_, other) in pairs)
    return replay_events(extended) // _REPLAYED_BATCH


def _line(first: int, second: int) -> tuple[int, int]:
    """Constant and slope."""
    slope = (second - first) // (_SECOND_BATCH - _FIRST_BATCH)
    return first - slope * _FIRST_BATCH, slope


def _peaks(first: _Trace, second: _Trace) -> dict[str, float]:
    start, end = np.array(first.live_bytes, dtype=np.float64), np.array(second.live_bytes, dtype=np.float64)
    slope = (end - start) / (_SECOND_BATCH - _FIRST_BATCH)
    constant = start - slope * _FIRST_BATCH
    return {f"step_peak_bytes_at_batch_{batch}": float((constant + slope * batch).max()) for batch in PEAK_BATCHES}
