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
from cotenant.capture.captured_notes import notes_of, sharded_ranks
from cotenant.capture.reasons import (
    BY_HAND,
    COMPLEX_NUMBERS,
    MEASURED,
    NotCapturedError,
    OverlayRefusedError,
    why_not,
)
from cotenant.capture.script_run import CPU_S, NOT_ALLOWED_STATUS, ScriptOutcome, ScriptPlan, capture_folder, run_script
from cotenant.graph_file import read_graph
from cotenant.job_settings import INPUT_WAIT_MS_MAX
from cotenant.quantities import format_count, format_percent

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
        planned_steps: Optimizer steps of the whole training, as the script's library or schedule says; 0 = not known.
        processes: That took the step together.
        sharded_ranks: GPUs among which weights, gradients and optimizer state are divided; 0 = whole, or not known.
        gathered_ratio: Share of that which a GPU holds whole at once; 0 = not known.
        optimizer: sgd | momentum | adam | adamw.
        precision: fp32 | tf32 | bf16 | fp16, as the script asked for it.
        input_wait_ms: Time of a step in which data was waited for, rounded, see `_steady_ms`; 0 = hardly any.
        activation_checkpointing: Whether the backward pass computes activations again.
        parameters: Of the networks in the graph.
        covered_ratio: Share of all optimizers' parameters that the graph holds.
        notes: What a reader must know, one sentence each.
        unseen_batch: Of a graph of one batch whose inputs do not all begin with it; 0 = they do, or it is open.
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
    planned_steps: int = 0
    processes: int = 1
    unseen_batch: int = 0

    def summary(self) -> str:
        """Returns what was found in one line."""
        accumulation = "unknown" if self.accumulation is None else str(self.accumulation)
        batch = f"batch {self.batch_size}" + (f" of {self.processes} processes" if self.processes > 1 else "")
        parts = [batch, self.optimizer, self.precision, f"accumulation {accumulation}"]
        parts += [f"{format_count(self.parameters)} parameters", f"covered {format_percent(self.covered_ratio)}"]
        return ", ".join([*parts, f"{self.planned_steps} steps planned"] if self.planned_steps else parts)

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
        if self.unseen_batch:
            # No dimension of a graph of one batch says which it is: images in a list begin with their channels.
            found["dimension_bindings"] = {"batch": self.unseen_batch}
        return found | ({"input_wait_ms": self.input_wait_ms} if self.input_wait_ms else {})

    def progress_keys(self) -> dict[str, int]:
        """Returns what a job file holds besides, so that the output of the script is told as steps of so many."""
        found = {"accumulation": self.batches_per_step} if self.batches_per_step > 1 else {}
        return found | ({"steps": self.planned_steps} if self.planned_steps else {})


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
        notes=tuple(notes_of(result, wait_ms)),
        sharded_ranks=sharded_ranks(result),
        gathered_ratio=result["gathered_ratio"] if sharded_ranks(result) else 0.0,
        batches_per_step=min(passes, result["loaded_batches"] or passes),
        planned_steps=result["planned_steps"],
        processes=result["world_size"],
        unseen_batch=result["unseen_batch"],
    )


def _steady_ms(wait_ms: float, step_ms: float) -> float:
    """A wait that another capture of the same script tells as well, mostly: the settings are a part of a job's key.

    It is rounded to a tenth of a decade, at most 12 % off, and left out where it is hardly any of a step.
    """
    if wait_ms < max(_WAIT_LEAST_MS, _WAIT_LEAST_RATIO * step_ms):
        return 0.0
    rounded_ms = 10 ** (round(_PER_DECADE * math.log10(wait_ms)) / _PER_DECADE)
    return min(float(f"{rounded_ms:.2g}"), INPUT_WAIT_MS_MAX)
