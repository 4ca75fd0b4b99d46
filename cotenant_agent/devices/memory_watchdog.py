"""Which attempt must end when device memory runs short. Pure: samples in, verdicts out.

Three samples in a row over a bound make a verdict. Two bounds: the device's capacity, and an attempt's own limit. An
attempt over its limit is warned, and ends only when what it takes was reserved for others: a prediction that was a
little short is no reason to end a training while memory lies idle. When the device is over its capacity, the attempt
furthest over its own limit ends, else the youngest. One that yields, because it came last and is on trial, ends in the
place of any other, and what it does not use is not reserved. No other is judged on a device where one is ending.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from cotenant_agent.records import AttemptKey

SAMPLES_BEFORE_VERDICT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySample:
    """Device memory of one attempt at one instant; started_ms orders attempts by age.

    Attributes:
        held_bytes: what of its limit it holds all the time, others using the rest meanwhile; 0 = all of it.
        yields: it ends where memory runs short, whichever attempt is over its limit.
    """

    key: AttemptKey
    gpu_ids: tuple[str, ...]
    used_bytes: int
    limit_bytes: int
    started_ms: int
    held_bytes: int = 0
    yields: bool = False

    @property
    def excess_bytes(self) -> int:
        """Bytes over its own limit, 0 or less within it or without one."""
        return self.used_bytes - self.limit_bytes if self.limit_bytes > 0 else 0

    @property
    def claimed_bytes(self) -> int:
        """Bytes that no other attempt may have: what is reserved all the time, or used where that is more."""
        return self.used_bytes if self.yields else max(self.used_bytes, self.held_bytes or self.limit_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What to do about one attempt: a warning, or its end as gpu_oom."""

    key: AttemptKey
    end: bool
    reason: str
    available_bytes: int


def surge_bytes(limit_bytes: int, held_bytes: int) -> int:
    """What of a limit others may use meanwhile."""
    return max(limit_bytes - held_bytes, 0) if held_bytes > 0 else 0


def claimed_bytes(claims: Iterable[tuple[int, int]]) -> int:
    """What attempts are promised together: of what others may use meanwhile, the largest part only.

    Args:
        claims: limit, and what of it others may use meanwhile, of each attempt.
    """
    found = list(claims)
    return sum(limit - surge for limit, surge in found) + max((surge for _, surge in found), default=0)


class MemoryWatchdog:
    """Counts consecutive samples over a bound."""

    def __init__(self, capacities: Mapping[str, int]) -> None:
        self._capacities = dict(capacities)
        self._over_limit: dict[AttemptKey, int] = {}
        self._over_capacity: dict[str, int] = {}

    def judge(self, samples: Sequence[MemorySample], ending: Collection[AttemptKey]) -> list[Verdict]:
        """Verdicts of this instant, at most one end per device.

        Args:
            samples: every attempt with known use, those that are ending included.
            ending: attempts that were already asked to stop.
        """
        verdicts: dict[AttemptKey, Verdict] = {}
        self._over_limit = {
            sample.key: self._over_limit.get(sample.key, 0) + 1 for sample in samples if sample.excess_bytes > 0
        }
        for gpu_id, capacity_bytes in self._capacities.items():
            here = [sample for sample in samples if gpu_id in sample.gpu_ids]
            over = sum(sample.used_bytes for sample in here) > capacity_bytes
            self._over_capacity[gpu_id] = self._over_capacity.get(gpu_id, 0) + 1 if over else 0
            if here and not any(sample.key in ending or sample.key in verdicts for sample in here):
                verdicts |= {verdict.key: verdict for verdict in self._judge_device(gpu_id, here, capacity_bytes)}
        return list(verdicts.values())

    def _judge_device(self, gpu_id: str, here: Sequence[MemorySample], capacity_bytes: int) -> list[Verdict]:
        offenders = [sample for sample in here if self._over_limit.get(sample.key, 0) >= SAMPLES_BEFORE_VERDICT]
        worst = max(offenders, key=lambda sample: (sample.excess_bytes, sample.key), default=None)
        yielding = max((sample for sample in here if sample.yields), key=_youth, default=None)
        if self._over_capacity[gpu_id] >= SAMPLES_BEFORE_VERDICT:
            victim = yielding or worst or max(here, key=_youth)
            used_bytes = sum(sample.used_bytes for sample in here)
            reason = (
                f"{gpu_id} was over its {capacity_bytes} bytes ({used_bytes} used) in {SAMPLES_BEFORE_VERDICT} samples"
            )
            return [_verdict(victim, here, capacity_bytes, end=True, reason=reason)]
        if worst is None:
            return []
        reason = f"used {worst.used_bytes} bytes of its {worst.limit_bytes} on {gpu_id}"
        takes_from_others = sum(sample.claimed_bytes for sample in here) > capacity_bytes and len(here) > 1
        first = self._over_limit[worst.key] == SAMPLES_BEFORE_VERDICT
        if not takes_from_others and not first:
            return []
        victim = (yielding or worst) if takes_from_others else worst
        return [_verdict(victim, here, capacity_bytes, end=takes_from_others, reason=reason)]


def _youth(sample: MemorySample) -> tuple[int, AttemptKey]:
    return sample.started_ms, sample.key


def _verdict(
    sample: MemorySample, here: Sequence[MemorySample], capacity_bytes: int, *, end: bool, reason: str
) -> Verdict:
    others_bytes = sum(other.claimed_bytes for other in here if other.key != sample.key)
    co_located = ", ".join(other.key.job_id for other in here if other.key != sample.key) or "none"
    return Verdict(
        key=sample.key,
        end=end,
        reason=f"{reason}; co-located: {co_located}",
        available_bytes=max(0, capacity_bytes - others_bytes),
    )
