"""A network that is called sample by sample before a backward pass, as an agent calls its policy: one batch of them."""

# ruff: noqa: ANN401 (torch is the script's own: it is handed in, and nothing of it has a type here)
from __future__ import annotations

from typing import Any

from .argument_records import close_records
from .step_window import Call, tensor_key, tensors_of


def as_one_batch(torch: Any, calls: list[Call]) -> tuple[list[Call], int]:
    """Returns the calls of a micro-batch, and how many samples they are where each call is one; 0 = each has a batch.

    A sample without a dimension for the batch gets one. Calls that hand something on to each other, as the cells of a
    recurrent network do, stay what they are. Where a network is called with batches as well, its single samples are
    what an agent does between its updates, and are left out: it learns from the batches.
    """
    called = [call for call in calls if call.has_parameters]
    first = called[0]
    if any(call.module is not first.module for call in called) or _are_linked(torch, called):
        return calls, 0
    single = [call for call in called if _is_single(torch, call)]
    if 0 < len(single) < len(called):
        return [call for call in calls if call not in single], 0
    tensors = tensors_of(torch, (first.args, first.kwargs))
    if _has_no_batch(torch, first, tensors):
        first.args, first.kwargs = _mapped(torch, first, lambda each: each.unsqueeze(0))
        return [first], len(called)
    is_one = bool(tensors) and all(each.dim() > 1 and each.shape[0] == 1 for each in tensors)
    return ([first], len(called)) if is_one and len(called) > 1 else (calls, 0)


def _is_single(torch: Any, call: Call) -> bool:
    tensors = tensors_of(torch, (call.args, call.kwargs))
    return bool(tensors) and all(
        each.is_floating_point() if each.dim() == 1 else each.dim() > 1 and each.shape[0] == 1 for each in tensors
    )


def _are_linked(torch: Any, calls: list[Call]) -> bool:
    made = {tensor_key(each) for call in calls for each in call.outputs}
    taken = {tensor_key(each) for call in calls for each in tensors_of(torch, (call.args, call.kwargs))}
    return bool(made & taken)


def _has_no_batch(torch: Any, call: Call, tensors: list[Any]) -> bool:
    """Whether its tensors are plain rows of numbers whose length is the network's: a batch may have any length."""
    if not tensors or any(each.dim() != 1 or not each.is_floating_point() for each in tensors):
        return False
    args, kwargs = close_records(torch, _mapped(torch, call, lambda each: torch.cat([each, each])))
    try:
        with torch.no_grad():
            call.module(*args, **kwargs)
    except Exception:
        return True
    return False


def _mapped(torch: Any, call: Call, change: Any) -> tuple[Any, Any]:
    def changed(leaf: Any) -> Any:
        return change(leaf) if isinstance(leaf, torch.Tensor) else leaf

    args, kwargs = torch.utils._pytree.tree_map(changed, (tuple(call.args), dict(call.kwargs)))
    return args, kwargs
