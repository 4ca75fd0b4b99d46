"""Exports a network for one batch size, for all, or for those that take the same path through it."""

# ruff: noqa: ANN401 (torch is the script's own: it is handed in, and nothing of it has a type here)
from __future__ import annotations

import functools
import inspect
import re
from typing import Any

from .step_window import tensors_of

_BOUND = re.compile(r"(?<=Dim\('batch', )(max)=([0-9]{1,9})\)")
"""What torch advises where a network takes another way from some batch on, as diffusers' do from 64 on."""
_ANY = 1 << 30


def export_once(torch: Any, example: tuple[Any, Any, Any], batch: tuple[int, int] | None) -> Any:
    """Returns the exported program; raises torch's error where it refuses the network.

    Args:
        torch: The script's.
        example: The network, with positional and named arguments.
        batch: Its size and dimension, where it is to be open; None = of this size only.
    """
    try:
        return _export(torch, example, batch, {})
    except Exception as error:
        bounds = {name: int(value) for name, value in _BOUND.findall(str(error))} if batch is not None else {}
        if not bounds:
            raise
        exported = _export(torch, example, batch, bounds)
        if any("copy_" in str(node.target) for node in exported.graph.nodes):
            raise  # the bound is the room in what it writes to, as in a queue: this batch is known to fit
        return exported


def batch_most(exported: Any) -> int:
    """Returns the largest batch that takes the way that was exported; 0 = any does."""
    ranges = getattr(exported, "range_constraints", {})
    tops = [str(found.upper) for symbol, found in ranges.items() if str(symbol).startswith("s")]
    return min((int(top) for top in tops if top.isdigit() and int(top) < _ANY), default=0)


def _export(torch: Any, example: tuple[Any, Any, Any], batch: tuple[int, int] | None, bounds: dict[str, int]) -> Any:
    shapes = _dynamic_shapes(torch, example, batch, bounds) if batch is not None else None
    # Until 2.8 the compiler does it unless told not to, and that is switched off in a capture.
    export = functools.partial(torch.export.export, *example, dynamic_shapes=shapes, strict=False)
    exported = export()
    if not _leaves_gradients_off(exported):
        return exported
    with torch.no_grad():
        return export()


def _dynamic_shapes(torch: Any, example: tuple[Any, Any, Any], batch: tuple[int, int], bounds: dict[str, int]) -> Any:
    module, args, kwargs = example
    size, dimension = batch
    size = max(size, 2)
    symbol = torch.export.Dim("batch", **{"min": 1, **bounds})
    states = {id(each) for each in recurrent_states(torch, module, tensors_of(torch, (args, kwargs)))}

    def spec(leaf: Any) -> Any:
        place = 1 if id(leaf) in states else dimension
        is_tensor = isinstance(leaf, torch.Tensor) and leaf.dim() > place
        return {place: symbol} if is_tensor and leaf.shape[place] == size else None

    bound = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    return torch.utils._pytree.tree_map(spec, dict(bound))


def recurrent_states(torch: Any, network: Any, tensors: list[Any]) -> list[Any]:
    """Returns those of the tensors that have the shape of a state of its cells, whose second dimension is the batch.

    States come with what they are states for: where every tensor has that shape, none of them is one.
    """
    found: list[Any] = []
    for cells in network.modules():
        if isinstance(cells, torch.nn.RNNBase):
            layers = cells.num_layers * (2 if cells.bidirectional else 1)
            widths = (cells.hidden_size, cells.proj_size)
            found += [
                each for each in tensors if each.dim() == 3 and each.shape[0] == layers and each.shape[2] in widths
            ]
    return found if len({id(each) for each in found}) < len(tensors) else []


def _leaves_gradients_off(exported: Any) -> bool:
    """Whether a switch of gradients encloses nothing that is used: torch cannot load or convert such a program.

    Activation checkpointing leaves one behind a function with a gradient of its own, and so does a network that writes
    to its buffers.
    """
    nodes = [node for node in exported.graph.nodes if "set_grad_enabled" in str(node.target)]
    return any(node.meta.get("val", ()) == () for node in nodes)
