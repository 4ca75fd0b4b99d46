"""Predictions as a page: every quantity with interval and level, and whether it fits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cotenant import quantities
from cotenant.cli.job_views import NOT_CALIBRATED, level_name
from cotenant.cli.setting_options import naming_flags
from cotenant.cli.tables import Column, Row
from cotenant.memory_verdict import MemoryVerdict
from cotenant.prediction_verdict import verdict_of
from cotenant.v1 import prediction_pb2, resources_pb2

_CALIBRATED = "CALIBRATED"
"""Code of the notice that an answer about a calibrated device carries."""
_CHECKED_ELSEWHERE = "CHECKED_ELSEWHERE"
"""Code of the notice that names the machines on which ranges were checked, none of which is the one at hand."""


def quantity_columns(answer: prediction_pb2.PredictJobResponse) -> Sequence[Column]:
    """Returns the headings of the quantities: what was not calibrated is no interval and has no 99 %."""
    estimates = (answer.memory_bytes, answer.utilization_ratio, answer.step_ms)
    return (
        Column(title="PREDICTED"),
        Column(title="VALUE", right=True),
        Column(title="RANGE" if any(each.range_not_calibrated for each in estimates) else "INTERVAL", right=True),
        Column(title=_bound_title(answer), right=True),
        Column(title="BASED ON", goes_below=True),
    )


def micro_batch_columns(answer: prediction_pb2.PredictJobResponse) -> Sequence[Column]:
    """Returns the headings of the micro-batches."""
    return (
        Column(title="MICRO-BATCH", right=True),
        Column(title="ACCUMULATED", right=True),
        Column(title="MEMORY", right=True),
        Column(title=_bound_title(answer), right=True),
        Column(title="STEP", right=True),
    )


def _bound_title(answer: prediction_pb2.PredictJobResponse) -> str:
    return "BOUND" if answer.memory_bytes.range_not_calibrated else "99 % BOUND"


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
    level += ", not calibrated" if estimate.range_not_calibrated else ""
    interval = f"{show(estimate.lower)} .. {show(estimate.upper)}"
    style = "" if estimate.in_domain else "yellow"
    return Row(cells=(label, show(estimate.value), interval, bound, level), styles=((4, style),))


def micro_batch_rows(answer: prediction_pb2.PredictJobResponse) -> list[Row]:
    """Returns one row per micro-batch that was asked about."""
    return [
        Row(
            cells=(
                str(point.micro_batch_size),
                str(point.accumulation_steps),
                quantities.format_gib(point.memory_bytes.value),
                quantities.format_gib(point.memory_bytes.upper_99),
                quantities.format_ms(point.step_ms.value),
            )
        )
        for point in answer.micro_batches
    ]


def wait_text(settings: resources_pb2.JobSettings, answer: prediction_pb2.PredictJobResponse) -> str:
    """Returns which share of the predicted step a wait in milliseconds is; empty where none is stated."""
    wait_ms, step_ms = settings.input_wait_ms, answer.step_ms.value
    return _percent(min(wait_ms / step_ms, 1.0)) if wait_ms and step_ms > 0 else ""


def prediction_lines(
    answer: prediction_pb2.PredictJobResponse, device: str, settings: resources_pb2.JobSettings
) -> list[tuple[str, str]]:
    """Returns the verdict and where the numbers come from, as labelled lines."""
    lines = [("fits", _verdict(answer, device))]
    if answer.HasField("largest_batch_size_that_fits"):
        largest = answer.largest_batch_size_that_fits
        # At another batch than the one that was asked about, of which `range_not_calibrated` says nothing.
        bound = f" ({NOT_CALIBRATED})" if answer.memory_bytes.range_not_calibrated else ""
        lines.append(("largest batch", f"{largest} fits by its memory bound{bound}" if largest else "none fits"))
    if share := wait_text(settings, answer):
        lines.append(("input wait", f"{quantities.format_ms(settings.input_wait_ms)} is {share} of a step on {device}"))
    lines += [
        ("graph", _graph_text(answer.graph)),
        ("model", f"{answer.model_version}, {_promise(answer)}"),
        ("device", _calibration_text(answer)),
        *place_lines([answer]),
        *warning_lines(each for each in answer.warnings if each.code not in {_CALIBRATED, _CHECKED_ELSEWHERE}),
    ]
    return lines


def place_lines(answers: Iterable[prediction_pb2.PredictJobResponse]) -> list[tuple[str, str]]:
    """Returns on which machines the ranges of answers about one device were checked, as at most one labelled line."""
    found = [each for answer in answers for each in answer.warnings if each.code == _CHECKED_ELSEWHERE]
    return [("ranges", found[0].message)] if found else []


def warning_lines(warnings: Iterable[resources_pb2.Warning]) -> list[tuple[str, str]]:
    """Returns what is doubtful about an answer, as labelled lines."""
    return [("warning", f"{warning.code}: {naming_flags(warning.message)}") for warning in warnings]


def _calibration_text(answer: prediction_pb2.PredictJobResponse) -> str:
    found = [warning.message for warning in answer.warnings if warning.code == _CALIBRATED]
    return f"calibrated: {found[0]}" if found else "not calibrated (`cotenant calibrate` on its machine)"


def _verdict(answer: prediction_pb2.PredictJobResponse, device: str) -> str:
    verdict, memory = verdict_of(answer), answer.memory_bytes
    kind = NOT_CALIBRATED if memory.range_not_calibrated else "predicted, 99 %"
    expected, bound = quantities.format_gib(memory.value), quantities.format_gib(memory.upper_99)
    size = quantities.format_gib(answer.device_memory_bytes)
    if verdict is MemoryVerdict.UNKNOWN:
        return f"unknown: state --device-memory (needs up to {bound}, predicted, on {device})"
    if verdict is MemoryVerdict.FITS:
        most = "up to" if memory.range_not_calibrated else "at most"
        return f"yes: {most} {bound} ({kind}) of {size} on {device}"
    if verdict is MemoryVerdict.MAY_NOT_FIT:
        only = f"only the bound, {bound} ({kind}), is above the {size} of {device}: run it alone first"
        return f"MAY NOT FIT: {expected} is expected, which fits; {only}"
    least = quantities.format_gib(memory.lower)
    needed = f"at least {least} (predicted)" if memory.lower > answer.device_memory_bytes else f"{expected} is expected"
    return f"DOES NOT FIT: {needed}, up to {bound} ({kind}); {device} has {size}"


def _promise(answer: prediction_pb2.PredictJobResponse) -> str:
    """Coverage of the intervals, or that it was not checked."""
    estimates = {"memory": answer.memory_bytes, "utilization": answer.utilization_ratio, "step time": answer.step_ms}
    unchecked = [name for name, estimate in estimates.items() if estimate.range_not_calibrated]
    checked = [name for name in estimates if name not in unchecked]
    of_which = f": {', '.join(checked)}" if unchecked else ""
    is_calibrated = any(each.code == _CALIBRATED for each in answer.warnings)
    measured = "measured values" if is_calibrated else "rows where it learned"
    nominal = f"{quantities.format_percent(answer.memory_bytes.confidence)} of {measured} (nominal)"
    texts = [f"intervals hold {nominal}{of_which}"] if checked else []
    texts += [f"{NOT_CALIBRATED}: {', '.join(unchecked)}"] if unchecked else []
    return "; ".join(texts)


def _graph_text(graph: resources_pb2.GraphSummary) -> str:
    text = f"{graph.parameters:,} parameters, {graph.forward_macs_per_sample / 1e6:,.2f} M multiply-adds a sample"
    if graph.unshaped_nodes:
        text += f"; {graph.unshaped_nodes} of {graph.nodes} nodes without shapes, their cost is missing"
    return text
