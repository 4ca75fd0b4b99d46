"""Which of the numbers of one line count optimizer steps, and which are settings, speeds or moves of an environment."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cotenant_agent.progress_reading.batch_counters import rank_of_counter
from cotenant_agent.progress_reading.progress_recognition import is_other_work
from cotenant_agent.progress_reading.step_counting import PrintedStep

_PASSES = re.compile(r"(?i)\biter(?:ation)?\W*$")
_STEP_ALONE = re.compile(r"(?i)\W*step\W*")

# As a search over settings prints each of its trials: `parameters: {'width': 64, 'batch': 32`, `Namespace(iter=5`.
_IN_SETTINGS = re.compile(
    r"(?i)\b(?:(?:hyper[ _-]?)?param(?:eter)?s|hparams|config(?:uration)?|settings|args|namespace)[\"']?"
    r"\s{0,2}[:=]?\s{0,2}[({\[][^)}\]\r\n]{0,200}$"
)
_OF_SPEED = re.compile(r"(?i)\bfps[ _/](?:step|iter)[:= ]{0,3}$")
_GLOBAL_STEP = re.compile(r"(?i)\bglobal[_ ]?step$")
# What an agent has collected in its environment up to a move, as CleanRL prints it.
_RETURNS = re.compile(
    r"(?i)^[,;| ]{1,4}(?:mean[_ ])?(?:episod(?:e|ic)[_ ](?:return|reward|length)|ep[_ ](?:rew|ret|len))"
)


def is_no_step(label: str, before: str, behind: str) -> bool:
    """Whether what stands around a number says that it counts no step of training.

    Args:
        label: The words right before it.
        before: The line up to it, with what may be other numbers.
        behind: What follows it.
    """
    if is_other_work(label) or _IN_SETTINGS.search(before) or _OF_SPEED.search(before):
        return True
    return bool(_GLOBAL_STEP.search(label)) and _RETURNS.search(behind) is not None


def surest_of(shown: Sequence[PrintedStep], steps_total: int) -> list[int]:
    """Returns which numbers of one line surely count optimizer steps: out of the stated ones, or by a word.

    Args:
        shown: The numbers in their order.
        steps_total: What the job states; 0 = nothing.
    """
    places = range(len(shown))
    if stated := [place for place in places if 0 < steps_total == shown[place].total]:
        return stated
    ranks = [rank_of_counter(item.label) for item in shown]
    return [place for place in places if ranks[place] == max(ranks) and not _is_part_of_step(shown[place:])]


def _is_part_of_step(shown: Sequence[PrintedStep]) -> bool:
    """Whether the first number counts the passes of which steps are made: `iter 48 step 12`, as LitGPT prints it."""
    if len(shown) < 2 or _PASSES.search(shown[0].label) is None:
        return False
    return _STEP_ALONE.fullmatch(shown[1].label) is not None and 0 < shown[1].step <= shown[0].step
