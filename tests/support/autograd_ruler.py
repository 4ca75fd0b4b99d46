"""What autograd itself keeps of a network on a GPU, without one: the ruler of what is counted from graphs.

The network runs on the meta device, where kernels have shapes only. What is a GPU's is put in its place: dropout that
keeps a mask of bytes, attention in one kernel, recurrent layers in one kernel, and the casts of automatic mixed
precision, by the lists of ATen/autocast_mode.h.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

Build = Callable[[], torch.nn.Module]
Sample = Callable[[int], torch.Tensor | tuple[torch.Tensor, ...]]
_HALVED = """
    conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d prelu addmm addmv addr matmul rmatmul einsum
    mm mv linear addbmm baddbmm bmm chain_matmul
"""
_WIDENED = """
    acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow rpow softplus layer_norm rms_norm
    group_norm norm cosine_similarity dist cdist renorm logsumexp upsample_nearest1d upsample_nearest2d
    upsample_nearest3d upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d
"""
_ANSWERED_WIDE = "prod softmax log_softmax cumprod cumsum sum linalg_vector_norm"
_HALVING: Final = frozenset(_HALVED.split())
_WIDENING: Final = frozenset(_WIDENED.split())
_WIDE_ANSWERS: Final = frozenset(_ANSWERED_WIDE.split())
"""What they are given stays as it is."""
_CHECKS: Final = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
_RESERVED: Final = {"lstm": 6, "gru": 5, "rnn_tanh": 1, "rnn_relu": 1}
"""Numbers per step, sample and hidden unit that a recurrent kernel keeps; cuDNN's own figure is not known here."""


class _FusedAttention(torch.autograd.Function):
    """Keeps what a fused kernel keeps."""

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any) -> Any:
        batch, heads, places, _ = query.shape
        output = query.new_empty(batch, places, heads, value.shape[-1]).transpose(1, 2)
        ctx.save_for_backward(query, key, value, output, torch.empty(query.shape[:-1], device=query.device))
        return output


class _FusedRecurrence(torch.autograd.Function):
    """Keeps what a recurrent kernel keeps of one layer, batch first."""

    @staticmethod
    def forward(ctx: Any, given: Any, weight: Any, width: int, reserved: int) -> Any:
        output = given.new_empty(*given.shape[:2], width)
        ctx.save_for_backward(given, output, given.new_empty(*given.shape[:2], width * reserved), weight)
        return output


class _LikeGpu(TorchFunctionMode):
    """Calls what a GPU would run."""

    def __init__(self, *, is_mixed: bool) -> None:
        super().__init__()
        self._is_mixed = is_mixed
        self.weight_copies: dict[int, torch.Tensor] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named, name = dict(kwargs or {}), func.__name__.strip("_")
        if name == "dropout" and len(args) == 3:
            return torch.native_dropout(args[0], args[1], train=True)[0] if args[2] and args[1] > 0 else args[0]
        if name == "scaled_dot_product_attention":
            return _FusedAttention.apply(*(self._cast(each, torch.float16) for each in args[:3]))  # type: ignore[no-untyped-call]
        if name in _RESERVED:
            return self._recurrence(name, *args)
        for functions, width in ((_HALVING, torch.float16), (_WIDENING, torch.float32)):
            if name in functions:
                args, named = tree_map(lambda each, width=width: self._cast(each, width), (args, named))
        if name in _WIDE_ANSWERS and self._is_mixed and named.get("dtype") is None and args[0].is_floating_point():
            named["dtype"] = torch.float32
        return func(*args, **named)

    def _recurrence(self, name: str, given: Any, state: Any, weights: Any, *settings: Any) -> Any:
        *_, layers, _, _, is_bidirectional, is_batch_first = settings
        assert layers == 1
        assert is_batch_first
        state = state[0] if isinstance(state, tuple | list) else state
        width = state.shape[-1] * (2 if is_bidirectional else 1)
        given, weight = self._cast(given, torch.float16), self._cast(weights[0], torch.float16)
        output = _FusedRecurrence.apply(given, weight, width, _RESERVED[name])  # type: ignore[no-untyped-call]
        return (output, state, state) if name == "lstm" else (output, state)

    def _cast(self, value: Any, width: torch.dtype) -> Any:
        is_cast = self._is_mixed and isinstance(value, torch.Tensor) and value.is_floating_point()
        if not is_cast or value.dtype == width:
            return value
        if isinstance(value, torch.nn.Parameter) and value.requires_grad:  # others are cast at each use
            return self.weight_copies.setdefault(id(value), value.to(width))
        return value.to(width)


def kept_bytes(build: Build, sample: Sample, batch: int, *, is_mixed: bool) -> int:
    """Bytes that autograd keeps between the passes: without inputs, weights and copies of weights.

    Args:
        build: Makes the network.
        sample: Makes its inputs of so many samples.
        batch: Samples.
        is_mixed: Under automatic mixed precision.
    """
    return sum(size for size, _ in kept_storages(build, sample, batch, is_mixed=is_mixed))


def kept_storages(build: Build, sample: Sample, batch: int, *, is_mixed: bool) -> list[tuple[int, str]]:
    """The same for each storage: bytes, and type and shape of what was kept first of it."""
    with torch.device("meta"):
        network, given = build().train(), sample(batch)
        inputs = given if isinstance(given, tuple) else (given,)
        owned = {each.untyped_storage()._cdata for each in (*network.parameters(), *network.buffers(), *inputs)}
        kept: dict[int, tuple[torch.UntypedStorage, str]] = {}

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage._cdata not in owned:
                kept.setdefault(storage._cdata, (storage, f"{tensor.dtype} {tuple(tensor.shape)}"))
            return tensor

        with _checks_left_out(), _LikeGpu(is_mixed=is_mixed) as mode, saved_tensors_hooks(keep, lambda tensor: tensor):
            answer = network(*inputs)
    del answer
    copies = {each.untyped_storage()._cdata for each in mode.weight_copies.values()}
    return [(storage.nbytes(), said) for key, (storage, said) in kept.items() if key not in copies]


@contextmanager
def _checks_left_out() -> Iterator[None]:
    """Functions of PyTorch that are written in Python are entered instead of handed over: what they call is seen."""
    places = [
        (module, name)
        for module in (torch.nn.functional, torch.functional, torch._tensor)
        for name in _CHECKS
        if hasattr(module, name)
    ]
    before = [getattr(module, name) for module, name in places]
    for module, name in places:
        setattr(module, name, lambda *_: False)
    try:
        yield
    finally:
        for (module, name), check in zip(places, before, strict=True):
            setattr(module, name, check)
