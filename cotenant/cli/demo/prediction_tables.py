"""The tables that the demo prints before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.text import Text

from cotenant import quantities
from cotenant.cli.job_views import level_name
from cotenant.cli.tables import Column, Row, render_table
from cotenant.v1 import prediction_pb2, resources_pb2

_JOB_COLUMNS = (
    Column(title="JOB", shrinks=True),
    Column(title="UTIL %", right=True),
    Column(title="MEMORY MiB", right=True),
    Column(title="BOUND", right=True),
    Column(title="STEP ms", right=True),
    Column(title="FROM", shrinks=True),
    Column(title="DOMAIN"),
)


def job_table(answers: Mapping[str, prediction_pb2.PredictJobResponse], width: int) -> Text:
    """Returns one row per job: value and interval of every quantity."""
    rows = []
    for name, answer in answers.items():
        estimates = (answer.utilization_ratio, answer.memory_bytes, answer.step_ms)
        domain = "in" if all(estimate.in_domain for estimate in estimates) else "OUT"
        domain += ", not calibrated" if any(estimate.range_not_calibrated for estimate in estimates) else ""
        cells = (
            name,
            _with_interval(answer.utilization_ratio, lambda ratio: f"{ratio * 100:.0f}"),
            _with_interval(answer.memory_bytes, lambda size: f"{size / 2**20:.0f}"),
            f"{answer.memory_bytes.upper_99 / 2**20:.0f}",
            _with_interval(answer.step_ms, lambda step_ms: f"{step_ms:.0f}"),
            level_name(answer.utilization_ratio.level),
            domain,
        )
        rows.append(Row(cells=cells))
    return render_table(_JOB_COLUMNS, rows, width)


def _with_interval(estimate: resources_pb2.Estimate, show: quantities.Format) -> str:
    return f"{show(estimate.value)} [{show(estimate.lower)}, {show(estimate.upper)}]"


def pair_table(names: Sequence[str], pairs: Mapping[tuple[str, str], tuple[float, float, float]], width: int) -> Text:
    """Returns the matrix of expected slowdowns: the row's job co-located with the column's."""
    numbers = [str(number) for number in range(1, len(names) + 1)]
    columns = [Column(title="SLOWDOWN OF", shrinks=True), *(Column(title=number, right=True) for number in numbers)]
    rows = [
        Row(cells=(f"{number} {victim}", *(f"{pairs[victim, other][0] * 100:+.0f}" for other in names)))
        for number, victim in zip(numbers, names, strict=True)
    ]
    return render_table(columns, rows, width)
