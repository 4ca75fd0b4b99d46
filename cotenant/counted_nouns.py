"""Nouns that agree with the number in front of them: texts are written once, with `(s)` where the number decides."""

from __future__ import annotations

import re

_MARK = "(s)"
# A number, at most two words such as `other` or `usable`, the noun; a verb right behind agrees as well.
_COUNTED = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)((?: [A-Za-z]\w*){0,2} \w+)\(s\)( are| were| have)?(?!\w)")
_SINGULAR = {" are": " is", " were": " was", " have": " has"}


def agreed(text: str) -> str:
    """Returns a text in which nouns marked with `(s)` agree with their numbers: 1 GPU is, 2 GPUs are.

    Args:
        text: E.g. "1 usable GPU(s) are free"; without a number before the noun it is a plural.
    """
    if _MARK not in text:
        return text
    return _COUNTED.sub(_one, text).replace(_MARK, "s")


def _one(found: re.Match[str]) -> str:
    number, words, verb = found[1], found[2], found[3] or ""
    return f"{number}{words}{_SINGULAR.get(verb, '')}" if number == "1" else f"{number}{words}s{verb}"
