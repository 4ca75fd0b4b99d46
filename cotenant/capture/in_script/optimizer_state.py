"""What the optimizers of a step are called in settings, and what they keep."""

# ruff: noqa: ANN401 (torch is the script's own: it is handed in, and nothing of it has a type here)
from __future__ import annotations

from typing import Any

from .step_window import tensors_of

_OPTIMIZERS = (("AdamW", "adamw"), ("Adam", "adam"), ("SGD", "sgd"))
# Of the parameters, by the name in settings.
STATE_COPIES = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}
_ALMOST_A_COPY = 0.05


def trained_by(optimizers: list[Any]) -> list[Any]:
    """Returns the parameters that optimizers move."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    return [each for group in groups for each in group["params"] if each.requires_grad]


def name_optimizer(torch: Any, optimizers: list[Any]) -> tuple[str, str]:
    """The optimizer of the most parameters: its name in settings and its class.

    Where its class tells no name, the whole copies of the parameters do that its state is made of; what it keeps
    beyond them, as half a copy of eight bits, is held outside of the graph.
    """
    if not optimizers:
        return "sgd", ""
    largest = _unwrapped(max(optimizers, key=lambda each: sum(one.numel() for one in trained_by([each]))))
    names = [kind.__name__ for kind in type(largest).__mro__]
    for class_name, name in _OPTIMIZERS:
        if class_name in names:
            has_momentum = name == "sgd" and any(group.get("momentum") for group in largest.param_groups)
            return "momentum" if has_momentum else name, type(largest).__name__
    copies = state_bytes(torch, [largest]) / (bytes_of(trained_by([largest])) or 1)
    named = {count: name for name, count in reversed(STATE_COPIES.items())}
    return named[min(int(copies + _ALMOST_A_COPY), 2)], type(largest).__name__


def _unwrapped(optimizer: Any) -> Any:
    """The optimizer inside of that of accelerate, or of one whose state lies in parts."""
    return getattr(optimizer, "optim" if is_in_parts(optimizer) else "optimizer", optimizer)


def is_in_parts(optimizer: Any) -> bool:
    """Whether each process keeps the state of some parameters only."""
    return type(optimizer).__name__ == "ZeroRedundancyOptimizer"


def outermost(optimizers: list[Any]) -> list[Any]:
    """Those that are inside of no other one."""
    inside = {id(_unwrapped(each)) for each in optimizers if _unwrapped(each) is not each}
    return [each for each in optimizers if id(each) not in inside]


def state_bytes(torch: Any, optimizers: list[Any]) -> int:
    """Of all tensors that optimizers keep; counters of steps are single numbers."""
    states = [dict(state) for each in optimizers for state in _unwrapped(each).state.values()]
    return bytes_of([each for each in tensors_of(torch, states) if each.dim()])


def bytes_of(tensors: list[Any]) -> int:
    """Returns what tensors take."""
    return sum(each.numel() * each.element_size() for each in tensors)
