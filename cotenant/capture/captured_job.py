"""From a script to a job: run it under watch, convert what it exported, and say in words what was found."""

from __future__ import annotations

import importlib.metadata
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from cotenant import extras, programs
from cotenant.capture.in_script.step_window import IN_A_LIST
from cotenant.capture.reasons import (
    BY_HAND,
    COMPLEX_NUMBERS,
    MEASURED,
    NotCapturedError,
    OverlayRefusedError,
    name_networks,
    why_not,
)
from cotenant.capture.script_run import CPU_S, NOT_ALLOWED_STATUS, ScriptOutcome, ScriptPlan, capture_folder, run_script
from cotenant.graph_file import read_graph
from cotenant.job_settings import INPUT_WAIT_MS_MAX
from cotenant.quantities import format_percent

CONVERSION_TIMEOUT_S: Final = 300.0
PROFILER: Final = "cotenant_profiler"
EXPORT_FILE: Final = "export.pt2"
_MEMORY_LEAST_BYTES: Final = 2 << 30
_WAIT_LEAST_MS: Final = 0.1
_WAIT_LEAST_RATIO: Final = 0.005
_PER_DECADE: Final = 10
_SAME_TORCH: Final = "install the script's torch here too"


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedJob:
    """What one step of a script looks like.

    Attributes:
        graph: ONNX file without weights.
        batch_size: Samples of one optimizer step, over all micro-batches and processes.
        accumulation: Micro-batches in one step; None = not known.
        batches_per_step: Of them, those that loaders handed out one by one; 1 = not more, or not known.
        sharded_ranks: GPUs among which weights, gradients and optimizer state are divided; 0 = whole, or not known.
        gathered_ratio: Share of that which a GPU holds whole at once; 0 = not known.
        optimizer: sgd | momentum | adam | adamw.
        precision: fp32 | tf32 | bf16 | fp16, as the script asked for it.
        input_wait_ms: Time of a step in which data was waited for, rounded, see `_steady_ms`; 0 = hardly any.
        activation_checkpointing: Whether the backward pass computes activations again.
        parameters: Of the networks in the graph.
        covered_ratio: Share of all optimizers' parameters that the graph holds.
        notes: What a reader must know, one sentence each.
    """

    graph: bytes
    batch_size: int
    accumulation: int | None
    optimizer: str
    precision: str
    input_wait_ms: float
    activation_checkpointing: bool
    parameters: int
    covered_ratio: float
    notes: tuple[str, ...]
    batches_per_step: int = 1
    sharded_ranks: int = 0
    gathered_ratio: float = 0.0

    def summary(self) -> str:
        """Returns what was found in one line."""
        accumulation = "unknown" if self.accumulation is None else str(self.accumulation)
        parts = [f"batch {self.batch_size}", self.optimizer, self.precision, f"accumulation {accumulation}"]
        return ", ".join(
            [*parts, f"{_count(self.parameters)} parameters", f"covered {format_percent(self.covered_ratio)}"]
        )

    def settings(self) -> dict[str, Any]:
        """Returns the settings as a job file holds them."""
        found: dict[str, Any] = {
            "batch_size": self.batch_size,
            "optimizer": self.optimizer,
            "precision": self.precision,
        }
        if self.activation_checkpointing:
            found["activation_checkpointing"] = True
        if self.sharded_ranks:
            found["sharded_ranks"] = self.sharded_ranks
            found |= {"gathered_ratio": self.gathered_ratio} if self.gathered_ratio else {}
        return found | ({"input_wait_ms": self.input_wait_ms} if self.input_wait_ms else {})

    def progress_keys(self) -> dict[str, int]:
        """Returns what a job file holds besides, so that batches in the output of the script are told as steps."""
        return {"accumulation": self.batches_per_step} if self.batches_per_step > 1 else {}


def missing_for_capture() -> str:
    """Returns what has to be installed here before anything can be captured; empty = nothing."""
    return extras.missing_programs_line("`cotenant capture`", [PROFILER])


def capture_script(
    command: Sequence[str],
    *,
    directory: Path,
    environment: Mapping[str, str],
    isolated: bool = True,
    memory_bytes: int = 0,
    cpu_s: int = CPU_S,
) -> CapturedJob:
    """Runs a script on the CPU until its second optimizer step and returns what the step is made of.

    Args:
        command: The script with what starts it.
        directory: Where it runs.
        environment: Variables on top of this process's own.
        isolated: In an overlay without network, so that it leaves nothing behind.
        memory_bytes: Most that one of its processes may allocate; 0 = half of this machine's.
        cpu_s: CPU seconds until the first whole step.

    Raises:
        OverlayRefusedError: This machine does not allow the overlay.
        NotCapturedError: Nothing that can be predicted was found; the message says what was found instead.
        ProgramError: The script printed without end or took too long, or a program of ours is missing.
    """
    programs.require_programs("`cotenant capture`", [PROFILER])
    plan = ScriptPlan(
        command=command,
        directory=directory,
        environment=environment,
        isolated=isolated,
        memory_bytes=memory_bytes or usual_memory_bytes(),
        cpu_s=cpu_s,
    )
    outcome = _run(plan)
    if isinstance(outcome, ScriptOutcome) and outcome.may_want_gpu:
        told = _run(replace(plan, has_gpu=True))
        # What it said first is nearer to what its owner knows.
        outcome = outcome if isinstance(told, ScriptOutcome) else told
    if isinstance(outcome, ScriptOutcome):
        raise why_not(plan, outcome)
    return outcome


def _run(plan: ScriptPlan) -> CapturedJob | ScriptOutcome:
    """Returns what was captured, or what became of the script where nothing was."""
    with capture_folder() as folder:
        outcome = run_script(plan, folder)
        if outcome.status == NOT_ALLOWED_STATUS and outcome.not_isolated:
            raise OverlayRefusedError(outcome.not_isolated)
        if outcome.result.get("status") != "captured":
            return outcome
        return _as_job(outcome, convert(folder, outcome.result["torch_version"], outcome.result["held_bytes"]))


def usual_memory_bytes() -> int:
    """Returns half of this machine's memory, at least 2 GiB."""
    return max(_MEMORY_LEAST_BYTES, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)


def convert(folder: Path, torch_version: str, held_bytes: int = 0) -> bytes:
    """Returns the graph of the export in a folder, without weights.

    Args:
        folder: Where the export is.
        torch_version: Of the script's torch.
        held_bytes: What the job holds on its device besides, at least 0; the graph has it as a buffer.

    Raises:
        NotCapturedError: It cannot be converted here.
        ProgramError: The program that converts is not installed, or did not end in time.
    """
    target = folder / "graph.onnx"
    arguments = [str(folder / EXPORT_FILE), "--out", str(target), "--held-bytes", str(held_bytes)]
    done = programs.run_captured("convert", arguments, timeout_s=CONVERSION_TIMEOUT_S)
    if done.returncode:
        told = (done.stderr.strip().splitlines() or ["no message"])[-1].removeprefix("error: ")
        if COMPLEX_NUMBERS in told:
            raise NotCapturedError(COMPLEX_NUMBERS, remedy=MEASURED)
        raise NotCapturedError(
            f"the export of the script's torch {torch_version} could not be converted here: {told[:500]}",
            remedy=BY_HAND if _release(torch_version) == _release(_torch_here()) else f"{_SAME_TORCH}, or {BY_HAND}",
        )
    return read_graph(target)


def _release(version: str) -> str:
    """A version without what it was built for: of `2.13.0+cu130` and `2.13.0+cpu` one converts what the other wrote."""
    return version.partition("+")[0]


def _torch_here() -> str:
    """The version that converts; empty where it cannot be told."""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return ""


def _as_job(outcome: ScriptOutcome, graph: bytes) -> CapturedJob:
    result = outcome.result
    passes = result["accumulation"] or 1
    wait_ms = _steady_ms(1_000 * result["wait_s"], 1_000 * result["step_s"])
    return CapturedJob(
        graph=graph,
        batch_size=result["micro_batch_size"] * passes * result["world_size"],
        accumulation=result["accumulation"],
        optimizer=result["optimizer"],
        precision=result["precision"],
        input_wait_ms=wait_ms,
        activation_checkpointing=result["recomputes"],
        parameters=result["parameters"],
        covered_ratio=result["covered_ratio"],
        notes=tuple(_notes(result, wait_ms)),
        sharded_ranks=_sharded_ranks(result),
        gathered_ratio=result["gathered_ratio"] if _sharded_ranks(result) else 0.0,
        batches_per_step=min(passes, result["loaded_batches"] or passes),
    )


def _steady_ms(wait_ms: float, step_ms: float) -> float:
    """A wait that another capture of the same script tells as well, mostly: the settings are a part of a job's key.

    It is rounded to a tenth of a decade, at most 12 % off, and left out where it is hardly any of a step.
    """
    if wait_ms < max(_WAIT_LEAST_MS, _WAIT_LEAST_RATIO * step_ms):
        return 0.0
    rounded_ms = 10 ** (round(_PER_DECADE * math.log10(wait_ms)) / _PER_DECADE)
    return min(float(f"{rounded_ms:.2g}"), INPUT_WAIT_MS_MAX)


def _notes(result: Mapping[str, Any], wait_ms: float) -> list[str]:
    """What is not as it looks, most important first."""
    found = [
        (
            result["accumulation"] is None,
            "the CPU time was used up before a whole step: the accumulation is not known, the batch is one micro-batch",
        ),
        (
            result["is_batch_fixed"],
            _fixed_batch_text(result["batch_fixed_at"], is_list=result["batch_dimension"] == IN_A_LIST),
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
            bool(result["frozen_parameters"]),
            f"networks that do not learn ({_count(result['frozen_parameters'])} parameters) run with it: their weights "
            "are counted, what they compute is not, so that a step takes longer than predicted",
        ),
        (
            bool(result["asked_calls"]),
            f"until then the network was called {result['asked_calls']} times without gradients (a rollout, a "
            "validation): where this belongs to every step, one takes longer than predicted",
        ),
        (
            bool(result["frozen_inside"]),
            f"{_count(result['frozen_inside'])} of these parameters do not learn: they are counted without gradients "
            "and without the optimizer's state",
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
        *_notes_of_what_is_kept(result),
        *_notes_of_step(result, wait_ms),
    ]
    return [text for applies, text in found if applies]


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


def _fixed_batch_text(place: str, *, is_list: bool) -> str:
    inferred = "predictions for other batch sizes are inferred from it and say so (FIXED_BATCH)"
    if is_list:
        return (
            f"the network takes its images in a list, of which no export leaves the length open: {inferred}; for "
            "another batch capture the script with that batch"
        )
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
            _sharding_text(_sharded_ranks(result)),
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
            "FlexAttention is predicted as attention to everything: what its mask leaves out takes less",
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
            f"{_count(result['held_bytes'])} bytes that no network in the graph shows are counted: networks that only "
            "answer, copies of weights, state of the optimizer beyond that of its name",
        ),
        (
            result["cuda_asked"],
            "the script asks whether there is a GPU: what it decides by that was seen as "
            + ("with one, for it ends where there is none" if result["has_gpu"] else "without one"),
        ),
        (
            wait_ms > 0,
            f"input was waited for some {wait_ms:g} ms of a step here, a larger part of a step on a GPU",
        ),
    ]


def _sharded_ranks(result: Mapping[str, Any]) -> int:
    """In how many parts weights lie; 0 = whole, or one process alone does not tell."""
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


def _count(number: int) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.1f} {letter}"
    return str(number)
