"""Writes the networks of one step as a .pt2 file, and says with which settings they train."""

# ruff: noqa: ANN401 (torch is the script's own: it is handed in, and nothing of it has a type here)
from __future__ import annotations

import functools
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from .batch_constants import BatchConstants
from .held_memory import outside_bytes
from .kept_numbers import KeptNumbers
from .later_changes import are_quantized, named_changes
from .network_chain import chain_of
from .open_batches import batch_most, export_once, recurrent_states
from .optimizer_state import STATE_COPIES, bytes_of, is_in_parts, name_optimizer, outermost, state_bytes, trained_by
from .padded_sequences import PaddedSequences
from .planned_steps import planned_steps
from .read_numbers import ReadNumbers, asks_for_values
from .repeated_calls import as_one_batch
from .sharded_units import gathered_ratio
from .spelled_out import look_up_bag, spell_out_transformers
from .step_window import IN_A_LIST, Call, Window, images_in_list, tensors_of

EXPORT_FILE = "export.pt2"
OLDEST_TORCH = "2.6"
"""What an older one exports no later one reads."""
COVERED_RATIO_MIN = 0.95
# Only for the loss: what is exported is the network, as for inference.
LOSS_ARGUMENTS = ("labels", "num_items_in_batch", "return_loss")
NAMES_MAX = 4
# Less than this part of what is trained is left out, so that next to nothing makes no other graph.
SMALL_RATIO = 0.02


def export_step(recorder: Any, window: Window) -> dict[str, Any]:
    """Exports what was found, or says why not.

    Returns:
        The content of the result file.
    """
    torch = recorder.torch
    facts = _facts(recorder, window)
    refusal = "transformed" if not window.calls and recorder.is_asked_in_transform else window.refusal
    if not refusal and _release(torch.__version__) < _release(OLDEST_TORCH):
        refusal = "old_torch"
    if not refusal and are_quantized([call.module for call in window.calls]):
        refusal = "quantized"
    refusal = refusal or ("covered" if facts["covered_ratio"] < COVERED_RATIO_MIN else "")
    if refusal:
        return {**facts, "status": "failed", "reason": refusal}
    for call in window.calls:
        _take_off_precision(call.module)
        _stop_training(torch, call.module, lambda part: part.training)
    for optimizer in window.optimizers:
        optimizer.zero_grad(set_to_none=True)  # memory for the export
    calls, facts["single_samples"] = as_one_batch(torch, window.calls)
    sizes = (1, 0) if facts["single_samples"] else _batch_sizes(torch, calls, recorder.loader_batch_sizes)
    if not sizes:
        return {**facts, "status": "failed", "reason": "no_tensor"}
    facts["micro_batch_size"], dimension = facts["single_samples"] or sizes[0], sizes[1]
    facts["loaded_batch_size"] = 0 if facts["single_samples"] else _other_size(recorder.loader_batch_sizes, sizes[0])
    # Where a loader says that the rows are the samples, labels only look like an index.
    is_loaded = sizes[0] in recorder.loader_batch_sizes
    facts["indexed_samples"] = 0 if is_loaded else _indexed_samples(torch, calls, sizes[0])
    networks = [call.module for call in calls]
    read = ReadNumbers(torch)
    with PaddedSequences(torch) as sequences, BatchConstants(torch) as constants, KeptNumbers(torch, networks) as kept:
        exported, facts["is_batch_fixed"], facts["left_out"], links = _export(torch, calls, *sizes, read)
    facts["batch_most"] = 0 if facts["is_batch_fixed"] else batch_most(exported)
    facts["read_numbers"] = read.places[:NAMES_MAX]
    facts["pads_sequences"], facts["kept_numbers"] = sequences.are_met, kept.names[:NAMES_MAX]
    facts["batch_fixed_at"] = constants.place if facts["is_batch_fixed"] else ""
    facts["unseen_batch"] = sizes[0] if facts["is_batch_fixed"] and not _all_begin_with(torch, calls, sizes[0]) else 0
    facts["networks"] = _names([call.module for call in links if call.has_parameters])
    path = recorder.folder / EXPORT_FILE
    torch.export.save(exported, str(path))
    return {**facts, "status": "captured", "batch_dimension": dimension}


def _release(version: str) -> list[int]:
    return [int(part) for part in str(version).split(".")[:2]]


def _other_size(loader_sizes: list[int], size: int) -> int:
    """What a loader says where it never says the size of the batch; 0 = it does, or there is none."""
    return loader_sizes[-1] if loader_sizes and size not in loader_sizes else 0


def _indexed_samples(torch: Any, calls: list[Call], size: int) -> int:
    """How many samples an index tells the rows of a batch to belong to, as nodes to graphs; 0 = none does."""
    whole = (torch.int64, torch.int32)
    for each in tensors_of(torch, [(call.args, call.kwargs) for call in calls if not call.is_transformed]):
        if tuple(each.shape) == (size,) and each.dtype in whole and size > 1 and int(each[0]) == 0:
            rises, samples = each.diff(), int(each[-1]) + 1
            if 1 < samples < size and bool(((rises == 0) | (rises == 1)).all()):
                return samples
    return 0


def _all_begin_with(torch: Any, calls: list[Call], size: int) -> bool:
    """Whether a graph of one batch shows it: where its inputs begin with other sizes nothing tells which it is."""
    tensors = tensors_of(torch, [(call.args, call.kwargs) for call in calls])
    return all(each.shape[0] == size for each in tensors if each.dim())


def _take_off_precision(module: Any) -> None:
    """Gives a network back the calculation that accelerate has wrapped into half precision."""
    own = vars(module).get("_original_forward")
    if own is not None:
        module.forward = own


def export_network(torch: Any, module: Any, args: Any, kwargs: Any, folder: Path) -> int:
    """Exports one network with example arguments, where no script runs; returns how many samples these hold.

    The network is left in the mode for inference, but for its dropout.

    Raises:
        ValueError: No argument is a tensor.
        Exception: Whatever torch.export has against the network.
    """
    calls = [Call(torch, module, (args, kwargs), group=0, inside_step=0)]
    sizes = _batch_sizes(torch, calls, [])
    if sizes is None:
        raise ValueError("none of the inputs is a tensor")
    _stop_training(torch, module, lambda part: True)
    with PaddedSequences(torch), KeptNumbers(torch, [module]):
        torch.export.save(_export(torch, calls, *sizes)[0], str(folder / EXPORT_FILE))
    return sizes[0]


def _stop_training(torch: Any, module: Any, drops: Any) -> None:
    """Puts a network into the mode for inference, except dropout, whose masks nothing else would tell of.

    Args:
        torch: The script's.
        module: The network.
        drops: Whether a part that can drop does so while it trains.
    """
    kind = torch.nn.Dropout
    dropping = [part for part in module.modules() if isinstance(part, kind) and 0 < part.p < 1 and drops(part)]
    module.eval()
    for part in dropping:
        part.train()


def _facts(recorder: Any, window: Window) -> dict[str, Any]:
    torch = recorder.torch
    modules = {id(call.module): call.module for call in window.calls if call.has_parameters}
    own = {id(each): each for module in modules.values() for each in module.parameters()}
    covered = _computed_with(window.calls)
    trained = {id(each): each for each in trained_by(window.optimizers)}
    trained = trained or {key: each for key, each in covered.items() if each.requires_grad}
    both = sum(each.numel() for key, each in trained.items() if key in covered)
    total = sum(each.numel() for each in trained.values())
    distributed = torch.distributed
    is_parallel = distributed.is_available() and distributed.is_initialized()
    optimizers = outermost(window.optimizers)
    optimizer, class_name = name_optimizer(torch, optimizers)
    answering = [each for each in recorder.answering.values() if id(each) not in modules]
    learned = [each for key, each in trained.items() if key in covered]
    surplus = state_bytes(torch, optimizers) - STATE_COPIES[optimizer] * bytes_of(learned)
    held = outside_bytes(torch, list(modules.values()), answering) + max(surplus, 0)
    held += bytes_of([each for key, each in covered.items() if key not in own])
    return {
        "torch_version": str(torch.__version__),
        "networks": _names(list(modules.values())),
        "parameters": sum(each.numel() for each in covered.values()),
        "covered_ratio": both / total if total else 0.0,
        "frozen_parameters": sum(each.numel() for network in answering for each in network.parameters()),
        "asked_calls": sum(recorder.asked.get(key, 0) for key in modules),
        "frozen_inside": sum(each.numel() for each in covered.values() if not each.requires_grad),
        "held_bytes": held if held > SMALL_RATIO * bytes_of(learned) else 0,
        "world_size": distributed.get_world_size() if is_parallel else 1,
        "optimizer": optimizer,
        "optimizer_class": class_name,
        "optimizers": len(optimizers),
        "precision": _precision(torch, recorder.requested, list(covered.values())),
        "switched_off": recorder.requested.switched_off,
        "is_double": any(each.dtype is torch.float64 for each in covered.values()),
        "cuda_named": recorder.requested.cuda_named,
        "cuda_asked": recorder.requested.cuda_asked,
        "masks_by_code": recorder.requested.masks_by_code,
        "has_gpu": recorder.requested.has_gpu,
        "recomputes": recorder.recomputes,
        "is_sharded": recorder.requested.is_sharded,
        "shards": recorder.requested.shards,
        "state_in_parts": recorder.requested.state_in_parts or any(map(is_in_parts, optimizers)),
        "gathered_ratio": gathered_ratio(recorder.requested.sharded),
        "differentiates_twice": recorder.differentiates_twice,
        "transforms": any(call.is_transformed for call in recorder.calls),
        "planned_steps": planned_steps(torch, [step.optimizer for step in recorder.steps]),
        **named_changes(),
        **window.facts(),
    }


def _computed_with(calls: list[Call]) -> dict[int, Any]:
    """The parameters of each network in its first call: those of later ones may be made of them, as in MAML."""
    first = {id(call.module): call for call in reversed(calls) if call.has_parameters}
    found = [call.parameters or list(call.module.parameters()) for call in first.values()]
    return {id(each): each for parameters in found for each in parameters}


def _names(modules: list[Any]) -> list[str]:
    return [type(module).__name__ for module in {id(each): each for each in modules}.values()]


def _precision(torch: Any, requested: Any, parameters: list[Any]) -> str:
    halves = {torch.float16: "fp16", torch.bfloat16: "bf16"}
    kinds = [each.dtype for each in parameters]
    if requested.stated or requested.half:
        return str(requested.stated or requested.half)
    most = max(set(kinds), key=kinds.count, default=None)
    if most in halves:
        return halves[most]
    if requested.scaler:
        return "fp16"
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "fp32"


def _batch_sizes(torch: Any, calls: list[Call], loader_sizes: list[int]) -> tuple[int, int] | None:
    """The number of samples and the dimension in which they lie, or `IN_A_LIST`: a loader's where a tensor has it."""
    tensors = [each for each in tensors_of(torch, [(call.args, call.kwargs) for call in calls]) if each.dim()]
    states = {id(each): each for call in calls for each in recurrent_states(torch, call.module, tensors)}
    shapes = [tuple(each.shape) for each in tensors if id(each) not in states]
    if not shapes:
        return None
    if images := max(images_in_list(torch, call) for call in calls):
        return images, IN_A_LIST
    # States of a recurrent network, as scripts hand them from one piece of a text to the next, hold it for certain.
    certain = [int(each.shape[1]) for each in states.values()]
    certain += [len(each) for call in calls for each in _bag_offsets(torch, call)]
    for dimension in (0, 1):
        sizes = [shape[dimension] for shape in shapes if len(shape) > dimension]
        for size in (*certain, *reversed(loader_sizes)):
            if size > 1 and size in sizes:
                return size, dimension
    for call in calls:
        size = _size_behind_time(torch, call)
        if size > 1:
            return size, 1
    sizes = [1] if certain and max(certain) == 1 else [shape[0] for shape in shapes]
    return max(sizes, key=sizes.count), 0


def _size_behind_time(torch: Any, call: Call) -> int:
    """The batch of series of several lengths, (time, batch), that one call takes in, as of a translator; 0 = none."""
    given = [each for each in tensors_of(torch, (call.args, call.kwargs)) if each.dim()]
    are_series = all(each.dim() == (3 if each.is_floating_point() else 2) for each in given)
    lengths, sizes = ({int(each.shape[place]) for each in given} for place in (0, 1)) if are_series else (set(), set())
    return sizes.pop() if len(lengths) > 1 and len(sizes) == 1 else 0


def _bag_offsets(torch: Any, call: Call) -> list[Any]:
    """Where in one long row of indices the bags of a batch begin, as tutorials hand texts to a bag of embeddings."""
    if call.is_transformed or not any(isinstance(part, torch.nn.EmbeddingBag) for part in call.module.modules()):
        return []
    whole = (torch.int64, torch.int32)
    rows = [each for each in tensors_of(torch, (call.args, call.kwargs)) if each.dim() == 1 and each.dtype in whole]
    longest = max(map(len, rows), default=0)
    return [
        each
        for each in rows
        if 0 < len(each) < longest and each[0] == 0 and bool((each.diff() >= 0).all()) and each[-1] <= longest
    ]


def _export(
    torch: Any, calls: list[Call], size: int, dimension: int, read: ReadNumbers | None = None
) -> tuple[Any, bool, list[str], list[Call]]:
    """Exports the network; bags of embeddings are spelled out meanwhile: exporters write a loop without any shape."""
    bags = [
        part
        for call in calls
        for part in call.module.modules()
        if isinstance(part, torch.nn.EmbeddingBag) and part.mode != "max"
    ]
    for bag in bags:
        bag.forward = functools.partial(look_up_bag, torch, bag)
    give_back = spell_out_transformers(torch)
    distribution = torch.distributions.Distribution
    validates = distribution._validate_args
    distribution.set_default_validate_args(False)  # it looks into numbers, which an export has not
    own = [(call.module, vars(call.module).get("forward")) for call in calls]
    try:
        return _export_somehow(torch, calls, size, dimension, read or ReadNumbers(torch))
    finally:
        distribution.set_default_validate_args(validates)
        give_back()
        for module, forward in own:
            vars(module).pop("forward", None)
            vars(module).update({"forward": forward} if forward is not None else {})
        for bag in bags:
            vars(bag).pop("forward", None)


def _export_somehow(
    torch: Any, calls: list[Call], size: int, dimension: int, read: ReadNumbers
) -> tuple[Any, bool, list[str], list[Call]]:
    """Tries the network without its loss, by arguments or by calls, then with it, then for this batch only.

    Where even that depends on values of the batch, those that it reads as numbers are what they are in this one.
    """
    first_error: Exception | None = None
    for is_fixed, is_read in ((False, False), (True, False), (True, True)):
        if (dimension == IN_A_LIST and not is_fixed) or (is_read and not asks_for_values(first_error)):
            continue
        for links, left_out in _without_loss(calls):
            try:
                module, args, kwargs = chain_of(torch, links, left_out, size, dimension, is_fixed=is_fixed)
                with read.of_call(module, args, kwargs) if is_read else nullcontext():
                    exported = export_once(torch, (module, args, kwargs), None if is_fixed else (size, dimension))
            except Exception as error:
                first_error = first_error or error
            else:
                return exported, is_fixed, left_out, links
    raise first_error or RuntimeError("nothing was tried")


def _without_loss(calls: list[Call]) -> list[tuple[list[Call], list[str]]]:
    """The calls and the named arguments to leave out, from all to none of a loss.

    A last call of a few parameters, such as a learned temperature, compares samples with each other, so that no graph
    of it holds for another batch.
    """
    if len(calls) == 1:
        present = [name for name in LOSS_ARGUMENTS if name in calls[0].kwargs]
        return [(calls, present), (calls, [])] if present else [(calls, [])]
    counts = [sum(each.numel() for each in call.module.parameters()) for call in calls]
    is_small = counts[-1] < (1 - COVERED_RATIO_MIN) * sum(counts)
    return [(calls, []), (calls[:-1], [])] if is_small else [(calls, [])]
