"""Jobs as tables and as a page; shares are labelled predicted, reserved, measured or enforced."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from cotenant import quantities, system_clock
from cotenant.cli.forecast_views import known_steps, step_time_lines, steps_done_text, steps_text, training_end_lines
from cotenant.cli.queue_views import priority_name, queue_lines, queue_notes
from cotenant.cli.tables import Column, Row
from cotenant.counted_nouns import agreed
from cotenant.v1 import resources_pb2, scheduling_pb2

ENDED = (
    scheduling_pb2.JOB_PHASE_FINISHED,
    scheduling_pb2.JOB_PHASE_FAILED,
    scheduling_pb2.JOB_PHASE_CANCELLED,
)
AWAITING_PREDICTION = "AWAITING_PREDICTION"
"""Reason of the first moment of every job with a graph: not worth saying."""
PAUSED = "paused"
NOT_CALIBRATED = "estimate, range not calibrated"
"""In place of 90 % and 99 % where no measurement checked how often a range holds."""
_LONG_ID = re.compile(r"((?:GPU|MIG)-[0-9a-f]{8})(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
MEMORY_WATCHDOG = "watchdog"
"""Of all that a node enforces the one that ends a job beyond its device memory."""
_PHASE_STYLES = {
    "running": "green",
    "failed": "red",
    "pending": "yellow",
    "cancelled": "dim",
    "finished": "cyan",
    "paused": "yellow",
}

_COLUMNS = (
    Column(title="JOB"),
    Column(title="NAME", shrinks=True, least=20),
    Column(title="PHASE"),
    Column(title="STEPS", right=True),
    Column(title="GPU", wraps=True),
    Column(title="SHARES WITH", wraps=True, leaves=11),
    Column(title="PRED/MEAS", right=True, leaves=12),
)
_WIDE_COLUMNS = (
    Column(title="AGE", right=True, leaves=10),
    Column(title="STEP", right=True, leaves=9),
    Column(title="RESERVED", right=True, leaves=8),
    Column(title="PEAK", right=True, leaves=7),
    Column(title="UTIL", right=True, leaves=6),
    Column(title="TRY", right=True, leaves=5),
    Column(title="EXIT", leaves=4),
    Column(title="SHARE", leaves=3),
    Column(title="CLASS", right=True, leaves=2),
    Column(title="TENANT", shrinks=True, leaves=1),
)


def phase_name(job: scheduling_pb2.Job) -> str:
    """Returns the phase in lower case, e.g. running; a running job that stands still by order is paused."""
    if job.HasField("pause"):
        return PAUSED
    return scheduling_pb2.JobPhase.Name(job.phase).removeprefix("JOB_PHASE_").lower()


def reason_text(reason: scheduling_pb2.Reason) -> str:
    """Returns a reason in words; without words, its code and numbers."""
    if reason.message:
        return reason.message
    numbers = ", ".join(f"{name}={value:g}" for name, value in sorted(reason.numbers.items()))
    return f"{reason.code} ({numbers})" if numbers else reason.code


def coded_reason(reason: scheduling_pb2.Reason) -> str:
    """Returns the code with the words behind it."""
    text = reason_text(reason)
    return text if not reason.code or text.startswith(reason.code) else f"{reason.code}: {text}"


def neighbour_names(job: scheduling_pb2.Job, names: Mapping[str, str]) -> str:
    """Returns the jobs co-located with a job, by name where it is known."""
    return ",".join(names.get(other.job_id) or other.job_id for other in job.co_located_jobs)


def job_columns(*, wide: bool) -> Sequence[Column]:
    """Returns the headings of the list."""
    return (*_COLUMNS, *_WIDE_COLUMNS) if wide else _COLUMNS


def job_rows(jobs: Sequence[scheduling_pb2.Job], *, wide: bool, at_ms: int) -> list[Row]:
    """Returns one row per job; where it waits or has failed, the reason stands below it.

    What several jobs wait for is told once: a queue would be a page of the same sentence.
    """
    names = {job.job_id: job.spec.name for job in jobs}
    told: dict[str, str] = {}
    return [_job_row(job, names, told, wide=wide, at_ms=at_ms) for job in jobs]


def _reason_once(job: scheduling_pb2.Job, told: dict[str, str]) -> str:
    """The reason of a job that waits; only its code where another job, which is named, has told it.

    Args:
        job: The job.
        told: Reason without the name of its job -> the job that told it; grows.
    """
    reason = coded_reason(job.reason)
    first = told.setdefault(re.sub(rf"\b{re.escape(job.job_id)}\b", "", reason), job.job_id)
    return reason if first == job.job_id or not job.reason.code else f"{job.reason.code}, as {first}"


def _job_row(job: scheduling_pb2.Job, names: dict[str, str], told: dict[str, str], *, wide: bool, at_ms: int) -> Row:
    phase = phase_name(job)
    cells = [
        job.job_id,
        job.spec.name,
        phase,
        f"{steps_done_text(job)}/{steps_text(job)}",
        (",".join(_short(assignment.gpu_id) for assignment in job.assignments) or "-") + _servers_mark(job),
        neighbour_names(job, names) or "-",
        slowdown_pair(job),
    ]
    if wide:
        cells += [quantities.format_duration(at_ms - job.submitted_at_ms), *_wide_cells(job)]
    is_unasked = phase == "cancelled" and job.reason.code != "CANCELLED"  # its parent failed, for example
    wants_note = is_unasked or phase in ("pending", "failed", "stopping") or (wide and phase == "running")
    reason = _reason_once(job, told) if phase == "pending" else coded_reason(job.reason)
    note = pause_text(job, at_ms) if phase == PAUSED else reason if wants_note else ""
    queued = queue_notes(job, at_ms)
    # A sentence that goes on has no full stop.
    notes = "; ".join(part for part in (note.removesuffix(".") if queued else note, *queued) if part)
    return Row(cells=cells, styles=((2, _PHASE_STYLES.get(phase, "")),), note=notes)


def _short(gpu_id: str) -> str:
    """The first part of a long id, as drivers take it too; `describe` has the whole one."""
    return _LONG_ID.sub(r"\1", gpu_id)


def _servers_mark(job: scheduling_pb2.Job) -> str:
    return f" +{job.servers} servers" if job.servers and job.assignments else ""


def _wide_cells(job: scheduling_pb2.Job) -> list[str]:
    share = resources_pb2.ShareMode.Name(job.spec.share).removeprefix("SHARE_MODE_").lower()
    return [
        quantities.format_ms(job.step_ms) if job.step_ms else "-",
        _optional_size(job.memory_reserved_bytes),
        _optional_size(job.memory_peak_bytes),
        quantities.format_percent(job.utilization_ratio) if job.utilization_ratio else "-",
        str(job.attempt),
        job.exit_class or "-",
        "safe" if share == "unspecified" else share,
        priority_name(job.spec.priority),
        job.spec.tenant or "-",
    ]


def pause_text(job: scheduling_pb2.Job, at_ms: int) -> str:
    """Returns since when a job has been paused, for how long at most, and why."""
    pause = job.pause
    since = f"since {system_clock.iso_utc(pause.since_ms)} ({quantities.format_duration(at_ms - pause.since_ms)})"
    until = "is about to go on" if pause.resuming else f"until {system_clock.iso_utc(pause.until_ms)} at the latest"
    return f"paused {since}, {until}: {coded_reason(pause.reason)}"


def slowdown_pair(job: scheduling_pb2.Job) -> str:
    """Returns predicted and measured slowdown in percent, e.g. +11/+8 %; ? = not known."""
    shown = [
        f"{getattr(job, field) * 100:+.0f}" if job.HasField(field) else "?"
        for field in ("predicted_slowdown_ratio", "measured_slowdown_ratio")
    ]
    return "-" if shown == ["?", "?"] else "/".join(shown) + " %"


def _optional_slowdown(job: scheduling_pb2.Job, field: str) -> str:
    return quantities.format_slowdown(getattr(job, field)) if job.HasField(field) else "-"  # type: ignore[arg-type]


def _optional_size(size_bytes: int) -> str:
    return quantities.format_gib(size_bytes) if size_bytes else "-"


def estimate_text(estimate: resources_pb2.Estimate, kind: str) -> str:
    """Returns a predicted quantity with its interval.

    Args:
        estimate: What was predicted.
        kind: "bytes", "ms" or "ratio".
    """
    show = {"bytes": quantities.format_gib, "ms": quantities.format_ms, "ratio": quantities.format_percent}[kind]
    text = show(estimate.value)
    if estimate.confidence > 0:
        text += f" [{show(estimate.lower)}, {show(estimate.upper)}]"
        nominal = f" at nominal {quantities.format_percent(estimate.confidence)}"
        text += "" if estimate.range_not_calibrated else nominal
    if estimate.HasField("upper_99"):
        bound = "bound" if estimate.range_not_calibrated else "99 % bound"
        text += f", {bound} {show(estimate.upper_99)}"
    text += f" ({NOT_CALIBRATED})" if estimate.range_not_calibrated else ""
    return text + (f", {level_name(estimate.level)}" + ("" if estimate.in_domain else ", OUT OF DOMAIN"))


def level_name(level: resources_pb2.EstimateLevel.ValueType) -> str:
    """Returns what an estimate is based on, e.g. graph."""
    return resources_pb2.EstimateLevel.Name(level).removeprefix("ESTIMATE_LEVEL_").lower()


def describe_job(job: scheduling_pb2.Job, enforcements: Sequence[str]) -> list[tuple[str, str]]:
    """Returns labelled lines about one job.

    Args:
        job: The job.
        enforcements: What the job's node can enforce; empty = nothing or unknown.
    """
    lines = [
        ("job", f"{job.job_id}  {job.spec.name}" + (f"  tenant {job.spec.tenant}" if job.spec.tenant else "")),
        ("owner", job.spec.owner),
        ("phase", phase_name(job) + (f" ({job.exit_class}, exit {job.exit_code})" if job.exit_class else "")),
        ("ended", job.exit_detail),
        ("paused", pause_text(job, system_clock.now_ms()).removeprefix("paused ") if job.HasField("pause") else ""),
        ("reason", coded_reason(job.reason)),
        ("command", shlex.join(job.spec.command)),
        ("ranks", _ranks_text(job)),
        ("servers", _servers_text(job)),
        (
            "steps",
            f"{steps_done_text(job)} of {known_steps(job) or 'an unknown number'}"
            + (f", loss {job.loss:.4g}" if job.loss else ""),
        ),
        *(training_end_lines(job) if job.phase not in ENDED or job.training_end.reached else ()),
        ("attempt", f"{job.attempt}, restarts {job.restarts}, out of memory {job.out_of_memory_count}"),
        ("times", _times_text(job)),
        ("placed", ", ".join(f"{a.gpu_id} (rank {a.rank})" for a in job.assignments) + f" on {_nodes_text(job)}"),
        *queue_lines(job, system_clock.now_ms()),
        *_memory_lines(job, enforcements),
        *_speed_lines(job),
        *step_time_lines(job),
        *unusual_lines(job),
        *neighbour_lines(job),
    ]
    if not job.assignments:
        lines = [line for line in lines if line[0] != "placed"]
    return [line for line in lines if line[1]]


def _ranks_text(job: scheduling_pb2.Job) -> str:
    if not job.spec.ranks:
        return ""
    replaced = f", {job.stragglers_replaced} replaced because it was too slow" if job.stragglers_replaced else ""
    return f"{len(job.assignments) or job.spec.ranks} processes, one per GPU{replaced}"


def _servers_text(job: scheduling_pb2.Job) -> str:
    servers = job.spec.servers
    if not job.spec.HasField("servers"):
        return ""
    cores = agreed(f", {servers.cpu_cores:g} CPU core(s) each") if servers.cpu_cores else ""
    memory = (
        f", {quantities.format_gib(servers.host_memory_bytes)} of host memory each" if servers.host_memory_bytes else ""
    )
    command = f": {shlex.join(servers.command)}" if servers.command else ""
    return agreed(f"{job.servers or servers.count} parameter server(s)") + f"{cores}{memory}{command}"


def _nodes_text(job: scheduling_pb2.Job) -> str:
    return ", ".join(job.node_ids) or job.node_id


def _times_text(job: scheduling_pb2.Job) -> str:
    parts = [f"submitted {system_clock.iso_utc(job.submitted_at_ms)}"]
    if job.first_started_at_ms:
        parts.append(f"first started {system_clock.iso_utc(job.first_started_at_ms)}")
    if job.paused_ms:
        parts.append(f"paused for {quantities.format_duration(job.paused_ms)} in sum")
    if job.finished_at_ms:
        parts.append(f"ended {system_clock.iso_utc(job.finished_at_ms)}")
    return ", ".join(parts)


def _memory_lines(job: scheduling_pb2.Job, enforcements: Sequence[str]) -> list[tuple[str, str]]:
    lines = [
        ("memory", f"predicted {estimate_text(prediction.memory_bytes, 'bytes')} on {prediction.device}")
        for prediction in job.predictions
        if prediction.HasField("memory_bytes")
    ]
    if job.memory_reserved_bytes:
        lines.append(("", f"reserved {quantities.format_gib(job.memory_reserved_bytes)}"))
        is_watched = MEMORY_WATCHDOG in enforcements
        lines.append(("", f"enforced by {MEMORY_WATCHDOG}" if is_watched else "not enforced"))
    if job.memory_peak_bytes:
        lines.append(("", f"measured peak {quantities.format_gib(job.memory_peak_bytes)}"))
    lines += [("", text) for text in autopsy_texts(job.memory_autopsy)] if job.HasField("memory_autopsy") else []
    if job.memory_floor_bytes:
        floor = quantities.format_gib(job.memory_floor_bytes)
        lines.append(("", f"required {floor}, raised after an out-of-memory end"))
    return [("memory" if index == 0 else "", text) for index, (_, text) in enumerate(lines)]


def autopsy_texts(autopsy: scheduling_pb2.MemoryAutopsy) -> list[str]:
    """Returns how a job ran out of device memory: what was expected, what happened, and with whom."""
    size = quantities.format_gib
    predicted = f"predicted {size(autopsy.predicted_bytes)}, at most {size(autopsy.predicted_upper_99_bytes)}"
    predicted = predicted if autopsy.predicted_bytes else "nothing was predicted"
    used = f"used {size(autopsy.peak_bytes)}" if autopsy.peak_bytes else "its use was not seen"
    others = ", ".join(autopsy.co_located_job_ids)
    left = f"{size(autopsy.available_bytes)} left to it"
    batch = f"{autopsy.micro_batch_size} samples at once"
    texts = [
        f"attempt {autopsy.attempt} ran out of it on {autopsy.gpu_id}, which has {size(autopsy.gpu_memory_bytes)}",
        f"{predicted}, reserved {size(autopsy.reserved_bytes)}, {used}, {left}, {batch}",
        f"co-located then: {others or 'no other job'}",
        autopsy.detail,
    ]
    if autopsy.micro_batch_size_max:
        texts.append(f"at most {autopsy.micro_batch_size_max} samples at once from now on")
    return [text for text in texts if text]


def unusual_lines(job: scheduling_pb2.Job) -> list[tuple[str, str]]:
    """Returns why predictions of a job are out of domain, as labelled lines."""
    return [
        ("unusual", f"{text} ({prediction.device})")
        for prediction in job.predictions
        for text in prediction.utilization_ratio.unusual_features
    ]


def _speed_lines(job: scheduling_pb2.Job) -> list[tuple[str, str]]:
    lines = []
    for prediction in job.predictions:
        if prediction.HasField("utilization_ratio"):
            text = estimate_text(prediction.utilization_ratio, "ratio")
            lines.append(("utilization", f"predicted {text} on {prediction.device}"))
        if prediction.HasField("step_ms"):
            lines.append(("step", f"predicted {estimate_text(prediction.step_ms, 'ms')} on {prediction.device}"))
    if job.utilization_ratio:
        lines.append(("utilization", f"measured {quantities.format_percent(job.utilization_ratio)}"))
    if job.step_ms:
        alone = f", alone {quantities.format_ms(job.solo_step_ms)}" if job.solo_step_ms else ""
        lines.append(("step", f"measured {quantities.format_ms(job.step_ms)}{alone}"))
    if job.spec.max_slowdown_ratio:
        lines.append(("slowdown", f"accepted up to {quantities.format_slowdown(job.spec.max_slowdown_ratio)}"))
    for kind, when in (("predicted", " at its start"), ("measured", "")):
        text = _optional_slowdown(job, f"{kind}_slowdown_ratio")
        lines += [("slowdown", f"{kind} {text}{when}")] if text != "-" else []
    return lines


def pair_basis(other: scheduling_pb2.CoLocatedJob) -> str:
    """Returns the basis of a prediction for two co-located jobs, e.g. measured 3 times."""
    times = other.times_measured
    if times:
        return "measured once" if times == 1 else f"measured {times} times"
    return _BASES.get(other.level, level_name(other.level))


_BASES = {
    resources_pb2.ESTIMATE_LEVEL_OBSERVED: "measured",
    resources_pb2.ESTIMATE_LEVEL_SOLO_KNOWN: "both known alone",
    resources_pb2.ESTIMATE_LEVEL_GRAPH: "graph only",
    resources_pb2.ESTIMATE_LEVEL_FALLBACK: "device peaks only",
}


def neighbour_lines(job: scheduling_pb2.Job) -> list[tuple[str, str]]:
    """Returns the jobs that share a job's GPUs, and what would tell how much they slow it down, as labelled lines."""
    lines = [("shares with", neighbour_text(other)) for other in job.co_located_jobs]
    is_to_be_measured = job.reason.code in _BEFORE_A_MEASUREMENT
    if lines and job.step_ms and not job.solo_step_ms and not is_to_be_measured:
        others = " ".join(other.job_id for other in job.co_located_jobs)
        lines.append(("to learn it", _LEARN_SLOWDOWN.format(others=others)))
    return lines


_BEFORE_A_MEASUREMENT = frozenset({"STARTS_TO_BE_MEASURED", "IS_MEASURED"})
_LEARN_SLOWDOWN = (
    "a step of this job was never measured alone, so that nothing says by how much it is slowed down; "
    "`cotenant hold --stop {others}` until a step alone is shown here, then `cotenant release {others}`"
)


def neighbour_text(other: scheduling_pb2.CoLocatedJob) -> str:
    """Returns the predicted and measured slowdowns of two co-located jobs."""
    parts = []
    if other.HasField("predicted_slowdown_ratio"):
        upper = quantities.format_slowdown(other.predicted_slowdown_upper_ratio)
        text = quantities.format_slowdown(other.predicted_slowdown_ratio)
        parts.append(f"predicted {text} (at most {upper}, {pair_basis(other)})")
    if other.HasField("caused_slowdown_ratio"):
        parts.append(f"{other.job_id} is slowed down by {quantities.format_slowdown(other.caused_slowdown_ratio)}")
    if other.HasField("measured_slowdown_ratio"):
        parts.append(f"measured {quantities.format_slowdown(other.measured_slowdown_ratio)}")
    return f"{other.job_id}: slowdown " + (", ".join(parts) or "unknown")
