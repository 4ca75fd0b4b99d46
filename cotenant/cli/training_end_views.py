"""When a job reaches its target loss, in words."""

from __future__ import annotations

from cotenant.v1 import scheduling_pb2


def steps_done_text(job: scheduling_pb2.Job) -> str:
    """Returns how many optimizer steps a job has made, for a column; ? = it has finished uncounted."""
    return "?" if job.reason.code == "FINISHED_UNCOUNTED" else str(job.steps_done)


def steps_text(job: scheduling_pb2.Job) -> str:
    """Returns how many optimizer steps a job has, for a column: stated, foreseen (~) or not known (?)."""
    if job.training_end.steps_total:
        return f"~{job.training_end.steps_total}"
    return str(job.spec.steps_total or "?")


def training_end_lines(job: scheduling_pb2.Job) -> list[tuple[str, str]]:
    """Returns when a job with a target loss is expected to end, as labelled lines."""
    if not job.HasField("training_end"):
        return []
    end, target = job.training_end, f"at loss {job.spec.target_loss:.4g}"
    if end.reached:
        return [("ends", f"{target}, which was reached after {end.steps_total:,} steps")]
    if not end.steps_total:
        most = f", after {job.spec.steps_total:,} steps at most" if job.spec.steps_total else ""
        return [("ends", f"{target}{most}; when is not foreseeable yet: {end.unknown_reason}")]
    interval = f"{end.steps_lower:,} to {end.steps_upper:,} at {end.confidence:.0%}"
    doubt = "" if end.reliable else "; the curves disagree, so no policy plans with it"
    return [("ends", f"{target}, after {end.steps_total:,} steps ({interval}), fitted to {end.losses} losses{doubt}")]
