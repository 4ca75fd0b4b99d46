"""What parameters of policies have in common: descriptions, and checks that refuse values without a meaning."""

from __future__ import annotations

from numbers import Real

from scheduler_service.core.errors import PolicyParameterError

AGING_DESCRIPTION = "jobs submitted so long ago go first and no job passes them, in ms; 0 = never, long jobs may starve"

WEIGHED_JOBS_DESCRIPTION = "different jobs that may find no running job to share with before a round looks no further"

TRIAL_MOVES_DESCRIPTION = (
    "a running job may move next to another one on trial, so that a job which must be measured alone gets its GPU"
)

TRIAL_PAUSES_DESCRIPTION = (
    "a running job may be paused for up to a minute, so that one that was never measured is measured on its GPU"
)

UNSHARE_DESCRIPTION = (
    "jobs that share a GPU are moved apart onto idle ones where they gain more together than the move costs"
)


def require_interval(policy: object) -> None:
    """Refuse a policy that is to be asked at the multiples of what is no time.

    Raises:
        PolicyParameterError: Its `interval_ms` is not 0 or more whole milliseconds.
    """
    interval_ms = getattr(policy, "interval_ms", 0)
    is_number = isinstance(interval_ms, Real) and not isinstance(interval_ms, bool)
    if not is_number or interval_ms % 1 != 0 or interval_ms < 0:
        raise PolicyParameterError(f"interval_ms must be 0 or more whole milliseconds, but is {interval_ms!r:.100}")


def require_positive(**parameters: int) -> None:
    """Refuse counts below 1.

    Raises:
        PolicyParameterError: One is below 1.
    """
    for name, value in parameters.items():
        if value < 1:
            raise PolicyParameterError(f"{name} must be at least 1, but is {value}")


def require_not_negative(**parameters: float) -> None:
    """Refuse negative times.

    Raises:
        PolicyParameterError: One is negative.
    """
    for name, value in parameters.items():
        if value < 0:
            raise PolicyParameterError(f"{name} must not be negative, but is {value}")
