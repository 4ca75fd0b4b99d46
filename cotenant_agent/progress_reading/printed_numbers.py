"""Whole numbers as scripts print them: plain, or with their thousands parted, as in `2,000`, `2_000`, `2 000`, `2.000`.

Commas, underscores, apostrophes and blanks that do not break part thousands wherever groups of three follow. A point
or a plain blank does where it parts the number behind `/`, `of` or `von` as well: alone it is a decimal, or columns.
"""

from __future__ import annotations

import re

_SPACES = "\u00a0\u2009\u202f"
_PARTS = f",_'\u2019{_SPACES}"
_OUT_OF = " {0,2}(?:/|out of|of|von|van|sur|de|di|av|af|z|из) {0,8}"
_ALIKE = "|".join(f"(?:{mark}[0-9]{{3}}){{1,4}}" for mark in (",", "_", "['\u2019]", f"[{_SPACES}]"))
_WITH_POINTS = r"[0-9]{1,3}(?:\.[0-9]{3}){1,4}(?![.,]?[0-9]| ?[a-z%])"
_WITH_BLANKS = r"[0-9]{1,3}(?: [0-9]{3}){1,4}(?![.,]?[0-9])"
_PARTED = (
    rf"[0-9]{{1,3}}(?:{_ALIKE}|(?:\.[0-9]{{3}}){{2,4}}|\.[0-9]{{3}}(?={_OUT_OF}{_WITH_POINTS})"
    rf"|(?: [0-9]{{3}}){{1,4}}(?={_OUT_OF}{_WITH_BLANKS}))"
)
LOOSE = f"[0-9][0-9.{_PARTS}]{{0,18}}"
"""What may be such a number, for looking ahead."""
INSIDE = f"(?<![0-9][{_PARTS}])"
"""Where no number goes on."""
_UNIT = r"%|x|[mun]?s|secs?|seconds?|min|it(?! \[[0-9:])|hz|[kmg]i?b"
INTEGER = rf"(?:{_PARTED}|[0-9]{{1,15}})"
NUMBER = rf"{INTEGER}(?![0-9]|[.{_PARTS}][0-9]|e[+-]| ?(?:{_UNIT})\b)"
"""A number without a unit: what has one is a measurement."""
_TOTAL = re.compile(
    rf"(?i){_OUT_OF}(?:(?P<parted>[0-9]{{1,3}}(?:{_ALIKE})|{_WITH_POINTS})"
    rf"|(?P<plain>[0-9]{{1,15}})(?P<columns>(?: [0-9]{{3}}){{1,4}}(?![.,]?[0-9]))?)(?![0-9])"
)
_MARKS = re.compile(f"[. {_PARTS}]")
_GROUPED = re.compile(rf"[0-9]{{1,3}}([. {_PARTS}])[0-9]{{3}}(?:\1[0-9]{{3}})*")


def integer_of(text: str) -> int:
    """Returns a printed number; -1 = that is none.

    Args:
        text: Digits, with their thousands parted or not.
    """
    text = text.strip()
    text = _MARKS.sub("", text) if _GROUPED.fullmatch(text) else text
    return int(text) if text.isascii() and text.isdigit() else -1


def total_behind(text: str, end: int, step: int) -> int:
    """Returns the number out of which another one is counted, as the 60 of `27/60`; 0 = none.

    Args:
        text: A line.
        end: Where the counted number ends in it.
        step: The counted number; one above 12 shows that `/12 000` is no 12 with a column behind.
    """
    found = _TOTAL.match(text, end)
    if found is None:
        return 0
    parted, plain, columns = found.groups()
    if parted:
        return integer_of(parted)
    goes_on = columns is not None and len(plain) < len("1000") and step > int(plain)
    return int(plain + columns.replace(" ", "")) if goes_on else int(plain)


def forms_of(number: int) -> str:
    """Returns an expression of the ways in which a number is printed."""
    marks = ("", *_PARTS, ".", " ") if number >= 1000 else ("",)
    return "|".join(re.escape(f"{number:,}".replace(",", mark)) for mark in marks)
