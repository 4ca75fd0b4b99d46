"""From answers to messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from cotenant.v1 import prediction_pb2, resources_pb2
from predictor_service.features.devices import DeviceType
from predictor_service.features.graph_description import GraphDescription
from predictor_service.inference.records import Estimate, JobAnswer, Notice, PairsAnswer, RiskAnswer


def job_response(
    answer: JobAnswer, graph: resources_pb2.GraphSummary | None = None
) -> prediction_pb2.PredictJobResponse:
    """Writes the answer about one job.

    Args:
        answer: The answer.
        graph: What `graph_summary` writes of its graph, where that was written before.
    """
    return prediction_pb2.PredictJobResponse(
        prediction_id=answer.prediction_id,
        model_version=answer.model_version,
        utilization_ratio=_estimate(answer.utilization_ratio),
        utilization_metric=resources_pb2.UTILIZATION_METRIC_BUSY_TIME,
        sm_activity_ratio=_estimate(answer.sm_activity_ratio) if answer.sm_activity_ratio else None,
        memory_bytes=_estimate(answer.memory_bytes),
        step_ms=_estimate(answer.step_ms),
        fits=answer.fits,
        largest_batch_that_fits=answer.largest_batch_that_fits,
        sub_batches=[
            prediction_pb2.SubBatchEstimate(
                sub_batch=item.sub_batch,
                accumulation_steps=item.accumulation_steps,
                memory_bytes=_estimate(item.memory_bytes),
                step_ms=_estimate(item.step_ms),
            )
            for item in answer.sub_batches
        ],
        graph=graph or graph_summary(answer.graph),
        device_memory_bytes=answer.device_memory_bytes,
        warnings=warnings(answer.warnings),
        job_key=answer.job_key,
    )


def risk_response(answer: RiskAnswer) -> prediction_pb2.PredictMemoryRiskResponse:
    """Writes the answer about the memory of several jobs."""
    return prediction_pb2.PredictMemoryRiskResponse(
        independent_risk_ratio=answer.independent_ratio,
        union_bound_risk_ratio=answer.union_bound_ratio,
        bounds_fit=answer.bounds_fit,
        device_memory_bytes=answer.device_memory_bytes,
        memory_bytes=[_estimate(estimate) for estimate in answer.memory_bytes],
        model_version=answer.model_version,
        warnings=warnings(answer.warnings),
    )


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


def _estimate(estimate: Estimate) -> resources_pb2.Estimate:
    message = resources_pb2.Estimate(
        value=estimate.value,
        lower=estimate.lower,
        upper=estimate.upper,
        confidence=estimate.confidence,
        upper_99=estimate.upper_99,
        level=cast("resources_pb2.EstimateLevel.ValueType", estimate.level),
        in_domain=estimate.in_domain,
    )
    for item in estimate.explanation:
        message.explanation.add(feature=item.feature, feature_value=item.feature_value, contribution=item.contribution)
    return message
