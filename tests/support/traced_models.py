"""Stands in for tracing in the child process of the timm table: rows by rule, slow and deadly models by name."""

from __future__ import annotations

import os
import time

from predictor_service.importers.timm_table import Row, WantedModel


def trace(item: WantedModel) -> Row | str:
    """A row of invented features; `slow` sleeps, `deadly` ends its process, `unknown` fails."""
    if item.name == "slow":
        time.sleep(600)
    if item.name == "deadly":
        os._exit(9)
    if item.name == "unknown":
        return "RuntimeError: Unknown model"
    side = item.side or 224
    peaks = {f"step_peak_bytes_at_batch_{batch}": 1000 + 50 * batch for batch in (1, 2, 4)}
    features = {"parameter_bytes": 4000, "buffer_bytes": 8, "input_bytes_per_sample": 3 * side * side * 4}
    return {"model": item.name, "input_shape": f"3x{side}x{side}", "is_default": int(side == 224), **features, **peaks}
