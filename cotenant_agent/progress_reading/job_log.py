"""What reads the progress of a job out of its log, as its specification asks for it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from cotenant_agent.progress_reading.log_progress import LogProgress
from cotenant_agent.storage.durable_files import read_integer, read_text


def open_log_progress(
    spec: Mapping[str, object], log: Path, before: object, *, are_several: bool
) -> LogProgress | None:
    """Return what reads the steps in a log; None = they are not looked for there.

    Args:
        spec: Of the attempt.
        log: Its newest file.
        before: What an agent's earlier life has left.
        are_several: The job has several processes.
    """
    pattern = read_text(spec, "progress_regex")
    if not pattern and "steps_total" not in spec:
        return None
    # Of several processes each may count its own samples, or those of all.
    batch_size = 0 if are_several else read_integer(spec, "global_batch_size")
    progress = LogProgress(log, pattern, before, read_integer(spec, "steps_total"), batch_size)
    progress.note_batches(read_integer(spec, "batches_per_step", 1))
    arguments = spec.get("argv")
    progress.note_epochs(shlex.join(map(str, arguments)) if isinstance(arguments, list) else "")
    return progress
