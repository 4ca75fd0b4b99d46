"""What can go wrong inside the pure part.

CoreError
├── InvalidTransition     us: an event met a phase that the table does not know; carries the job's story
├── CodecError            caller: a stored event or snapshot is not of this format
│   └── UnsupportedVersionError   caller: it was written by a newer version
└── PolicyError           caller: an operator's choice of policy cannot be followed
    ├── UnknownPolicyError
    └── PolicyParameterError

PolicySilentError is none of them: it stops a policy that does not answer.
"""

from __future__ import annotations

from collections.abc import Iterable


class CoreError(Exception):
    """Root of every error of the pure part."""


class InvalidTransition(CoreError):  # noqa: N818 - it names what happened, as the state machines we learned from do
    """An event met a job in a phase for which the transition table has no entry: a bug, nothing was changed."""

    def __init__(self, *, job_id: str, phase: str, event_kind: str, story: Iterable[str]) -> None:
        self.job_id = job_id
        self.story = tuple(story)
        lines = "\n  ".join(self.story) or "(no story)"
        super().__init__(f"{event_kind} is impossible for job {job_id} in phase {phase}; its story:\n  {lines}")


class CodecError(CoreError):
    """Bytes that should be an event or a snapshot are not."""


class UnsupportedVersionError(CodecError):
    """The data were written by a newer version of the program; upgrade before reading them."""


class PolicyError(CoreError):
    """The chosen policy cannot be built."""


class UnknownPolicyError(PolicyError):
    """No policy has this name; the message lists those that exist."""


class PolicyParameterError(PolicyError):
    """A parameter does not exist or has an impossible value; the message lists the valid ones."""


class TenantRulesError(CoreError):
    """The rules for tenants cannot be; the message names the key and what it may be."""


class PolicySilentError(BaseException):
    """A policy does not answer in time; no Exception, so that what the policy itself catches does not swallow it."""


POLICY_FAULTS = (Exception, SystemExit, PolicySilentError)
"""What the bug of a policy may raise: sys.exit() would end the scheduler, and end it again at every start."""
