"""Spares exports of networks what torch does anew for each one: of a small network's, two thirds of the time.

For every export torch looks at the signature of each ONNX function that it knows, which depends on nothing but the
version of the operators.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from typing import Any, Final

_REGISTRATION: Final = "torch.onnx._internal.exporter._registration"
_CONSTANTS: Final = "torch.onnx._constants"
_FILLED: Final = "from_torchlib"


def load_exporter() -> None:
    """Import what exports networks and let it look at its functions, so that what is forked afterwards need not."""
    # Nothing that torch promises: a version without it is only slower.
    with contextlib.suppress(ImportError, AttributeError):
        registration, constants = map(importlib.import_module, (_REGISTRATION, _CONSTANTS))
        remember_operators()
        registration.ONNXRegistry.from_torchlib(opset_version=constants.ONNX_DEFAULT_OPSET)


def remember_operators() -> None:
    """Let torch look at each of its functions once from now on, where a module has imported what exports networks."""
    registry = getattr(sys.modules.get(_REGISTRATION), "ONNXRegistry", None)
    filled = vars(registry).get(_FILLED) if registry is not None else None
    # Nothing that torch promises either.
    if registry is None or not isinstance(filled, classmethod) or filled.__func__.__module__ == __name__:
        return
    fill, known = filled.__func__, dict[tuple[Any, ...], Any]()

    def fill_once(kind: Any, *version: Any, **named_version: Any) -> Any:
        key = (*version, *named_version.values())
        if key not in known:
            known[key] = fill(kind, *version, **named_version)
        own = kind()
        vars(own).update(vars(known[key]), functions={name: [*found] for name, found in known[key].functions.items()})
        return own

    setattr(registry, _FILLED, classmethod(fill_once))
