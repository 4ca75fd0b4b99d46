"""Warnings about a captured script, as sentences that are printed with its prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cotenant.capture.in_script.step_window import IN_A_LIST
from cotenant.capture.reasons import name_networks
from cotenant.counted_nouns import agreed
from cotenant.quantities import format_count

FULL = ("fp32", "tf32")
"""Precisions that are not mixed."""


def notes_of(result: Mapping[str, Any], wait_ms: float) -> list[str]:
    """Returns what is not as it looks, most important first.

    Args:
        result: What the capture wrote down.
        wait_ms: How long a step waited for its input, as it is told.
    """
    found = [
        (
            result["accumulation"] is None,
            "the CPU time was used up before a whole step: the accumulation is not known, the batch is one micro-batch",
        ),
        (
            result["is_batch_fixed"],
            _fixed_batch_text(
                result["batch_fixed_at"], result["read_numbers"], is_list=result["batch_dimension"] == IN_A_LIST
            ),
        ),
        *_notes_of_batch(result),
        (
            bool(result["frozen_parameters"]),
            f"networks that do not learn ({format_count(result['frozen_parameters'])} parameters) run with it: their "
            "weights are counted, what they compute is not, so that a step takes longer than predicted",
        ),
        *_notes_of_other_calls(result),
        (
            bool(result["frozen_inside"]),
            f"{format_count(result['frozen_inside'])} of these parameters do not learn: they are counted without "
            "gradients and without the optimizer's state",
        ),
        (
            result["is_double"],
            "the network computes in double precision, which is predicted as fp32: on most GPUs a step takes many "
            "times longer, and the memory may be twice as much",
        ),
        (
            result["has_smaller_batches"],
            "steps have batches of different sizes: the largest of the first two is told; one that grows later is not "
            "seen: state the largest with --batch-size",
        ),
        *_notes_of_later_steps(result),
        *_notes_of_what_is_kept(result),
        *_notes_of_step(result, wait_ms),
    ]
    return [text for applies, text in found if applies]


def _notes_of_batch(result: Mapping[str, Any]) -> list[tuple[bool, str]]:
    return [
        (
            bool(result["batch_most"]),
            f"from batch {result['batch_most'] + 1} on the network decides otherwise: larger batches are predicted as "
            "if it did not",
        ),
        (
            result["single_samples"] > 1,
            f"the network is called with one sample {result['single_samples']} times a step: predicted as a batch of "
            "as many, although single calls take longer",
        ),
        (
            bool(result["loaded_batch_size"]),
            f"a batch is {result['micro_batch_size']} rows of the network's inputs, where the loader's batches have "
            f"{result['loaded_batch_size']} samples: --batch-size counts rows here",
        ),
        (
            bool(result["indexed_samples"]) and not result["loaded_batch_size"],
            f"a batch is {result['micro_batch_size']} rows of the network's inputs, which an index tells to belong to "
            f"{result['indexed_samples']} samples (nodes to graphs): --batch-size counts rows here",
        ),
    ]


def _notes_of_later_steps(result: Mapping[str, Any]) -> list[tuple[bool, str]]:
    return [
        (
            result["has_shorter_inputs"],
            "inputs of the first two steps have different lengths or sizes: predicted with the larger ones; still "
            "larger ones that come later need more time and memory: let the largest come first where it is captured",
        ),
        (
            bool(result["growing_lengths"]),
            f"the script names {result['growing_lengths']}: where its sequences grow later, steps need more time and "
            "memory than predicted; let it begin with the longest ones where it is captured",
        ),
        (
            bool(result["later_quantizer"]),
            f"the script names {result['later_quantizer']} of torch's quantization: what fake quantizers compute and "
            "keep once it trains with them is not counted",
        ),
    ]


def _notes_of_other_calls(result: Mapping[str, Any]) -> list[tuple[bool, str]]:
    return [
        (
            bool(result["asked_calls"]),
            agreed(
                f"until its second step the network was called {result['asked_calls']} time(s) without gradients (a "
                "rollout, a validation): where every step has such calls, it takes longer than predicted"
            ),
        ),
        (
            result["dropped_passes"] > 0,
            agreed(
                f"each step asks {result['dropped_passes']} time(s) for gradients of the inputs that no weight learns "
                "from (an attack, Langevin sampling): not counted, so that it takes longer than predicted"
            ),
        ),
    ]


def _notes_of_what_is_kept(result: Mapping[str, Any]) -> list[tuple[bool, str]]:
    return [
        (
            result["state_in_parts"] and not result["is_sharded"],
            "the optimizer's state, and at stage 2 gradients, lie in parts on several GPUs (ZeRO): predicted as whole "
            "on each, which is the most that they need",
        ),
        (
            bool(result["kept_numbers"]),
            f"the network reads {', '.join(result['kept_numbers'])} as a number, which it keeps and changes: taken as "
            "it was in the last step seen",
        ),
    ]


def _fixed_batch_text(place: str, read_numbers: Sequence[str], *, is_list: bool) -> str:
    inferred = "predictions for other batch sizes are inferred from it and say so (FIXED_BATCH)"
    again = "for another batch capture the script with that batch"
    if read_numbers:
        return (
            f"the network reads numbers off its inputs ({', '.join(read_numbers)}): they are taken as they were in the "
            f"last step seen, also where another batch would change them: {inferred}; {again}"
        )
    if is_list:
        return f"the network takes its images in a list, of which no export leaves the length open: {inferred}; {again}"
    why = f", because of {place}" if place else ""
    return (
        f"the network could be exported for this batch size only{why}: {inferred}; x.shape[0] in the forward pass, not "
        "len(x), int() or range() of it, keeps the batch open"
    )


def _notes_of_step(result: Mapping[str, Any], wait_ms: float) -> list[tuple[bool, str]]:
    return [
        (
            result["recomputes"],
            "activations are computed again in the backward pass (activation checkpointing)",
        ),
        (
            result["is_sharded"],
            _sharding_text(sharded_ranks(result)),
        ),
        (
            result["differentiates_twice"],
            "gradients are differentiated themselves (create_graph): what this keeps and computes is not counted, so "
            "that a step takes longer and needs more memory than predicted",
        ),
        (
            result["transforms"],
            "what vmap and grad of torch.func compute now and then is not counted: it takes time and memory on top",
        ),
        (
            result["closures"] > 1,
            f"each batch is computed up to {result['closures']} times a step (in a closure, or with weights that are "
            "moved on between, as by SAM): a step takes as much longer than predicted",
        ),
        (
            result["masks_by_code"],
            "FlexAttention is predicted as attention to everything: a step takes less where its mask leaves much out",
        ),
        (
            result["pads_sequences"],
            "packed sequences are predicted as padded to the longest one of the batch",
        ),
        (
            len(result["networks"]) > 1,
            f"{name_networks(result['networks'])} are in one graph; code between them is not",
        ),
        (
            result["optimizers"] > 1,
            f"{result['optimizers']} optimizers; that of the most parameters is named",
        ),
        (
            result["optimizer_class"].lower() not in (result["optimizer"], "sgd"),
            f"{result['optimizer_class']} counts as {result['optimizer']}, by the state that it keeps",
        ),
        (
            bool(result["held_bytes"]),
            f"{format_count(result['held_bytes'])} bytes that no network in the graph shows are counted: networks that "
            "only answer, copies of weights, state of the optimizer beyond that of its name",
        ),
        *_notes_of_gpu(result),
        (
            wait_ms > 0,
            f"input was waited for some {wait_ms:g} ms of a step here, a larger part of a step on a GPU",
        ),
    ]


def _notes_of_gpu(result: Mapping[str, Any]) -> list[tuple[bool, str]]:
    return [
        (
            result["cuda_asked"],
            "the script asks whether there is a GPU: what it decides by that was seen as "
            + ("with one, for it ends where there is none" if result["has_gpu"] else "without one"),
        ),
        (
            result["switched_off"] and result["cuda_asked"] and not result["has_gpu"] and result["precision"] in FULL,
            "mixed precision was switched off (enabled=False), as scripts do where there is no GPU: if it is on with "
            "one, state it with --precision fp16 or bf16",
        ),
    ]


def sharded_ranks(result: Mapping[str, Any]) -> int:
    """Returns in how many parts weights lie; 0 = whole, or one process alone does not tell."""
    ranks = (result["shards"] or result["world_size"]) if result["is_sharded"] else 0
    return int(ranks) if ranks > 1 else 0


def _sharding_text(ranks: int) -> str:
    if not ranks:
        return (
            "weights would lie in parts on several GPUs, and one process does not tell on how many: predicted as whole "
            "on each, which is more than they need; state the number with --sharded-ranks, or capture all processes "
            "(torchrun --nproc-per-node N)"
        )
    return (
        f"weights, gradients and the optimizer's state lie in {ranks} parts, on as many GPUs: predicted so, but for "
        "what is gathered to compute; on another number of GPUs state it with --sharded-ranks"
    )
