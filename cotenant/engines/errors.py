"""What can go wrong with an engine.

EngineError
├── EngineUnreachableError   it does not answer, or not in a form that is understood
│   ├── EngineDeniedError    it does not let us read it
│   └── EngineTakenError     another controller decides in it
└── EngineRefusedError       it answers, and does not do what it was asked
    └── EngineForbiddenError it does not let us do that
"""

from __future__ import annotations

from cotenant.errors import CotenantError


class EngineError(CotenantError):
    """Something is wrong with the engine that is not ours."""


class EngineUnreachableError(EngineError):
    """It does not answer, or not in a form that is understood."""


class EngineDeniedError(EngineUnreachableError):
    """It refuses our identity or our rights: asking again changes nothing until an administrator grants them."""


class EngineTakenError(EngineUnreachableError):
    """Another controller decides in it; this one waits until that one has ended."""


class EngineRefusedError(EngineError):
    """It answers, and does not do what it was asked."""


class EngineForbiddenError(EngineRefusedError):
    """It does not let us do what it was asked."""
