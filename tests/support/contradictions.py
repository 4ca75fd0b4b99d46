"""When what was measured with doubt contradicts a sure prediction: the predictor and the scheduler go by one rule."""

from __future__ import annotations

from typing import Final

CONTRADICTIONS: Final = ((-0.5, False), (-0.02, False), (0.02, True), (3.0, True))
"""(Slowdown measured above the upper end that the answer about the pair states, whether that contradicts it)."""
