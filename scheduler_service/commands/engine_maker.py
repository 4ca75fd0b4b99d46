"""From settings to an engine: of a new state, or of a stored one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from scheduler_service.core.cluster_view.view import Policy
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.settings import Settings

_FIRST_POLICY = "fifo"
"""Until that of the settings is chosen, as a fact of the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMaker:
    """Makes engines with the pace that the settings say.

    Attributes:
        settings: Of the scheduler.
        make_policy: Builds policies by name and parameters.
    """

    settings: Settings
    make_policy: Callable[[str, Mapping[str, object]], Policy]

    def new(self) -> SchedulerEngine:
        """Return the engine of a state without events."""
        return SchedulerEngine(
            make_policy=self.make_policy,
            policy=_FIRST_POLICY,
            seed=self.settings.seed,
            pair_refresh_ms=self.settings.pair_refresh_ms,
            stall_ms=self.settings.stall_ms,
            report_interval_ms=self.settings.heartbeat_ms,
        )

    def restored(self, state: Mapping[str, Any]) -> SchedulerEngine:
        """Return the engine of a snapshot; raises what `SchedulerEngine.restore` raises."""
        return SchedulerEngine.restore(
            state,
            make_policy=self.make_policy,
            pair_refresh_ms=self.settings.pair_refresh_ms,
            stall_ms=self.settings.stall_ms,
            report_interval_ms=self.settings.heartbeat_ms,
        )
