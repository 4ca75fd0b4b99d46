"""predict: one prediction without a server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from google.protobuf.json_format import MessageToJson

from cotenant.graph_file import GraphFileError, read_graph
from cotenant.memory_verdict import MemoryVerdict, judge_memory
from cotenant.v1 import prediction_pb2
from predictor_service.errors import GraphError, MalformedGraphError
from predictor_service.grpc_api.translate_answers import job_response
from predictor_service.inference.graph_library import GraphLibrary
from predictor_service.inference.in_process_describer import InProcessDescriber
from predictor_service.inference.predictor import Predictor
from predictor_service.inference.records import Estimate, JobAnswer
from predictor_service.registry.version_holder import VersionHolder
from predictor_service.registry.version_store import VersionStore

_MEBIBYTE = 1 << 20
_BINDING = re.compile(r"\bdimension_bindings\[([^\]]{1,200})\]")
_VERDICTS = {
    MemoryVerdict.FITS: "yes",
    MemoryVerdict.MAY_NOT_FIT: "MAYBE: only the bound is larger; run it alone first",
    MemoryVerdict.DOES_NOT_FIT: "NO",
}


def open_predictor(state_dir: Path, graphs_dir: Path | None = None) -> Predictor:
    """Opens the use case on the models of a state folder; without any, answers come from device peaks.

    Args:
        state_dir: Where the models are.
        graphs_dir: Where graphs lie until a question binds their dimensions; None = every question brings its graph.
    """
    versions = VersionHolder(VersionStore(state_dir / "models"))
    versions.reload()
    return Predictor(GraphLibrary(InProcessDescriber(), graphs_dir), versions)


def read_graph_file(path: Path) -> bytes:
    """Reads an ONNX file without its weights.

    Raises:
        MalformedGraphError: It is not one, or cannot be read.
    """
    try:
        return read_graph(path)
    except (GraphFileError, OSError) as error:
        raise MalformedGraphError(str(error), remedy="give the path of an .onnx file") from error


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Names the file in what is said against its graph, and the flag in place of the contract's field."""
    try:
        yield
    except GraphError as error:
        remedy = _BINDING.sub(r"--bind \1=SIZE", error.remedy)
        raise type(error)(f"{path}: {error.message}", remedy=remedy, details=error.details) from error


def answer_as_json(answer: JobAnswer) -> str:
    """Writes an answer in the JSON form of the contract."""
    message: prediction_pb2.PredictJobResponse = job_response(answer)
    return MessageToJson(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


def answer_as_table(answer: JobAnswer) -> str:
    """Writes an answer for people, below 80 columns."""
    rows = [
        ("memory", _range(answer.memory_bytes, _MEBIBYTE, "MiB")),
        (
            "memory, bound" if answer.memory_bytes.range_not_calibrated else "memory, 99 % bound",
            f"{(answer.memory_bytes.upper_99 or 0) / _MEBIBYTE:,.0f} MiB",
        ),
        ("step", _range(answer.step_ms, 1, "ms")),
        ("utilization", _range(answer.utilization_ratio, 0.01, "%")),
        ("fits", _verdict(answer)),
    ]
    if answer.largest_batch_that_fits is not None:
        rows.append(("largest batch", f"{answer.largest_batch_that_fits:,}"))
    rows += [
        (
            f"micro-batch {item.micro_batch_size}",
            f"x {item.accumulation_steps}: {_range(item.memory_bytes, _MEBIBYTE, 'MiB')}",
        )
        for item in answer.micro_batches
    ]
    rows += [("device", answer.device), ("model", answer.model_version)]
    rows += [("note", notice.message) for notice in answer.warnings]
    return "\n".join(f"{name:<20}{text}" for name, text in rows)


def _verdict(answer: JobAnswer) -> str:
    if not answer.device_memory_bytes:
        return "unknown: state --device-memory"
    return f"{_VERDICTS[verdict_of(answer)]} ({answer.device_memory_bytes / _MEBIBYTE:,.0f} MiB on the device)"


def verdict_of(answer: JobAnswer) -> MemoryVerdict:
    """Whether the job fits on the device of the question, alone."""
    memory = answer.memory_bytes
    return judge_memory(
        expected_bytes=max(memory.value, memory.lower),
        bound_bytes=memory.upper_99 or memory.upper,
        device_bytes=answer.device_memory_bytes,
    )


def _range(estimate: Estimate, unit_size: float, unit: str) -> str:
    value, lower, upper = (number / unit_size for number in (estimate.value, estimate.lower, estimate.upper))
    promise = "range not calibrated" if estimate.range_not_calibrated else f"{estimate.confidence:.0%}"
    return f"{value:,.1f} {unit} ({lower:,.1f} to {upper:,.1f}, {promise})"
