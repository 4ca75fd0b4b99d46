"""From answers to messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, cast

from cotenant.v1 import prediction_pb2, resources_pb2
from predictor_service.features.devices import DeviceType
from predictor_service.features.graph_description import GraphDescription
from predictor_service.inference.records import Estimate, JobAnswer, Notice, PairsAnswer, RiskAnswer

_WORDINGS_MAX: Final = 1_024


def job_response(answer: JobAnswer, graph: bytes | None = None) -> prediction_pb2.PredictJobResponse:
    """Writes the answer about one job.

    Args:
        answer: The answer.
        graph: What `response_about` writes of its graph and device, where that was written before.
    """
    about = graph or response_about(answer.graph, answer.device, is_generic=answer.device_is_generic)
    share, memory, step = answer.utilization_ratio, answer.memory_bytes, answer.step_ms
    # Texts are read together from bytes, which costs a third of setting each: an answer out of domain has up to ten.
    words = _reasons(share.unusual_features, memory.unusual_features, step.unusual_features)
    message = prediction_pb2.PredictJobResponse.FromString(about + words)
    message.prediction_id = answer.prediction_id
    message.model_version = answer.model_version
    message.fits = answer.fits
    message.device_memory_bytes = answer.device_memory_bytes
    message.job_key = answer.job_key
    if answer.largest_batch_that_fits is not None:
        message.largest_batch_size_that_fits = answer.largest_batch_that_fits
    for notice in answer.warnings:
        message.warnings.add(code=notice.code, message=notice.message)
    _write_figures(message.utilization_ratio, share)
    _write_figures(message.memory_bytes, memory)
    _write_figures(message.step_ms, step)
    if answer.sm_activity_ratio is not None:
        _write(message.sm_activity_ratio, answer.sm_activity_ratio)
    for item in answer.micro_batches:
        point = message.micro_batches.add(
            micro_batch_size=item.micro_batch_size, accumulation_steps=item.accumulation_steps
        )
        _write(point.memory_bytes, item.memory_bytes)
        _write(point.step_ms, item.step_ms)
    return message


def response_about(graph: GraphDescription, device: str, *, is_generic: bool) -> bytes:
    """Writes the part of an answer that is the same for all jobs of a graph on a device type."""
    return prediction_pb2.PredictJobResponse(
        utilization_metric=resources_pb2.UTILIZATION_METRIC_BUSY_TIME,
        graph=graph_summary(graph),
        device=device,
        device_is_generic=is_generic,
    ).SerializeToString()


@lru_cache(_WORDINGS_MAX)
def _reasons(share: tuple[str, ...], memory: tuple[str, ...], step: tuple[str, ...]) -> bytes:
    """Writes the part of an answer that says why its estimates are not in domain; empty where they all are."""
    return prediction_pb2.PredictJobResponse(
        utilization_ratio=resources_pb2.Estimate(unusual_features=share) if share else None,
        memory_bytes=resources_pb2.Estimate(unusual_features=memory) if memory else None,
        step_ms=resources_pb2.Estimate(unusual_features=step) if step else None,
    ).SerializeToString()


def risk_response(answer: RiskAnswer) -> prediction_pb2.PredictMemoryRiskResponse:
    """Writes the answer about the memory of several jobs."""
    message = prediction_pb2.PredictMemoryRiskResponse(
        independent_risk_ratio=answer.independent_ratio,
        union_bound_risk_ratio=answer.union_bound_ratio,
        bounds_fit=answer.bounds_fit,
        device_memory_bytes=answer.device_memory_bytes,
        model_version=answer.model_version,
        warnings=warnings(answer.warnings),
    )
    for estimate in answer.memory_bytes:
        _write(message.memory_bytes.add(), estimate)
    return message


def pairs_response(answer: PairsAnswer) -> prediction_pb2.PredictPairsResponse:
    """Writes the matrices, packed row by row."""
    return prediction_pb2.PredictPairsResponse(
        job_ids=answer.job_ids,
        slowdown_ratio=answer.slowdown_ratio.reshape(-1).tolist(),
        lower=answer.lower.reshape(-1).tolist(),
        upper=answer.upper.reshape(-1).tolist(),
        level=cast("list[resources_pb2.EstimateLevel.ValueType]", answer.level.reshape(-1).tolist()),
        in_domain=answer.in_domain.reshape(-1).tolist(),
        model_version=answer.model_version,
        prediction_id=answer.prediction_id,
        times_measured=answer.times_measured.reshape(-1).tolist() if answer.times_measured.any() else (),
    )


def upload_response(
    graph_sha256: str, stored_bytes: int, description: GraphDescription | None, notices: Sequence[Notice]
) -> prediction_pb2.UploadGraphResponse:
    """Writes the answer to an upload."""
    return prediction_pb2.UploadGraphResponse(
        graph_sha256=graph_sha256,
        stored_bytes=stored_bytes,
        graph=graph_summary(description) if description else resources_pb2.GraphSummary(graph_sha256=graph_sha256),
        warnings=warnings(notices),
    )


def device_message(device: DeviceType, trained: bool) -> prediction_pb2.Device:
    """Writes a device type."""
    return prediction_pb2.Device(
        name=device.name,
        memory_bytes=device.memory_bytes,
        peak_fp32_flops=device.peak("fp32"),
        memory_bytes_per_s=device.memory_bytes_per_s,
        trained=trained,
    )


def outcome_content(outcome: prediction_pb2.Outcome) -> Mapping[str, object]:
    """What the journal keeps of an outcome: the fields that are set."""
    content: dict[str, object] = {}
    for field, value in outcome.ListFields():
        if field.name != "prediction_id":
            content[field.name] = list(value) if field.name == "quality_flags" else value
    return content


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


def warnings(notices: Sequence[Notice]) -> list[resources_pb2.Warning]:
    """Writes what the caller should know."""
    return [resources_pb2.Warning(code=notice.code, message=notice.message) for notice in notices]


def _write(message: resources_pb2.Estimate, estimate: Estimate) -> None:
    _write_figures(message, estimate)
    message.unusual_features.extend(estimate.unusual_features)


def _write_figures(message: resources_pb2.Estimate, estimate: Estimate) -> None:
    """Field by field into the message that is part of the answer: twice as fast as making one and copying it there."""
    value, lower, upper, confidence, level, in_domain, upper_99, explanation, not_calibrated, _ = estimate
    message.value = value
    message.lower = lower
    message.upper = upper
    message.confidence = confidence
    if upper_99 is not None:
        message.upper_99 = upper_99
    message.level = cast("resources_pb2.EstimateLevel.ValueType", level)
    message.in_domain = in_domain
    if not_calibrated:
        message.range_not_calibrated = True
    for item in explanation:
        message.explanation.add(feature=item.feature, feature_value=item.feature_value, contribution=item.contribution)
