"""What the files of the killed jobs prove: steps that were done, and processes of one job that lived at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvidence:
    """What one job's file says.

    Attributes:
        attempts: Processes that began.
        is_twice: Two of them lived at once.
        missing_steps: How many of the job's steps were not done.
        has_ended: One of them did the last step.
    """

    attempts: int
    is_twice: bool
    missing_steps: int
    has_ended: bool


def read_evidence(path: Path, *, steps_total: int) -> JobEvidence:
    """Read the file of one job; a job that never began has none.

    Args:
        path: As `kills_job` writes it.
        steps_total: Steps of the job.

    Returns:
        What it proves. A process that writes after its successor began has overlapped with it.
    """
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    fences = [words[1] for words in lines]
    turns = [fence for place, fence in enumerate(fences) if place == 0 or fences[place - 1] != fence]
    done = {int(words[2]) for words in lines if words[0] == "step"}
    return JobEvidence(
        attempts=sum(words[0] == "start" for words in lines),
        is_twice=len(set(turns)) < len(turns) or any(words[0] == "twice" for words in lines),
        missing_steps=len(set(range(1, steps_total + 1)) - done),
        has_ended=any(words[0] == "end" for words in lines),
    )
