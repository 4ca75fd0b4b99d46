"""What was measured of pairs on each device type: every co-location that starts or ends is an experiment.

Each way of sharing a device has a table of its own, and what one says changes no other: no known set has the same
pairs measured in turns and under MPS, so that what one would tell of the other could not be checked. A caller
that does not say the way is answered from all that was measured.

Kept per ordered pair is a robust running mean of ln(1 + slowdown) with its count and scatter. The past fades: a new
sample weighs at least one in `COUNT_MAX`. A sample far outside the scatter so far counts as if it were at its edge, so
that one bad window moves little and a lasting change still wins. The oldest pairs are dropped when there are too many.

What is known without the doubtful windows is kept next to what is known with them: those move a value, and make no
interval narrower.

The table is rebuilt from the outcome journal and the profile store when the service starts, so it needs no file of
its own, and what is kept once under its id is counted once.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
import threading
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cotenant.device_sharing import DeviceSharing, read_sharing
from predictor_service.outcome_journal import PredictionEntry

PAIRS_MAX: Final = 20_000
"""Ordered pairs of one device type and way of sharing."""
SHARING: Final = "sharing"
"""In the content of a pair question's entry: the way that was asked about; absent = none was."""
DEVICES_MAX: Final = 64
COUNT_MAX: Final = 20.0
WINDOW_MS_MIN: Final = 2_000
"""Shorter windows are mostly noise."""
NOISE: Final = 0.08
"""Scatter of ln(1 + slowdown) between windows of one pair until it has shown its own (datasets/cpu_standin repeats
its pairs within 0.09)."""
_NOISE_COUNT: Final = 4.0
_EDGE: Final = 3.0
_LOG_MIN: Final = math.log(0.5)
_LOG_MAX: Final = math.log(1_000.0)

Pair = tuple[str, str]
"""(victim, other), each by the job's key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What is known of one ordered pair.

    Attributes:
        count: Windows seen, faded; above 0.
        mean: Of ln(1 + slowdown).
        scatter: Sum of squared deviations, faded.
        times: Windows seen, none forgotten.
        newest_ms: When the newest was reported; 0 = not known.
        is_doubtful: Some of the windows are.
        sound: What is known without those; None where all windows are doubtful, or none is.
    """

    count: float
    mean: float
    scatter: float = 0.0
    times: int = 1
    newest_ms: int = 0
    is_doubtful: bool = False
    sound: Observation | None = None

    @property
    def variance(self) -> float:
        """Of one window; shrunk towards `NOISE` where windows are few."""
        return (_NOISE_COUNT * NOISE**2 + self.scatter) / (_NOISE_COUNT + self.count - 1.0)

    @property
    def mean_variance(self) -> float:
        """Of the mean."""
        return self.variance / self.count

    @property
    def without_doubts(self) -> Observation | None:
        """What is known without doubtful windows; None = nothing."""
        return self.sound if self.is_doubtful else self

    def with_window(self, value: float, at_ms: int = 0, *, is_doubtful: bool = False) -> Observation:
        """Folds one window in, doubtful or not."""
        folded = self.with_sample(value, at_ms)
        if not (is_doubtful or self.is_doubtful):
            return folded
        sound = self.without_doubts
        if not is_doubtful:
            first = Observation(count=1.0, mean=value, newest_ms=at_ms)
            sound = first if sound is None else sound.with_sample(value, at_ms)
        return dataclasses.replace(folded, is_doubtful=True, sound=sound)

    def with_sample(self, value: float, at_ms: int = 0) -> Observation:
        """Folds one window in that is not doubtful."""
        edge = _EDGE * math.sqrt(self.variance)
        deviation = min(max(value - self.mean, -edge), edge)
        kept = min(self.count, COUNT_MAX - 1.0)
        count = kept + 1.0
        fade = kept / self.count
        return Observation(
            count=count,
            mean=self.mean + deviation / count,
            scatter=fade * self.scatter + deviation**2 * kept / count,
            times=self.times + 1,
            newest_ms=max(self.newest_ms, at_ms),
        )


@dataclass(slots=True)
class _DeviceTable:
    """Pairs of one device type and way of sharing, the oldest first.

    Attributes:
        times: How often each job was measured with another one.
        met: Jobs that each job was measured with.
    """

    pairs: OrderedDict[Pair, Observation] = field(default_factory=OrderedDict)
    times: Counter[str] = field(default_factory=Counter)
    met: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def put(self, pair: Pair, value: float, at_ms: int, *, is_doubtful: bool) -> None:
        """Folds one measured ln(1 + slowdown) in."""
        past = self.pairs.pop(pair, None)
        first = Observation(count=1.0, mean=value, newest_ms=at_ms, is_doubtful=is_doubtful)
        self.pairs[pair] = first if past is None else past.with_window(value, at_ms, is_doubtful=is_doubtful)
        for key, partner in (pair, pair[::-1]):
            self.times[key] += 1
            self.met[key].add(partner)
        if len(self.pairs) > PAIRS_MAX:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        pair, seen = self.pairs.popitem(last=False)
        for key, partner in (pair, pair[::-1]):
            self.times[key] -= seen.times
            if pair[::-1] not in self.pairs:
                self.met[key].discard(partner)
            if self.times[key] <= 0:
                del self.times[key]
                self.met.pop(key, None)


_Tables = defaultdict[DeviceSharing, _DeviceTable]
"""Of one device type by way of sharing; `UNSTATED` has everything."""


def log_slowdown(slowdown_ratio: float) -> float:
    """Logarithm of the shared time over the time alone, within what can be measured.

    Args:
        slowdown_ratio: Shared over alone, less 1; above -1.
    """
    return min(max(math.log1p(slowdown_ratio), _LOG_MIN), _LOG_MAX)


class ObservedPairs:
    """The tables of all device types; safe for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._devices: OrderedDict[str, _Tables] = OrderedDict()

    def observe(
        self,
        device: str,
        victim: str,
        other: str,
        slowdown_ratio: float,
        at_ms: int = 0,
        *,
        is_doubtful: bool = False,
        sharing: DeviceSharing = DeviceSharing.UNSTATED,
    ) -> None:
        """Folds one measured slowdown in.

        Args:
            device: Device type.
            victim: Key of the job that was slowed down.
            other: Key of the co-located job.
            slowdown_ratio: Shared over alone, less 1; above -1.
            at_ms: When it was reported.
            is_doubtful: It makes no interval narrower.
            sharing: How the two shared the device; unstated = callers that name a way learn nothing of it.
        """
        value = log_slowdown(slowdown_ratio)
        with self._lock:
            tables = self._devices.setdefault(_canonical(device), _Tables(_DeviceTable))
            for way in dict.fromkeys((DeviceSharing.UNSTATED, sharing)):
                tables[way].put((victim, other), value, at_ms, is_doubtful=is_doubtful)
            self._devices.move_to_end(_canonical(device))
            if len(self._devices) > DEVICES_MAX:
                self._devices.popitem(last=False)

    def learn(self, joined: Iterable[tuple[PredictionEntry, Mapping[str, Any]]]) -> int:
        """Folds in those outcomes that are slowdowns of a predicted pair.

        Args:
            joined: Outcomes with their predictions, oldest first.

        Returns:
            How many were folded in; what is flagged, too short or names no pair of its prediction is not.
        """
        learned = 0
        for entry, outcome in joined:
            pair = _pair_of(entry, outcome)
            if pair is not None:
                sharing = read_sharing(entry.content.get(SHARING))
                self.observe(entry.device, *pair, float(outcome["slowdown_ratio"]), sharing=sharing)
                learned += 1
        return learned

    def among(
        self, device: str, keys: Iterable[str], sharing: DeviceSharing = DeviceSharing.UNSTATED
    ) -> dict[Pair, Observation]:
        """What is known of pairs whose both jobs are named.

        Args:
            device: Device type.
            keys: Keys of jobs.
            sharing: What was measured this way only; unstated = everything.
        """
        named = set(keys)
        with self._lock:
            table = self._table(device, sharing).pairs
            if len(table) <= len(named) ** 2:
                return {pair: seen for pair, seen in table.items() if pair[0] in named and pair[1] in named}
            return {(one, two): table[one, two] for one in named for two in named if (one, two) in table}

    def others(
        self, device: str, keys: Collection[str], count: int, sharing: DeviceSharing = DeviceSharing.UNSTATED
    ) -> list[str]:
        """Jobs that were measured but are not named: those measured with a named one first, then by times.

        Args:
            device: Device type.
            keys: Keys of jobs.
            count: How many at most.
            sharing: As for `among`.
        """
        named = frozenset(keys)
        with self._lock:
            table = self._table(device, sharing)
            met = {partner for key in named & table.met.keys() for partner in table.met[key]} - named
            found = heapq.nlargest(count, met, key=lambda key: (table.times[key], key))
            rest = (key for key in table.times if key not in named and key not in met)
            return found + heapq.nlargest(count - len(found), rest, key=lambda key: (table.times[key], key))

    def all_of(self, device: str = "") -> list[tuple[str, Pair, DeviceSharing, Observation]]:
        """Every device type, pair, way of sharing and what is known of it, by these names.

        A pair has a row without a way, about all its windows, only where some of them state none.

        Args:
            device: This device type only.
        """
        wanted = _canonical(device)
        with self._lock:
            return sorted(
                (
                    (name, pair, way, seen)
                    for name, tables in self._devices.items()
                    for way, table in tables.items()
                    for pair, seen in table.pairs.items()
                    if wanted in ("", name) and (way or _has_unstated(tables, pair))
                ),
                key=lambda row: row[:3],
            )

    def _table(self, device: str, sharing: DeviceSharing) -> _DeviceTable:
        tables = self._devices.get(_canonical(device))
        table = tables.get(sharing) if tables is not None else None
        return table if table is not None else _DeviceTable()


def _has_unstated(tables: _Tables, pair: Pair) -> bool:
    """Whether a way is not stated of some of a pair's windows."""
    seen = (table.pairs.get(pair) for way, table in tables.items() if way)
    return tables[DeviceSharing.UNSTATED].pairs[pair].times > sum(one.times for one in seen if one is not None)


def _canonical(device: str) -> str:
    """Device types are named in any case."""
    return device.strip().lower()


def _pair_of(entry: PredictionEntry, outcome: Mapping[str, Any]) -> Pair | None:
    """Keys of victim and other job, or None where the outcome measures no pair reliably."""
    slowdown_ratio = outcome.get("slowdown_ratio")
    if entry.kind != "pairs" or slowdown_ratio is None or outcome.get("quality_flags"):
        return None
    if not (math.isfinite(slowdown_ratio) and slowdown_ratio > -1.0) or outcome.get("window_ms", 0) < WINDOW_MS_MIN:
        return None
    ids: Any = entry.content.get("job_ids", ())
    keys: Any = entry.content.get("job_keys", ids)
    key_of = dict(zip(ids, keys, strict=False))
    victim, other = key_of.get(outcome.get("victim_job_id")), key_of.get(outcome.get("other_job_id"))
    return (str(victim), str(other)) if victim and other else None
