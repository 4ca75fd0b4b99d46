"""What autograd itself keeps of a network on a GPU, without one: the ruler of what is counted from graphs.

The network runs on the meta device, where kernels have shapes only. Three things are a GPU's and are put in their
place: dropout that keeps a mask of bytes, attention in one kernel, and the casts of automatic mixed precision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

Build = Callable[[], torch.nn.Module]
Sample = Callable[[int], torch.Tensor]
_HALVING: Final = frozenset(
    {functional.linear, functional.conv2d, functional.conv_transpose2d, torch.matmul, torch.Tensor.matmul}
)
_WIDENING: Final = frozenset(
    {torch.softmax, functional.softmax, functional.layer_norm, functional.group_norm, functional.interpolate}
)


class _FusedAttention(torch.autograd.Function):
    """Keeps what a fused kernel keeps."""

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any) -> Any:
        batch, heads, places, _ = query.shape
        output = query.new_empty(batch, places, heads, value.shape[-1]).transpose(1, 2)
        ctx.save_for_backward(query, key, value, output, torch.empty(query.shape[:-1], device=query.device))
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
        kwargs = dict(kwargs or {})
        if func is functional.dropout:
            drops = kwargs.get("training", True) and kwargs.get("p", 0.5) > 0
            return torch.native_dropout(args[0], kwargs.get("p", 0.5), train=True)[0] if drops else args[0]
        if func is functional.scaled_dot_product_attention:
            return _FusedAttention.apply(*(self._cast(each, torch.float16) for each in args[:3]))  # type: ignore[no-untyped-call]
        for functions, width in ((_HALVING, torch.float16), (_WIDENING, torch.float32)):
            if func in functions:
                args, kwargs = tree_map(lambda each, width=width: self._cast(each, width), (args, kwargs))
        return func(*args, **kwargs)

    def _cast(self, value: Any, width: torch.dtype) -> Any:
        is_cast = self._is_mixed and isinstance(value, torch.Tensor) and value.is_floating_point()
        if not is_cast or value.dtype == width:
            return value
        if isinstance(value, torch.nn.Parameter):
            return self.weight_copies.setdefault(id(value), value.to(width))
        return value.to(width)


def kept_bytes(build: Build, sample: Sample, batch: int, *, is_mixed: bool) -> int:
    """Bytes that autograd keeps between the passes: without inputs, weights and copies of weights.

    Args:
        build: Makes the network.
        sample: Makes an input of so many samples.
        batch: Samples.
        is_mixed: Under automatic mixed precision.
    """
    with torch.device("meta"):
        network, given = build().train(), sample(batch)
        owned = {each.untyped_storage()._cdata for each in (*network.parameters(), *network.buffers(), given)}
        kept: dict[int, torch.UntypedStorage] = {}

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage._cdata not in owned:
                kept[storage._cdata] = storage
            return tensor

        with _LikeGpu(is_mixed=is_mixed) as mode, saved_tensors_hooks(keep, lambda tensor: tensor):
            network(given)
    copies = {each.untyped_storage()._cdata for each in mode.weight_copies.values()}
    return sum(storage.nbytes() for key, storage in kept.items() if key not in copies)
