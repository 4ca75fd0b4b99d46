"""What can go wrong with an engine.

EngineError
├── EngineUnreachableError   it does not answer, or not in a form that is understood
└── EngineRefusedError       it answers, and does not do what it was asked
"""

from __future__ import annotations

from cotenant.errors import CotenantError


class EngineError(CotenantError):
    """Something is wrong with the engine that is not ours."""


class EngineUnreachableError(EngineError):
    """It does not answer, or not in a form that is understood."""


class EngineRefusedError(EngineError):
    """It answers, and does not do what it was asked."""
