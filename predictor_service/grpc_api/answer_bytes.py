"""The bytes of questions and answers about one job: the one place of this service that writes a message by hand.

Schedulers ask about one job at many batches. Four things deal in bytes so that another batch costs little more than
gRPC itself:

- A question is known by the bytes of its message without id and batch; reading it to compare its parts costs more.
- An answer is written at once, field by field after the contract's numbers, and never exists as a message on the
  server: making one, setting its fields and serializing it costs four times as much.
- What answers share (graph, device, version, the texts of reasons and warnings) is written once and copied.
- What the journal keeps of all answers to a question is the end of a JSON object, written once.

What is written is what `PredictJobResponse` writes of the same values, but for the order of its fields and for zeros,
which are written out (`tests/properties/test_answer_bytes.py` sets each field by name and compares).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from google.protobuf.descriptor import Descriptor

from cotenant.v1 import prediction_pb2, resources_pb2
from predictor_service.features.graphs.graph_description import GraphDescription
from predictor_service.features.memory_states import MemoryStates
from predictor_service.inference.prepared_job import PreparedJob
from predictor_service.inference.records import Contribution, Estimate, JobAnswer, MicroBatchEstimate, Notice
from predictor_service.outcome_journal import write_figures

_WORDINGS_MAX: Final = 1_024
_VARINT, _DOUBLE, _SIZED = 0, 1, 2
_INT64_MASK: Final = (1 << 64) - 1


def _tag(message: Descriptor, name: str, wire_type: int) -> int:
    """What stands before a field: its number and how its value is written."""
    return message.fields_by_name[name].number << 3 | wire_type


_ESTIMATE: Final = resources_pb2.Estimate.DESCRIPTOR
_VALUE, _LOWER, _UPPER, _CONFIDENCE, _UPPER_99 = (
    _tag(_ESTIMATE, name, _DOUBLE) for name in ("value", "lower", "upper", "confidence", "upper_99")
)
_LEVEL, _IN_DOMAIN, _NOT_CALIBRATED = (
    _tag(_ESTIMATE, name, _VARINT) for name in ("level", "in_domain", "range_not_calibrated")
)
_FIGURES: Final = struct.Struct("<BdBdBdBdBBBBBB")
_BOUNDED_FIGURES: Final = struct.Struct("<BdBdBdBdBdBBBBBB")
_pack_figures, _pack_bounded_figures = _FIGURES.pack, _BOUNDED_FIGURES.pack


def _sized_tags(message: Descriptor, *names: str) -> tuple[bytes, ...]:
    return tuple(_whole(_tag(message, name, _SIZED)) for name in names)


def _varint_tags(message: Descriptor, *names: str) -> tuple[bytes, ...]:
    return tuple(_whole(_tag(message, name, _VARINT)) for name in names)


def _whole(value: int) -> bytes:
    """Writes a whole number seven bits at a time."""
    rest, found = value & _INT64_MASK, bytearray()
    while rest > 0x7F:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    found.append(rest)
    return bytes(found)


_LENGTHS: Final = tuple(_whole(length) for length in range(4_096))
_ANSWER: Final = prediction_pb2.PredictJobResponse.DESCRIPTOR
_PREDICTION_ID, _JOB_KEY, _SHARE, _SM_ACTIVITY, _MEMORY, _STEP, _MICRO_BATCH, _WARNING, _MEMORY_STATES = _sized_tags(
    _ANSWER,
    "prediction_id",
    "job_key",
    "utilization_ratio",
    "sm_activity_ratio",
    "memory_bytes",
    "step_ms",
    "micro_batches",
    "warnings",
    "memory_states",
)
_WARNING_CODE, _WARNING_MESSAGE = _sized_tags(resources_pb2.Warning.DESCRIPTOR, "code", "message")
_FITS, _LARGEST = _varint_tags(_ANSWER, "fits", "largest_batch_size_that_fits")
_FITS_TRUE: Final = _FITS + _whole(1)
_POINT: Final = prediction_pb2.MicroBatchEstimate.DESCRIPTOR
_POINT_SIZE, _POINT_STEPS = _varint_tags(_POINT, "micro_batch_size", "accumulation_steps")
_POINT_MEMORY, _POINT_STEP = _sized_tags(_POINT, "memory_bytes", "step_ms")


def question_key(request: prediction_pb2.PredictJobRequest) -> bytes:
    """Equal for questions about one job that differ in their id and their batch only.

    A wait in milliseconds is of the batch that it is stated with: another share of a step at each.
    """
    question = prediction_pb2.PredictJobRequest()
    question.CopyFrom(request)
    question.request_id = ""
    if not question.settings.input_wait_ms:
        question.settings.global_batch_size = 0
    return question.SerializeToString(deterministic=True)


def write_answer(answer: JobAnswer, about: bytes | None = None) -> bytes:
    """Writes the answer about one job, a `PredictJobResponse`.

    Args:
        answer: The answer.
        about: What `write_about` writes of its graph and device, where that was written before.
    """
    parts = [
        about or write_about(answer.graph, answer.device, is_generic=answer.device_is_generic),
        _write_version(answer.model_version, answer.device_memory_bytes),
        _text(_PREDICTION_ID, answer.prediction_id),
        _text(_JOB_KEY, answer.job_key),
        _estimate(_SHARE, answer.utilization_ratio),
        _estimate(_MEMORY, answer.memory_bytes),
        _estimate(_STEP, answer.step_ms),
    ]
    if answer.fits:
        parts.append(_FITS_TRUE)
    parts += [_write_warning(notice) for notice in answer.warnings]
    if answer.sm_activity_ratio is not None:
        parts.append(_estimate(_SM_ACTIVITY, answer.sm_activity_ratio))
    if answer.largest_batch_that_fits is not None:
        parts.append(_LARGEST + _whole(answer.largest_batch_that_fits))
    if answer.micro_batches:
        parts += [_sized(_MICRO_BATCH, _micro_batch(item)) for item in answer.micro_batches]
    if answer.memory_states is not None:
        parts.append(_sized(_MEMORY_STATES, _write_states(answer.memory_states)))
    return b"".join(parts)


def write_about(graph: GraphDescription, device: str, *, is_generic: bool) -> bytes:
    """Writes the part of an answer that is the same for all jobs of a graph on a device type."""
    return prediction_pb2.PredictJobResponse(
        utilization_metric=resources_pb2.UTILIZATION_METRIC_BUSY_TIME,
        graph=graph_summary(graph),
        device=device,
        device_is_generic=is_generic,
    ).SerializeToString()


def graph_summary(description: GraphDescription) -> resources_pb2.GraphSummary:
    """Writes what was read from a graph, per sample."""
    macs, activations = description.scalars["forward_macs"], description.scalars["activation_bytes_saved"]
    return resources_pb2.GraphSummary(
        graph_sha256=description.graph_sha256,
        parameters=description.stored.parameters,
        forward_macs_per_sample=macs.per_sample or macs.constant,
        activation_bytes_per_sample=activations.per_sample,
        nodes=description.nodes,
        unshaped_nodes=description.unshaped_nodes,
    )


def write_question(job: PreparedJob) -> str:
    """Writes what the journal keeps of a question: enough to make a training row of an answer's outcome."""
    settings, sha256 = job.question.settings, job.graph.graph_sha256
    bindings = json.dumps(dict(settings.dimension_bindings)) if settings.dimension_bindings else "{}"
    wait = f', "input_wait_ms": {settings.input_wait_ms!r}' if settings.input_wait_ms else ""
    # The batch, which differs, goes before these. Words that were checked need no escapes: json costs 20 us more.
    return (
        f'"{settings.mode}", "{settings.precision}", "{settings.optimizer}", {settings.input_wait_ratio!r}],'
        f'"confidence": {job.question.confidence!r}, "graph_sha256": "{sha256}", "bindings": {bindings}{wait}}}'
    )


def write_content(answer: JobAnswer, batch: int, question: str, asked_by: str = "") -> str:
    """Writes what the journal keeps of an answer.

    Args:
        answer: The answer.
        batch: That it is about.
        question: What `write_question` writes.
        asked_by: What `asked_by_text` writes of the caller.
    """
    memory = answer.memory_bytes
    figures = write_figures(
        *answer.utilization_ratio[:3], *memory[:3], *answer.step_ms[:3], memory.upper_99 or memory.upper
    )
    return f'{{{asked_by}"job_key":"{answer.job_key}","figures":"{figures}","settings":[{batch},{question}'


@lru_cache(_WORDINGS_MAX)
def _write_version(model_version: str, device_memory_bytes: int) -> bytes:
    return prediction_pb2.PredictJobResponse(
        model_version=model_version, device_memory_bytes=device_memory_bytes
    ).SerializeToString()


@lru_cache(_WORDINGS_MAX)
def _write_warning(notice: Notice) -> bytes:
    return _sized(_WARNING, _text(_WARNING_CODE, notice.code) + _text(_WARNING_MESSAGE, notice.message))


def _estimate(tag: bytes, estimate: Estimate) -> bytes:
    value, lower, upper, confidence, level, in_domain, upper_99, explanation, not_calibrated, reasons = estimate
    before, after = _frame(tag, upper_99 is not None, reasons, _write_explanation(explanation) if explanation else b"")
    if upper_99 is None:
        figures = _pack_figures(
            *(_VALUE, value, _LOWER, lower, _UPPER, upper, _CONFIDENCE, confidence),
            *(_LEVEL, level, _IN_DOMAIN, in_domain, _NOT_CALIBRATED, not_calibrated),
        )
    else:
        figures = _pack_bounded_figures(
            *(_VALUE, value, _LOWER, lower, _UPPER, upper, _CONFIDENCE, confidence, _UPPER_99, upper_99),
            *(_LEVEL, level, _IN_DOMAIN, in_domain, _NOT_CALIBRATED, not_calibrated),
        )
    return before + figures + after


@lru_cache(_WORDINGS_MAX)
def _frame(tag: bytes, is_bounded: bool, reasons: tuple[str, ...], explanation: bytes) -> tuple[bytes, bytes]:
    """What stands before and after the figures of an estimate."""
    after = resources_pb2.Estimate(unusual_features=reasons).SerializeToString() + explanation
    figures = _BOUNDED_FIGURES if is_bounded else _FIGURES
    return tag + _whole(figures.size + len(after)), after


def _write_explanation(explanation: Sequence[Contribution]) -> bytes:
    return resources_pb2.Estimate(
        explanation=[
            resources_pb2.Contribution(
                feature=item.feature, feature_value=item.feature_value, contribution=item.contribution
            )
            for item in explanation
        ]
    ).SerializeToString()


def _micro_batch(item: MicroBatchEstimate) -> bytes:
    return b"".join(
        (
            _POINT_SIZE + _whole(item.micro_batch_size),
            _POINT_STEPS + _whole(item.accumulation_steps),
            _estimate(_POINT_MEMORY, item.memory_bytes),
            _estimate(_POINT_STEP, item.step_ms),
        )
    )


def _write_states(states: MemoryStates) -> bytes:
    return resources_pb2.MemoryStates(
        low_bytes=round(states.low_bytes),
        extra_bytes=round(states.extra_bytes),
        high_state_ratio=states.high_state_ratio,
    ).SerializeToString()


def _text(tag: bytes, text: str) -> bytes:
    return _sized(tag, text.encode())


def _sized(tag: bytes, content: bytes) -> bytes:
    length = len(content)
    return tag + (_LENGTHS[length] if length < len(_LENGTHS) else _whole(length)) + content
