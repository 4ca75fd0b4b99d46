"""Predictions as a page: every quantity with interval and level, and whether it fits."""

from __future__ import annotations

from cotenant import quantities
from cotenant.cli.job_views import level_name
from cotenant.cli.tables import Column, Row
from cotenant.v1 import prediction_pb2, resources_pb2

QUANTITY_COLUMNS = (
    Column(title="PREDICTED"),
    Column(title="VALUE", right=True),
    Column(title="INTERVAL", right=True),
    Column(title="99 % BOUND", right=True),
    Column(title="BASED ON", shrinks=True),
)
SUB_BATCH_COLUMNS = (
    Column(title="SUB-BATCH", right=True),
    Column(title="ACCUMULATED", right=True),
    Column(title="MEMORY", right=True),
    Column(title="99 % BOUND", right=True),
    Column(title="STEP", right=True),
)


def quantity_rows(answer: prediction_pb2.PredictJobResponse) -> list[Row]:
    """Returns one row per predicted quantity."""
    metric = resources_pb2.UtilizationMetric.Name(answer.utilization_metric)
    kind = "busy time" if metric.endswith("BUSY_TIME") else "SM activity" if metric.endswith("ACTIVITY") else ""
    rows = [_row("memory", answer.memory_bytes, quantities.format_gib)]
    rows.append(_row(f"utilization ({kind})" if kind else "utilization", answer.utilization_ratio, _percent))
    if answer.HasField("sm_activity_ratio"):
        rows.append(_row("SM activity", answer.sm_activity_ratio, _percent))
    rows.append(_row("step time", answer.step_ms, quantities.format_ms))
    return rows


_percent = quantities.format_percent


def _row(label: str, estimate: resources_pb2.Estimate, show: quantities.Format) -> Row:
    bound = show(estimate.upper_99) if estimate.HasField("upper_99") else "-"
    level = level_name(estimate.level) + ("" if estimate.in_domain else ", OUT OF DOMAIN")
    interval = f"{show(estimate.lower)} .. {show(estimate.upper)}"
    style = "" if estimate.in_domain else "yellow"
    return Row(cells=(label, show(estimate.value), interval, bound, level), styles=((4, style),))


def sub_batch_rows(answer: prediction_pb2.PredictJobResponse) -> list[Row]:
    """Returns one row per sub-batch that was asked about."""
    return [
        Row(
            cells=(
                str(point.sub_batch),
                str(point.accumulation_steps),
                quantities.format_gib(point.memory_bytes.value),
                quantities.format_gib(point.memory_bytes.upper_99),
                quantities.format_ms(point.step_ms.value),
            )
        )
        for point in answer.sub_batches
    ]


def prediction_lines(answer: prediction_pb2.PredictJobResponse, device: str) -> list[tuple[str, str]]:
    """Returns the verdict and where the numbers come from, as labelled lines."""
    lines = [("fits", _verdict(answer, device))]
    if answer.HasField("largest_batch_that_fits"):
        largest = answer.largest_batch_that_fits
        lines.append(("largest batch", f"{largest} fits by the 99 % bound" if largest else "none fits"))
    confidence = answer.memory_bytes.confidence
    lines += [
        ("graph", _graph_text(answer.graph)),
        ("model", f"{answer.model_version}, intervals hold {confidence:.0%} of measured values (nominal)"),
        *[("warning", f"{warning.code}: {warning.message}") for warning in answer.warnings],
    ]
    return lines


def _verdict(answer: prediction_pb2.PredictJobResponse, device: str) -> str:
    bound = quantities.format_gib(answer.memory_bytes.upper_99)
    if answer.device_is_generic and not answer.device_memory_bytes:
        return f"unknown: state --device-memory (needs up to {bound}, predicted, on {device})"
    size = quantities.format_gib(answer.device_memory_bytes)
    if answer.fits:
        return f"yes: at most {bound} (predicted, 99 %) of {size} on {device}"
    return f"NO: up to {bound} (predicted, 99 %) but {device} has {size}"


def _graph_text(graph: resources_pb2.GraphSummary) -> str:
    text = f"{graph.parameters:,} parameters, {graph.forward_macs_per_sample / 1e6:,.2f} M multiply-adds a sample"
    if graph.unshaped_nodes:
        text += f"; {graph.unshaped_nodes} of {graph.nodes} nodes without shapes, their cost is missing"
    return text
