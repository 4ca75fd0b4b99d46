"""Sizes, times and ratios as people write and read them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

from cotenant.client_errors import InputError

Format: TypeAlias = Callable[[float], str]

_UNITS = {
    "": 1, "B": 1,
    "K": 2**10, "KIB": 2**10, "M": 2**20, "MIB": 2**20, "G": 2**30, "GIB": 2**30, "T": 2**40, "TIB": 2**40,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
}  # fmt: skip
SIZE_MAX_BYTES = 2**60
DURATION_MAX_MS = 10 * 365 * 86_400_000
# As Slurm writes it; with two numbers only it would be minutes there and hours elsewhere.
_CLOCK = re.compile("(?:([0-9]{1,4})-)?([0-9]{1,5}):([0-5][0-9]):([0-5][0-9])")
_DURATION_REMEDY = "write it like 500ms, 45s, 90m, 2h, 1h30m, 3d or 1-12:00:00"
_NUMBER = r"([0-9]{1,9}(?:\.[0-9]{1,3})?)"
_DURATION = re.compile(rf"(?:{_NUMBER}d)?(?:{_NUMBER}h)?(?:{_NUMBER}m)?(?:{_NUMBER}s)?(?:{_NUMBER}ms)?")
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(text: str | int) -> int:
    """Reads a size such as 512MiB, 1.5GiB or 2000000.

    Raises:
        InputError: Not a size, or a number without a unit that as bytes is no memory: `8` was meant as 8 GiB.
    """
    match = _SIZE.fullmatch(str(text))
    factor = _UNITS.get(match.group(2).upper()) if match else None
    if match is None or factor is None:
        raise InputError(f"{text!r} is not a size", remedy="write it like 512MiB or 1.5GiB")
    size = float(match.group(1)) * factor
    if not match.group(2) and 0 < size < _UNITS["M"]:
        raise InputError(f"{text!r} has no unit, and would be {size:g} bytes", remedy=f"write one, such as {text}GiB")
    if size > SIZE_MAX_BYTES:
        raise InputError(f"{text!r} is more than any machine has", remedy="write it like 512MiB or 1.5GiB")
    return int(size)


def parse_duration_ms(text: str) -> int:
    """Reads a duration such as 500ms, 45s, 90m, 2h, 1h30m, 3d or (days, hours, minutes, seconds) 1-12:00:00.

    Returns:
        Milliseconds.

    Raises:
        InputError: Not a duration.
    """
    match = _DURATION.fullmatch(text.strip().lower()) or _CLOCK.fullmatch(text.strip())
    if match is None or not any(match.groups()):
        raise InputError(f"{text!r} is not a duration", remedy=_DURATION_REMEDY)
    days, hours, minutes, seconds, milliseconds = (float(part or 0) for part in (*match.groups(), 0)[:5])
    duration_ms = round((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1_000 + milliseconds)
    if not 0 < duration_ms <= DURATION_MAX_MS:
        raise InputError(f"{text!r} is not between 1 ms and 10 years", remedy=_DURATION_REMEDY)
    return duration_ms


def format_gib(size_bytes: float) -> str:
    """Returns a size in GiB with two digits after the point, e.g. 0.52 GiB."""
    return f"{size_bytes / 2**30:.2f} GiB"


def format_percent(ratio: float) -> str:
    """Returns a ratio as whole percent, e.g. 0.183 -> 18 %."""
    return f"{ratio * 100:.0f} %"


def format_count(number: int) -> str:
    """Returns a count of 0 or more with one digit behind the point from a thousand on, as `11.2 M`."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.1f} {letter}"
    return str(number)


def format_slowdown(ratio: float) -> str:
    """Returns a slowdown as signed percent, e.g. 0.2 -> +20 %."""
    return f"{ratio * 100:+.0f} %"


def format_duration(duration_ms: float) -> str:
    """Returns a duration in the largest two fitting units, e.g. 75 s -> 1m15s."""
    seconds = int(duration_ms / 1000)
    if seconds < 60:
        return f"{max(0, seconds)}s"
    if seconds < 3600:
        return f"{seconds // 60}m{seconds % 60:02d}s"
    if seconds < 86_400:
        return f"{seconds // 3600}h{seconds % 3600 // 60:02d}m"
    return f"{seconds // 86_400}d{seconds % 86_400 // 3600:02d}h"


def format_ms(duration_ms: float) -> str:
    """Returns milliseconds with three significant digits, e.g. 4.27 ms."""
    digits = 2 if duration_ms < 10 else 1 if duration_ms < 100 else 0
    return f"{duration_ms:.{digits}f} ms"


def format_named(name: str, value: float) -> str:
    """Returns a quantity whose unit ends its name in words, e.g. gpu_memory_bytes -> gpu memory 80.00 GiB."""
    words, _, unit = name.rpartition("_")
    form = _FORMS.get(unit) if words else None
    text = form(value) if form is not None else f"{value:,.6g}"
    return f"{(words if form is not None else name).replace('_', ' ')} {text}"


def _format_short(duration_ms: float) -> str:
    return format_ms(duration_ms) if duration_ms < 1_000 else format_duration(duration_ms)


_FORMS: Mapping[str, Format] = MappingProxyType({"bytes": format_gib, "ratio": format_percent, "ms": _format_short})
