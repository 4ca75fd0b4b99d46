"""The policies of a state at its start: one that is not available any more, and what may replace it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from scheduler_service.core.cluster_view.view import Policy, SchedulingView
from scheduler_service.core.decisions import Decision, HoldMany
from scheduler_service.core.errors import PolicyError
from scheduler_service.core.records import Reason
from scheduler_service.errors import SettingsError


class MissingPolicy:
    """Replaces a policy that cannot be made: all jobs wait.

    Attributes:
        asked: How often it was asked in the place of the other one, whose decisions are not known.
    """

    def __init__(self, fault: str) -> None:
        self.fault = fault
        self.asked = 0

    def decide(self, view: SchedulingView) -> Sequence[Decision]:
        """Return that every job waits."""
        self.asked += 1
        return (HoldMany(job_ids=tuple(job.request.job_id for job in view.pending), reason=Reason(code="NO_DECISION")),)


class StoredPolicies:
    """Makes policies, also those of stored events while these are replayed.

    Args:
        make_policy: As of the engine.
        replacement: What takes the place of one that cannot be made; empty = nothing does.
    """

    def __init__(self, make_policy: Callable[[str, Mapping[str, object]], Policy], *, replacement: str) -> None:
        self._make_policy = make_policy
        self._replacement = replacement
        self._missing: list[MissingPolicy] = []
        self._is_replaying = True

    def make(self, name: str, parameters: Mapping[str, object]) -> Policy:
        """Return a policy; while events are replayed one that cannot be made becomes a `MissingPolicy`.

        Raises:
            PolicyError: It cannot be made.
        """
        try:
            return self._make_policy(name, parameters)
        except PolicyError as error:
            if not self._is_replaying:
                raise
            self._missing.append(MissingPolicy(str(error)))
            return self._missing[-1]

    def check_replayed(self, policy: Policy, place: str) -> bool:
        """Return whether the replacement is to be chosen, all events being replayed.

        Args:
            policy: The one in force.
            place: How the state is called.

        Raises:
            SettingsError: A policy is missing that decided upon events since the newest snapshot, or that nothing
                shall replace.
        """
        for missing in self._missing:
            if missing.asked:
                raise SettingsError(
                    f"{place} ends with events decided by a policy that is not available here: "
                    f"{missing.fault}; install it again for one start and stop the scheduler with SIGTERM, which "
                    "stores what it has decided; then it may be replaced"
                )
        if not isinstance(policy, MissingPolicy):
            return False
        if not self._replacement:
            raise SettingsError(
                f"{place} uses a policy that is not available here: {policy.fault}; install it again, or start once "
                "with --replace-missing-policy, which chooses that of --policy"
            )
        return True

    def end_replay(self) -> None:
        """Refuse from now on what cannot be made."""
        self._is_replaying = False
