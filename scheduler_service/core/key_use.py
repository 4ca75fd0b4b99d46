"""What living jobs of one key share: what the predictor is asked about once for all of them."""

from __future__ import annotations

from dataclasses import dataclass

from cotenant.job_settings import JobSettings
from scheduler_service.core.copied_record import CopiedRecord
from scheduler_service.core.job_records import JobRecord
from scheduler_service.core.records import Share


@dataclass(frozen=True, kw_only=True)
class KeyUse(CopiedRecord):
    """What living jobs share under one key.

    Attributes:
        jobs: Living jobs with this key.
        global_batch_size: The largest among them.
        gpus: GPU counts asked for.
        may_share: At least one of them ever consented to sharing, so that pairs are worth asking about.
        move_ms: What a move cost the one of them that was moved last; 0 = none was.
    """

    graph_sha256: str
    settings: JobSettings | None
    jobs: int = 0
    global_batch_size: int = 1
    gpus: tuple[int, ...] = ()
    may_share: bool = False
    move_ms: int = 0


def with_job(use: KeyUse | None, job: JobRecord) -> KeyUse:
    """Return what living jobs share under a key once this one is among them."""
    use = use or KeyUse(graph_sha256=job.graph_sha256, settings=job.settings)
    return use.changed(
        jobs=use.jobs + 1,
        global_batch_size=max(use.global_batch_size, job.request.global_batch_size),
        gpus=tuple(sorted({*use.gpus, job.request.gpus, *job.request.allowed_gpus})),
        may_share=use.may_share or job.request.share is not Share.NEVER,
    )


def without_job(use: KeyUse) -> KeyUse:
    """Return what living jobs share under a key once one of them has ended; what it brought stays."""
    return use.changed(jobs=use.jobs - 1)
