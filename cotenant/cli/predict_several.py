"""Several predictions as one page: batches and devices in a table, or jobs that share a device."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from cotenant import quantities
from cotenant.cli.formats import emit_data, message_to_dict
from cotenant.cli.job_views import level_name
from cotenant.cli.predict_questions import is_unconfigured
from cotenant.cli.prediction_views import place_lines, wait_text, warning_lines
from cotenant.cli.session import Session, show
from cotenant.cli.settings import point_at_state
from cotenant.cli.tables import Column, Row, render_labelled, render_table
from cotenant.memory_verdict import MemoryVerdict
from cotenant.prediction_questions import Answers, Questions, ask_offline, ask_service
from cotenant.prediction_verdict import may_run, verdict_of
from cotenant.v1 import prediction_pb2, resources_pb2

_EACH_COLUMNS = (
    Column(title="DEVICE", wraps=True),
    Column(title="BATCH", right=True),
    Column(title="MEMORY", right=True),
    Column(title="BOUND", right=True),
    Column(title="STEP", right=True),
    Column(title="BUSY", right=True),
    Column(title="FITS"),
    Column(title="LARGEST", right=True),
    Column(title="BASED ON", goes_below=True),
)
_WAITS = Column(title="WAITS", right=True)
"""Last but one where a wait in milliseconds is stated: another share of a step on each device."""
_FITS = {
    MemoryVerdict.FITS: ("yes", ""),
    MemoryVerdict.MAY_NOT_FIT: ("maybe", "yellow"),
    MemoryVerdict.DOES_NOT_FIT: ("NO", "red"),
    MemoryVerdict.UNKNOWN: ("unknown", "red"),
}
"""What the table says, and in which style."""
_LARGEST_COLUMNS = (Column(title="DEVICE", wraps=True), Column(title="LARGEST BATCH", right=True))
_JOB_COLUMNS = (
    Column(title="JOB", shrinks=True),
    Column(title="BATCH", right=True),
    Column(title="MEMORY", right=True),
    Column(title="BOUND", right=True),
    Column(title="STEP ALONE", right=True),
)


def ask(session: Session, questions: Questions, *, offline: bool) -> Answers:
    """Asks the predictor, or runs one here when none was configured and none is reachable."""
    if offline or is_unconfigured(session):
        point_at_state()
        return ask_offline(questions)
    return ask_service(questions, session.predictor())


def predict_each(session: Session, questions: Questions, flags: Mapping[str, Any]) -> bool:
    """Shows one job at several batches on several devices; returns whether any of them may fit."""
    answers = ask(session, questions, offline=flags["offline"])
    if not session.output.is_for_people:
        emit_data({"predictions": [message_to_dict(answer) for answer in answers.jobs]}, session.output)
    elif flags["max_batch"]:
        _show_largest(session, answers.jobs, questions.jobs)
    else:
        waits = any(request.settings.input_wait_ms for request in questions.jobs)
        columns = (*_EACH_COLUMNS[:-1], _WAITS, _EACH_COLUMNS[-1]) if waits else _EACH_COLUMNS
        rows = [_each_row(*both, waits=waits) for both in zip(questions.jobs, answers.jobs, strict=True)]
        show(render_table(columns, rows, session.width))
    if flags["max_batch"]:
        return any(answer.largest_batch_size_that_fits for answer in answers.jobs)
    return any(may_run(answer) for answer in answers.jobs)


def _show_largest(
    session: Session,
    answers: Sequence[prediction_pb2.PredictJobResponse],
    requests: Sequence[prediction_pb2.PredictJobRequest],
) -> None:
    """One number where one was asked for, so that a script can read it."""
    if len(answers) == 1:
        click.echo(_largest(answers[0]))
        return
    rows = [Row(cells=(_device(*both), _largest(both[1]))) for both in zip(requests, answers, strict=True)]
    show(render_table(_LARGEST_COLUMNS, rows, session.width))


def _largest(answer: prediction_pb2.PredictJobResponse) -> str:
    if not answer.HasField("largest_batch_size_that_fits"):
        return "unknown"
    return str(answer.largest_batch_size_that_fits)


def _device(request: prediction_pb2.PredictJobRequest, answer: prediction_pb2.PredictJobResponse) -> str:
    return answer.device or request.device


def _each_row(
    request: prediction_pb2.PredictJobRequest, answer: prediction_pb2.PredictJobResponse, *, waits: bool
) -> Row:
    verdict = verdict_of(answer)
    level = level_name(answer.memory_bytes.level) + ("" if answer.memory_bytes.in_domain else ", OUT OF DOMAIN")
    cells = (
        _device(request, answer),
        str(request.settings.global_batch_size),
        quantities.format_gib(answer.memory_bytes.value),
        quantities.format_gib(answer.memory_bytes.upper_99),
        quantities.format_ms(answer.step_ms.value),
        quantities.format_percent(answer.utilization_ratio.value),
        _FITS[verdict][0],
        _largest(answer),
        *([wait_text(request.settings, answer) or "-"] if waits else ()),
        level,
    )
    return Row(cells=cells, styles=((6, _FITS[verdict][1]),))


def predict_together(session: Session, questions: Questions, offline: bool) -> bool:
    """Shows jobs that share one device; returns whether the bounds of their memory fit together."""
    answers = ask(session, questions, offline=offline)
    if answers.pairs is None or answers.risk is None or questions.pairs is None:
        raise TypeError("pairs and risk were asked for")
    if not session.output.is_for_people:
        content = {
            "predictions": [message_to_dict(answer) for answer in answers.jobs],
            "pairs": message_to_dict(answers.pairs),
            "memory_risk": message_to_dict(answers.risk),
        }
        emit_data(content, session.output)
        return answers.risk.bounds_fit
    rows = [_job_row(*both) for both in zip(questions.pairs.jobs, answers.jobs, strict=True)]
    show(render_table(_JOB_COLUMNS, rows, session.width))
    show("")
    show(render_table(_pair_columns(answers.pairs), list(_pair_rows(answers.pairs)), session.width))
    show("")
    device = answers.jobs[0].device or questions.pairs.device
    lines = memory_lines(answers.risk, device) + place_lines(answers.jobs)
    show(render_labelled(lines, session.width))
    return answers.risk.bounds_fit


def _job_row(job: prediction_pb2.JobRef, answer: prediction_pb2.PredictJobResponse) -> Row:
    cells = (
        job.job_id,
        str(job.settings.global_batch_size),
        quantities.format_gib(answer.memory_bytes.value),
        quantities.format_gib(answer.memory_bytes.upper_99),
        quantities.format_ms(answer.step_ms.value),
    )
    return Row(cells=cells)


def _is_guessed(pairs: prediction_pb2.PredictPairsResponse, place: int) -> bool:
    """Neither a model nor a measured pair says anything: measured ones teach how far off all others may be."""
    return pairs.level[place] == resources_pb2.ESTIMATE_LEVEL_FALLBACK and not any(pairs.times_measured)


def _pair_columns(pairs: prediction_pb2.PredictPairsResponse) -> Sequence[Column]:
    """The headings; what was not calibrated is no interval."""
    is_guessed = any(_is_guessed(pairs, place) for place in range(len(pairs.level)))
    return (
        Column(title="JOB", shrinks=True),
        Column(title="CO-LOCATED WITH", shrinks=True),
        Column(title="SLOWED", right=True),
        Column(title="RANGE" if is_guessed else "INTERVAL", right=True),
        Column(title="BASED ON", goes_below=True),
    )


def _pair_rows(pairs: prediction_pb2.PredictPairsResponse) -> Iterator[Row]:
    """One row for each job with each other one; a job with a copy of itself was not asked about."""
    names = list(pairs.job_ids)
    for place, slowdown_ratio in enumerate(pairs.slowdown_ratio):
        victim, other = divmod(place, len(names))
        if victim != other:
            lower, upper = pairs.lower[place], pairs.upper[place]
            interval = f"{quantities.format_slowdown(lower)} .. {quantities.format_slowdown(upper)}"
            level = level_name(pairs.level[place]) + ("" if pairs.in_domain[place] else ", OUT OF DOMAIN")
            level += ", not calibrated" if _is_guessed(pairs, place) else ""
            slowed = quantities.format_slowdown(slowdown_ratio)
            yield Row(cells=(names[victim], names[other], slowed, interval, level))


def memory_lines(risk: prediction_pb2.PredictMemoryRiskResponse, device: str) -> list[tuple[str, str]]:
    """Returns whether the jobs' memory fits together, and how likely it runs out, as labelled lines."""
    bound = quantities.format_gib(math.fsum(each.upper_99 for each in risk.memory_bytes))
    size = quantities.format_gib(risk.device_memory_bytes)
    verdict = "yes" if risk.bounds_fit else "NO"
    lines = [("fit together", f"{verdict}: up to {bound} of {size} on {device}")]
    if risk.HasField("independent_risk_ratio") and risk.HasField("union_bound_risk_ratio"):
        chance, most = risk.independent_risk_ratio, risk.union_bound_risk_ratio
        lines.append(("out of memory", f"{chance:.2%} (at most {most:.2%})".replace("%", " %")))
    else:
        lines.append(("out of memory", "the chance is not known: nothing like one of the jobs was measured"))
    return lines + warning_lines(risk.warnings)
