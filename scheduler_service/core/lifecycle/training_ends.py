"""When jobs with a target loss end: the losses that they report are kept, thinned, and curves are fitted to them.

The predictor is asked again whenever a job has made a tenth more steps, one question of a job at a time. Where the
fitted shapes agree, the number of steps that they foresee is what policies plan with; the number of steps that the
owner stated bounds it. What is foreseen ends no job: its program does that, and knows its target.

Source:
    Optimus, section 3.1: the remaining steps follow from a loss curve that is fitted online (Eq. 1).
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, isfinite
from typing import Final

from scheduler_service.core.commands import RequestLossFit
from scheduler_service.core.event_effects import EventEffects
from scheduler_service.core.events import JobProgressed
from scheduler_service.core.fit_events import LossFitted
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.jobs.training_end_records import TrainingEnd
from scheduler_service.core.records import ENDED_PHASES, Phase
from scheduler_service.core.state import ClusterState

LOSSES_MAX: Final = 200
"""Losses kept of a job; beyond that every second one leaves, and the distance of the later ones doubles."""
LOSSES_MIN: Final = 8
"""Losses before the first question."""
GROWTH_RATIO: Final = 0.1
"""Share of more steps after which a curve is fitted again."""
EPOCHS: Final = 40
"""Parts in which the losses are averaged before a curve is fitted."""
MOVED_RATIO: Final = 0.02
"""A foreseen number of steps that differs by less leaves the planned one as it is."""
STEPS_MAX: Final = 10**12


def with_script_total(job: JobRecord, report: JobProgressed) -> JobRecord:
    """Return a job with the steps that its script says it has, the newest ones; what its owner states comes first."""
    if job.request.steps_total != job.reported.script_steps_total:
        return job
    if max(job.steps_done, 1) <= report.steps_total <= STEPS_MAX:
        return _with_total(job, report.steps_total)
    return without_passed_total(job)


def without_passed_total(job: JobRecord) -> JobRecord:
    """Return a job without the total of its script where that has made more steps than it said."""
    return _with_total(job, 0) if 0 < job.reported.script_steps_total < job.steps_done else job


def _with_total(job: JobRecord, total: int) -> JobRecord:
    if total == job.reported.script_steps_total:
        return job
    return job.reporting(script_steps_total=total).changed(request=replace(job.request, steps_total=total))


def with_loss(job: JobRecord, report: JobProgressed) -> JobRecord:
    """Return a job with a loss that it reported; a job without a target keeps none."""
    loss = report.loss
    if not job.request.target_loss or loss is None or not isfinite(loss) or loss < 0:
        return job
    end = job.reported.training_end or TrainingEnd(steps_max=job.request.steps_total)
    if end.losses and report.steps_done < end.losses[-1][0] + end.spacing_steps:
        return job
    losses, spacing_steps = (*end.losses, (report.steps_done, loss)), end.spacing_steps
    if len(losses) > LOSSES_MAX:
        losses = losses[::2]
        spacing_steps = max(2 * spacing_steps, ceil((losses[-1][0] - losses[0][0]) / (len(losses) - 1)))
    return job.reporting(training_end=replace(end, losses=losses, spacing_steps=spacing_steps))


def ask_about_end(state: ClusterState, job_id: str, step: EventEffects) -> None:
    """Ask when a job reaches its target where it has made enough steps since the last question."""
    job = state.jobs[job_id]
    end = job.reported.training_end
    if end is None or end.is_asked or len(end.losses) < LOSSES_MIN:
        return
    if end.losses[-1][0] <= end.asked_at_step * (1 + GROWTH_RATIO):
        return
    job = job.reporting(training_end=replace(end, is_asked=True, asked_at_step=end.losses[-1][0]))
    state.put_job(job)
    step.commands.append(_question(job, end))


def reissue_loss_fits(state: ClusterState, step: EventEffects) -> None:
    """Ask again what was unanswered when the scheduler went down."""
    for phase in Phase:
        for job_id in state.in_phase(phase) if phase not in ENDED_PHASES else ():
            job = state.jobs[job_id]
            if job.reported.training_end is not None and job.reported.training_end.is_asked:
                step.commands.append(_question(job, job.reported.training_end))


def _question(job: JobRecord, end: TrainingEnd) -> RequestLossFit:
    span_steps = end.losses[-1][0] - end.losses[0][0]
    return RequestLossFit(
        job_id=job.job_id,
        target_loss=job.request.target_loss,
        losses=end.losses,
        epoch_steps=max(span_steps / EPOCHS, 1.0),
    )


def loss_fitted(state: ClusterState, event: LossFitted, step: EventEffects) -> None:
    """Take in when a job reaches its target; policies plan with it where the shapes agree."""
    job = state.jobs.get(event.job_id)
    end = job.reported.training_end if job is not None else None
    if job is None or end is None or not end.is_asked:
        return
    end = replace(end, is_asked=False, code=event.code)
    if not event.code:
        end = _foreseen(end, event, job.steps_done)
    job = job.reporting(training_end=end)
    planned, now = job.request.steps_total, end.steps_total
    if end.is_reliable and now and not job.has_ended and abs(now - planned) > MOVED_RATIO * planned:
        job = job.changed(request=replace(job.request, steps_total=now))
        step.is_decision_due = True
    state.put_job(job)


def _foreseen(end: TrainingEnd, event: LossFitted, steps_done: int) -> TrainingEnd:
    """Return what was answered within what can be: no step less than was done, no more than was stated."""
    least = steps_done if event.is_reached else steps_done + 1
    most = max(end.steps_max or STEPS_MAX, least)
    numbers = (event.steps_lower, event.steps_total, event.steps_upper)
    is_known = all(isfinite(number) and number > 0 for number in numbers)
    lower, total, upper = sorted(min(max(ceil(number), least), most) for number in numbers) if is_known else (0, 0, 0)
    return replace(
        end,
        steps_total=total,
        steps_lower=lower,
        steps_upper=upper,
        confidence=event.confidence,
        is_reliable=event.is_reliable and is_known,
        is_reached=event.is_reached,
        losses_fitted=len(end.losses),
        code="" if is_known else "NOT_FORESEEABLE",
    )


def steps_to_complete(job: JobRecord) -> int:
    """Return the steps after which a job is complete whatever its program says; 0 = its program alone knows."""
    if not job.request.target_loss:
        return job.request.steps_total
    return job.reported.training_end.steps_max if job.reported.training_end is not None else job.request.steps_total
