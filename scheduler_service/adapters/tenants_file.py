"""The file with the rules for tenants, which the scheduler reads when it starts."""

from __future__ import annotations

from pathlib import Path

from scheduler_service.core.errors import TenantRulesError
from scheduler_service.core.tenants import TenantRules, parse_tenants
from scheduler_service.errors import SettingsError

FILE_LIMIT_BYTES = 1024 * 1024


def read_tenants(path: Path) -> TenantRules:
    """Read the rules for tenants.

    Raises:
        SettingsError: The file cannot be read, is too large, or its rules cannot be.
    """
    try:
        if path.stat().st_size > FILE_LIMIT_BYTES:
            raise SettingsError(
                f"{path} is larger than {FILE_LIMIT_BYTES} bytes; name a file of tenants with --tenants"
            )
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        cause = getattr(error, "strerror", None) or error
        raise SettingsError(f"the tenants in {path} cannot be read: {cause}; correct --tenants") from error
    try:
        return parse_tenants(text)
    except TenantRulesError as error:
        raise SettingsError(f"the tenants in {path} cannot be: {error}") from error
