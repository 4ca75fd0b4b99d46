"""What the predictor asks of a job's settings beyond the record itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cotenant.job_settings import BATCH_SIZE_MAX, JobSettings, JobSettingsError
from predictor_service.errors import InvalidBatchError, InvalidSettingError

OPTIMIZER_SLOTS: Final[Mapping[str, int]] = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}
"""Numbers kept per parameter in addition to weight and gradient."""


def check_settings(settings: JobSettings) -> JobSettings:
    """Returns settings that can be predicted from.

    Raises:
        InvalidBatchError: The batch is outside 1 to 1,000,000.
        InvalidSettingError: Another setting is outside its range.
    """
    try:
        return settings.checked()
    except JobSettingsError as error:
        raise invalid_setting(error) from error


def invalid_setting(error: JobSettingsError) -> InvalidBatchError | InvalidSettingError:
    """Returns the refusal of a request with such a setting."""
    kind = InvalidBatchError if error.field == "global_batch_size" else InvalidSettingError
    return kind(error.message, remedy=error.remedy, details={"field": error.field})


def check_batch_size(batch_size: int, name: str) -> None:
    """Refuses a batch size outside the accepted range.

    Args:
        batch_size: Samples per step.
        name: The field that holds it, for the message.

    Raises:
        InvalidBatchError: Outside 1 to 1,000,000.
    """
    if not 1 <= batch_size <= BATCH_SIZE_MAX:
        raise InvalidBatchError(
            f"{name} is {batch_size}", remedy=f"use an integer from 1 to {BATCH_SIZE_MAX}", details={"field": name}
        )
