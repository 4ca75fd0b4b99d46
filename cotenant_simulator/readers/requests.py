"""What the owners of a trace's jobs consent to; traces do not contain it."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler_service.core.records import DEFAULT_MAX_SLOWDOWN_RATIO, JobRequest, Share

RESTARTS_MAX = 1_000
"""Machines may fail often in a long trace; that ends no job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Consent:
    """How far jobs share.

    Attributes:
        share: Which jobs they consent to share with.
        max_slowdown_ratio: The slowdown that they accept when co-located; 1 = twice as long.
        no_trial: They never share on trial.
    """

    share: Share = Share.SAFE
    max_slowdown_ratio: float = DEFAULT_MAX_SLOWDOWN_RATIO
    no_trial: bool = False

    def request(
        self, job_id: str, *, key: str, gpus: int, batch: int, steps_total: int, may_share: bool = True
    ) -> JobRequest:
        """Return the request of one job."""
        return JobRequest(
            job_id=job_id,
            key=key,
            gpus=gpus,
            global_batch_size=batch,
            steps_total=steps_total,
            share=self.share if may_share else Share.NEVER,
            max_slowdown_ratio=self.max_slowdown_ratio,
            restart_limit=RESTARTS_MAX,
            no_trial=self.no_trial,
        )
