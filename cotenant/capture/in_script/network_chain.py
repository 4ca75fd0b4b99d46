"""Several calls of networks as one network: what one hands to the next is recognised by its place in memory."""

# ruff: noqa: ANN401 (torch is the script's own: it is handed in, and nothing of it has a type here)
from __future__ import annotations

import copy
import functools
import inspect
from typing import Any

from .argument_records import close_records
from .step_window import Call, outputs_of, tensor_key, tensors_of


def chain_of(
    torch: Any, calls: list[Call], left_out: list[str], size: int, dimension: int, *, is_fixed: bool
) -> tuple[Any, Any, Any]:
    """Returns a network with its example arguments.

    Args:
        torch: The script's.
        calls: Of one micro-batch, in order.
        left_out: Named arguments that the only call does without.
        size: Samples of the micro-batch; a single one is doubled, since an export takes 1 for a constant.
        dimension: Where they lie.
        is_fixed: Whether the export is for this size only: then a single sample stays one.
    """
    calls = _without_loose_links(torch, calls)
    is_wide = all(each.dtype is torch.float32 for call in calls for each in call.module.parameters())

    def enlarge(leaf: Any) -> Any:
        if is_wide and isinstance(leaf, torch.Tensor) and leaf.dtype in (torch.float16, torch.bfloat16):
            leaf = leaf.float()  # autocast has brought both to one width, and is not exported
        is_batch = isinstance(leaf, torch.Tensor) and leaf.dim() > dimension and leaf.shape[dimension] == size
        return torch.cat([leaf, leaf], dimension) if is_batch and size == 1 and not is_fixed else leaf

    if len(calls) == 1:
        calls = [copy.copy(calls[0])]
        calls[0].kwargs = {name: value for name, value in calls[0].kwargs.items() if name not in left_out}
        if not _takes_any_name(calls[0]) and not calls[0].has_objects:
            args, kwargs = torch.utils._pytree.tree_map(enlarge, (tuple(calls[0].args), calls[0].kwargs))
            return _with_plain_output(torch, calls[0].module), args, kwargs
    wiring = _Wiring(torch, calls)
    return _network(torch, calls, wiring, size), tuple(enlarge(each) for each in wiring.inputs), {}


def _takes_any_name(call: Call) -> bool:
    """Whether some of its arguments have names that the network does not state: torch exports none for any batch."""
    stated = inspect.signature(call.module.forward).parameters
    return any(name not in stated or stated[name].kind is inspect.Parameter.VAR_KEYWORD for name in call.kwargs)


def _with_plain_output(torch: Any, network: Any) -> Any:
    """Lets a network return its tensors alone: a class of its library cannot be read where that is not installed."""
    forward = network.forward

    @functools.wraps(forward)
    def tensors_alone(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        answer = forward(*args, **kwargs)
        found = tuple(outputs_of(torch, answer))
        if not found:
            raise ValueError(f"it answers no tensor that can be found: {type(answer).__name__}")
        return found

    network.forward = tensors_alone
    return network


def _without_loose_links(torch: Any, calls: list[Call]) -> list[Call]:
    """Drops layers without parameters whose output no later call takes in, such as one within a loss."""
    kept: list[Call] = []
    taken: set[Any] = set()
    for call in reversed(calls):
        if call.has_parameters or any(tensor_key(each) in taken for each in call.outputs):
            kept.append(call)
            taken |= {tensor_key(each) for each in tensors_of(torch, (call.args, call.kwargs))}
    return kept[::-1]


class _Wiring:
    """Where every argument of every call comes from.

    Attributes:
        inputs: Tensors that no call before has made.
        plans: For every call its arguments' structure and leaves: ("input", index), ("output", call, index, shape) or
            ("constant", value).
    """

    def __init__(self, torch: Any, calls: list[Call]) -> None:
        self.inputs: list[Any] = []
        self.plans: list[tuple[Any, list[tuple[Any, ...]]]] = []
        made: dict[Any, tuple[int, int]] = {}
        known: dict[Any, int] = {}
        for number, call in enumerate(calls):
            leaves, structure = torch.utils._pytree.tree_flatten((tuple(call.args), dict(call.kwargs)))
            self.plans.append((structure, [self._source(torch, leaf, made, known) for leaf in leaves]))
            made.update({tensor_key(each): (number, index) for index, each in enumerate(call.outputs)})

    def _source(
        self, torch: Any, leaf: Any, made: dict[Any, tuple[int, int]], known: dict[Any, int]
    ) -> tuple[Any, ...]:
        if not isinstance(leaf, torch.Tensor):
            return "constant", leaf
        key = tensor_key(leaf)
        if key in made:
            return ("output", *made[key], tuple(leaf.shape))
        place = (*key, tuple(leaf.shape))
        if place not in known:
            known[place] = len(self.inputs)
            self.inputs.append(leaf)
        return "input", known[place]


def _network(torch: Any, calls: list[Call], wiring: _Wiring, size: int) -> Any:
    unflatten = torch.utils._pytree.tree_unflatten

    class Chain(torch.nn.Module):  # type: ignore[misc]  # torch is not imported here
        """The calls of one micro-batch, one after the other."""

        def __init__(self) -> None:
            super().__init__()
            self.networks = torch.nn.ModuleList({id(call.module): call.module for call in calls}.values())

        def forward(self, *tensors: Any) -> Any:
            outputs: list[list[Any]] = []
            for call, (structure, sources) in zip(calls, wiring.plans):  # noqa: B905 (Python 3.8 has no strict)
                leaves = [_fetch(source, tensors, outputs, size) for source in sources]
                args, kwargs = close_records(torch, unflatten(leaves, structure))
                outputs.append(outputs_of(torch, call.module(*args, **kwargs)))
            return tuple(each for made in outputs for each in made)

    return Chain()


def _fetch(source: tuple[Any, ...], tensors: Any, outputs: list[list[Any]], size: int) -> Any:
    kind, *rest = source
    if kind == "constant":
        return rest[0]
    if kind == "input":
        return tensors[rest[0]]
    number, index, shape = rest
    made = outputs[number][index]
    if tuple(made.shape[1:]) == shape[1:]:
        return made
    return made.reshape(made.shape[0], *shape[1:]) if shape and shape[0] == size else made.reshape(shape)
