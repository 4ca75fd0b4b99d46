"""What a script names that changes its steps later on, after those that a capture sees.

What a loop will do cannot be read off a run of two steps. The names of classes, functions, variables and arguments in
the script hint at it. They prove nothing, and make a note only.
"""

# ruff: noqa: ANN401 (objects of the script: nothing of them has a type here)
from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from types import CodeType, ModuleType
from typing import Any

_LENGTHS = re.compile(
    r"curriculum|seq(?:uence)?s?_?len(?:gth)?s?_?(?:warm|sched|ramp|grow)|(?:warm|ramp|grow)\w{0,20}_?seq(?:uence)?_?len",
    re.IGNORECASE,
)
_QUANTIZES = re.compile("prepare_qat")
_QUANTIZERS = ("torch.ao.quantization", "torch.quantization", "torchao.quantization")
_NAMES_MAX = 20_000
_NAME_CHARACTERS_MAX = 60


def are_quantized(networks: list[Any]) -> bool:
    """Whether networks hold fake quantizers: those look at values, which no export lets them."""
    module = sys.modules.get("torch.ao.quantization.fake_quantize")  # torch imports it, where it has it
    kind = getattr(module, "FakeQuantizeBase", ())
    return any(isinstance(part, kind) for network in networks for part in network.modules())


def named_changes() -> dict[str, str]:
    """Returns by which name the script says that lengths grow, and that it quantizes; empty = it says no such thing."""
    own = vars(sys.modules.get("__main__", sys))
    try:
        names = list(_names_of(own))
        lengths = next(filter(_LENGTHS.search, names), "")
        held = (name for name, each in list(own.items())[:_NAMES_MAX] if _is_quantizer(each))
        quantizer = next(held, "") or next(filter(_QUANTIZES.search, names), "")
    except Exception:  # of what stands for something else in a script: no capture is given up for a note
        return {"growing_lengths": "", "later_quantizer": ""}
    return {"growing_lengths": lengths[:_NAME_CHARACTERS_MAX], "later_quantizer": quantizer[:_NAME_CHARACTERS_MAX]}


def _is_quantizer(value: Any) -> bool:
    """Whether something trains with fake quantizers, or is the module of all that does: others quantize at the end."""
    name, origin = (str(getattr(value, each, "")) for each in ("__name__", "__module__"))
    if isinstance(value, ModuleType):
        return name.startswith(_QUANTIZERS)
    return origin.startswith(_QUANTIZERS) and ("qat" in name or "FakeQuant" in name)


def _names_of(own: Mapping[str, Any]) -> Iterator[str]:
    """Names of a script, those in its functions and methods too, and the words of its command line."""
    yield from (word.lstrip("-").replace("-", "_") for word in sys.argv[1:] if word.startswith("-"))
    seen = 0
    for name, value in list(own.items()):
        for each in (name, type(value).__name__, *_inside(value, own.get("__name__"))):
            seen += 1
            if seen > _NAMES_MAX:
                return
            yield each


def _inside(value: Any, main: Any) -> Iterator[str]:
    """Names in a function or class of the script, and of the settings in a record such as of parsed arguments."""
    if type(value).__name__ == "Namespace":
        yield from map(str, vars(value))
    if getattr(value, "__module__", None) != main:
        return
    functions = [value, *vars(value).values()] if isinstance(value, type) else [value]
    for each in functions:
        code = getattr(each, "__code__", None)
        if isinstance(code, CodeType):
            yield from (*code.co_names, *code.co_varnames)
