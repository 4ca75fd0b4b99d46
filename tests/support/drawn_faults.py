"""What may go wrong in a simulated cluster, drawn anew for every run."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from scheduler_service.core.events import TimerFired


@dataclass
class Faults:
    """What may go wrong; the probability of each per second, drawn anew for every run (swarm testing)."""

    crash_node: float = 0.0
    cut_node: float = 0.0
    crash_scheduler: float = 0.0
    cancel: float = 0.0
    choose_policy: float = 0.0
    sick_gpu: float = 0.0
    fail_attempt: float = 0.0
    refuse_launch: float = 0.0
    refuse_pause: float = 0.0
    repeat_report: float = 0.0
    predictor_down: float = 0.0
    delay_max_ms: int = 50

    @classmethod
    def drawn(cls, generator: random.Random) -> Faults:
        """Every kind of fault is absent, rare or frequent, independently."""
        rates = {name: generator.choice((0.0, 0.01, 0.05)) for name in ("crash_node", "cut_node", "crash_scheduler")}
        rates |= {name: generator.choice((0.0, 0.02, 0.1)) for name in ("cancel", "choose_policy", "sick_gpu")}
        rates |= {name: generator.choice((0.0, 0.05, 0.3)) for name in ("fail_attempt", "refuse_launch")}
        rates |= {name: generator.choice((0.0, 0.3, 1.0)) for name in ("repeat_report", "predictor_down")}
        delay_max_ms = generator.choice((1, 50, 3_000))
        return cls(**rates, delay_max_ms=delay_max_ms, refuse_pause=rates["refuse_launch"])


class DrawnGroups:
    """Draws which facts are learned together with the next one; apart, so that nothing else is drawn otherwise."""

    def __init__(self, seed: int) -> None:
        self._generator = random.Random(f"{seed}/together")
        self._followed_share = self._generator.choice((0.0, 0.3, 0.9))

    def draw(self) -> bool:
        """Return whether another fact follows the next one."""
        return self._generator.random() < self._followed_share


def end_group(world: Any) -> None:
    """Let a timer be the last fact of a group at its instant, where no other fact was."""
    if world.engine.state.put_off is not None:
        world.tell(TimerFired, is_followed=False)
