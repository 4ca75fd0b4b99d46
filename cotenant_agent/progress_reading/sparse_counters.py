"""Counters that no word names: `[00025] bce=0.69`, `sailing 014 of 260 | focal=0.2`, `00050 | loss 0.3`.

A training loss stands right behind the number, and before it no word of an epoch, a file or the like. That alone may
still be an epoch or a process, so `StepCounter` takes such a number only where it is printed at equal distances of
several steps from its beginning on, and beyond the epochs that the log or the command states (`stated_epochs`).
"""

from __future__ import annotations

import re

from cotenant_agent.progress_reading.printed_numbers import INTEGER
from cotenant_agent.progress_reading.progress_recognition import STEP_GROUP, is_outer_loop

_LOSSES = (
    r"bce|mse|mae|rmse|nll|nce|ce|kl|elbo|ppl|perplexity|focal|huber|dice|hinge|ctc|mlm|cost|objective|verlust|perte"
    r"|pinball|quantile|triplet|contrastive|info_?nce|xent|cross[_-]?entropy|wasserstein|deviance|p[eé]rdida|perda|perdita|strata|потери|损失|損失|손실"
)
# Right before a loss it is what the number counts, and no kind of loss: `640 samples loss 0.3`.
_UNITS = "(?:samples|images|examples|tokens|frames|records|rows|files|documents|users|pairs|items)"
_OF_TRAINING = (
    rf"(?![a-z _-]{{0,20}}(?:val|test|eval|dev|held[ _-]?out))(?!{_UNITS}\b)(?:(?:train(?:ing)?[ _/-])?(?:{_LOSSES})"
    r"|(?:(?:train(?:ing)?|total|running|avg|average|mean) )?(?:[a-z]{1,12}[ _-]){0,2}loss)"
)
_LOSS = rf"[\[(|:,;-]?\s{{0,4}}[\"']?{_OF_TRAINING}[\"']?\s{{0,2}}[:=\uff1a]?\s{{0,2}}-?[0-9]{{1,9}}[.,][0-9]"
_PREFIX_REACH = 32
_TOTAL = rf" ?(?:/|of|out of|von|sur|de|di|из) {{0,6}}{INTEGER}"
_UNIT = (
    r" (?:(?:gradient|training|optimi[sz]er) )?(?:steps?|iter(?:ation)?s?|updates?|batches)"
    r"(?: (?:done|completed|finished|seen|so far))?"
)
# A digit is looked for first: this is searched in each line that shows nothing else.
_COUNTER = re.compile(
    rf"(?i)(?=[0-9])(?<![\w.,/-])(?<![0-9]:)(?P<{STEP_GROUP}>[0-9][0-9,_]{{0,14}})(?![0-9]|[:.][0-9])"
    rf"(?P<total>{_TOTAL})?(?P<unit>{_UNIT})?[\])]?\s{{0,4}}{_LOSS}"
)
# A line begins, or what logging puts before it has ended; `ep [10]` is something of its own.
_LINE_BEGINS = re.compile(r"(?i)(?:^\s{0,8}|[:|>\]-] |\binfo {1,2})[\[(#@]? {0,8}$")
_STEPS_BEFORE = re.compile(r"(?i)(?<![a-z_])(?:steps|iters|iterations)[\"']?[ :=#]{1,3}$")
_DIGIT = re.compile("[0-9]")
# In the singular it is mostly the number of the present one.
_STATED_EPOCHS = re.compile(
    r"(?i)(?<![a-z])(?:epochs|(?:num|n|max|total)[_-]epoch)\b[\"']?(?:\s{0,2}[:=]\s{0,2}|\s{1,16})([0-9]{1,9})"
    r"(?:\.0{1,6})?(?![\w.])"
    r"|(?<![\w.,/-])([0-9]{1,9})\s(?:training\s)?epochs\b"
)
_NUMBERED_EPOCH = re.compile(r"(?i)\bep(?:och)?s?\b[ :=#\[(]{0,3}[0-9]")
_PERCENT = re.compile(
    rf"(?:^|(?<=[\s(\[]))(?P<{STEP_GROUP}>[0-9]{{1,12}}) {{1,3}}[(\[]?(?P<percent>[0-9]{{1,3}})(?:\.[0-9]{{1,6}})?%"
)


def find_percent_counter(line: str, steps_total: int) -> re.Match[str] | None:
    """Returns where a line shows a number and what part of the stated steps it is, as `(15 30%) 2.3`; None = nowhere.

    Args:
        line: One without any number whose words name it.
        steps_total: What the job states; 0 = nothing, and then no percentage tells anything.
    """
    for found in _PERCENT.finditer(line) if steps_total > 0 else ():
        step, percent = int(found[STEP_GROUP]), int(found["percent"])
        # Scripts cut or round it.
        if step <= steps_total and abs(100 * step - percent * steps_total) <= steps_total:
            return found
    return None


def find_sparse_counter(line: str) -> re.Match[str] | None:
    """Returns where a line shows a number that may be a step, by the loss behind it; None = nowhere.

    Args:
        line: One without any number whose words name it.
    """
    found = _COUNTER.search(line)
    if found is None:
        return None
    before = line[: found.start()]
    is_known = found["total"] or found["unit"] or _STEPS_BEFORE.search(before[-_PREFIX_REACH:])
    is_named = not is_known and _LINE_BEGINS.search(before[-_PREFIX_REACH:]) is None
    return None if is_named or is_outer_loop(_DIGIT.split(before)[-1]) else found


def stated_epochs(text: str) -> int:
    """Returns how many epochs a text says that there are, as settings are printed or given; 0 = it does not say.

    Args:
        text: Of a log, or a command; of several numbers the largest is meant, since some epochs are those of a warm-up.
    """
    return max((int(before or behind) for behind, before in _STATED_EPOCHS.findall(text)), default=0)


def is_of_epoch(before: str) -> bool:
    """Whether a number stands behind that of an epoch: `Epoch 1/6: 25%| 5/20 loss=0.4`."""
    return _NUMBERED_EPOCH.search(before) is not None
