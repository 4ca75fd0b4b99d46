"""What people touch: the command line, the Python client and the helper for training scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cotenant.predictions import Prediction, fits, predict

__version__ = "0.1.0"
__all__ = ["Prediction", "fits", "predict"]


def __dir__() -> list[str]:
    """Names what is loaded when it is used, too, so that a notebook offers it."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:  # noqa: ANN401 (whatever has the name)
    """Loads what predicts when it is used: a training script that imports `cotenant.job` pays nothing for it."""
    if name in __all__:
        from cotenant import predictions

        return getattr(predictions, name)
    hint = "; it is cotenant_simulator.simulate (docs/notebook.md)" if name == "simulate" else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
