"""What an interpreter holds that has only imported the framework: an agent's stand-in devices count beyond that.

Import it before anything else of ours, so that what other modules hold is not part of it.
"""

from __future__ import annotations

from typing import Final

import torch  # noqa: F401 (what is measured)

from cotenant_profiler.resident_memory import resident_bytes

BASELINE_BYTES: Final = resident_bytes()
"""Resident memory right after the import."""
