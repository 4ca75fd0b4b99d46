"""A policy that did not answer in time is not asked again until one is chosen: it would not answer then either.

The program that runs the engine knows how long it may take, and lets `PolicySilentError` be raised in its lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from scheduler_service.core.cluster_view.view import Policy, SchedulingView
from scheduler_service.core.decisions import Decision, HoldMany
from scheduler_service.core.errors import PolicySilentError
from scheduler_service.core.planning.policy_answer import decisions_of, note_failed
from scheduler_service.core.policy_events import PolicySilenced
from scheduler_service.core.records import Reason
from scheduler_service.core.state import ClusterState

SILENT = Reason(code="POLICY_SILENT")


class SilentPolicy:
    """Replaces a policy that is not asked any more: running jobs go on, waiting jobs wait."""

    decides_only_waiting: ClassVar[bool] = True

    def decide(self, view: SchedulingView) -> Sequence[Decision]:
        """Return that every job waits."""
        return (HoldMany(job_ids=tuple(job.request.job_id for job in view.pending), reason=SILENT),)


class PolicyQuestions:
    """Asks an engine's policy to decide, and counts its answers.

    Attributes:
        answers: Upon the event that is handled, or was handled last.
    """

    def __init__(self) -> None:
        self.answers = 0
        self._silence: PolicySilenced | None = None

    def expect(self, silence: PolicySilenced | None) -> None:
        """Repeat a stored silence at the next event instead of asking the policy; None = ask it."""
        self._silence = silence

    def ask(self, policy: Policy, view: SchedulingView) -> Sequence[Decision]:
        """Ask a policy, and return its decisions; raises what `decisions_of` raises."""
        if isinstance(policy, SilentPolicy):
            return policy.decide(view)
        if self._silence is not None and self.answers == self._silence.answers:
            raise PolicySilentError(self._silence.words)
        decisions = decisions_of(policy, view)
        self.answers += 1
        return decisions


def asked_of(policy: Policy, state: ClusterState) -> Policy:
    """Return whom to ask: the policy, unless it is silent."""
    return policy if not state.silence else SilentPolicy()


def note_silence(state: ClusterState, policy: Policy, words: str) -> None:
    """Let a policy be silent from now on, where it is not."""
    if not state.silence:
        note_failed(state, policy, PolicySilentError(words))
