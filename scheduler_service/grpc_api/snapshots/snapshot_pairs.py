"""What a snapshot states of pairs: one row for every two keys, of which few are asked for and read.

The rows stay bytes. Their numbers are checked as columns, and a row is found by the bytes that its names begin with.
Where one job waits every question is about its key: the rows about the first keys that are asked for are found by
themselves, in a fifth of the time that a listing of all rows takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import compress
from typing import Final, TypeVar

import numpy as np

from cotenant.v1 import resources_pb2, scheduling_pb2
from scheduler_service.adapters.proto_enums import LEVEL_FROM_PROTO
from scheduler_service.core.predictions.measured_averages import Sizes, preferred
from scheduler_service.core.records import PairPrediction
from scheduler_service.grpc_api.snapshots.message_columns import Column, Places, read_columns
from scheduler_service.grpc_api.snapshots.snapshot_ranges import PAIR_PREDICTION

KeyPair = tuple[str, str, str]
"""Victim, other job, device type."""
_Row = int | PairPrediction
"""The number of a row, or what was read of it."""
_Name = TypeVar("_Name")
_NAMES: Final = ("victim_job_key", "other_job_key", "device")
_NAMES_KEPT_MAX: Final = 10_000
KEYS_ALONE_MAX: Final = 3
"""The rows about so many keys are found by themselves; with a question about yet another one all rows are listed."""
_LEVELS: Final = sorted(resources_pb2.EstimateLevel.values())
_IS_LEVEL: Final = np.isin(np.arange(-1, _LEVELS[-1] + 2), _LEVELS)
"""By number, from the one before 0 to the one behind the last level."""


@dataclass(frozen=True, slots=True)
class _Listing:
    """What is stated of pairs at any micro-batches, and at others, by the names as bytes."""

    at_any: dict[bytes, _Row] = field(default_factory=dict)
    at_sizes: dict[bytes, dict[Sizes, _Row]] = field(default_factory=dict)


class PairRows:
    """Some rows; of several about one place the last counts.

    Args:
        rows: `SnapshotPairPrediction`, serialized.
    """

    def __init__(self, rows: Sequence[bytes]) -> None:
        self._columns = read_columns(scheduling_pb2.SnapshotPairPrediction, rows)
        numbers = self._columns.numbers
        self._sizes = numbers["micro_batch_size"], numbers["other_micro_batch_size"]
        self._of_all: _Listing | None = None
        self._of_key: dict[str, _Listing] = {}
        self._asked_keys: set[str] = set()

    @cached_property
    def _valid(self) -> Column:
        """By row whether all its numbers lie in their ranges."""
        numbers = self._columns.numbers
        valid: Column = _IS_LEVEL.take(numbers["level"] + 1, mode="clip")
        for name, least, most in PAIR_PREDICTION:
            # What is not a number fails both comparisons.
            valid &= (numbers[name] >= least) & (numbers[name] <= most)
        return valid

    def are_valid(self) -> bool:
        """Say whether all numbers of all rows lie in their ranges."""
        return bool(self._valid.all())

    def invalid(self) -> list[scheduling_pb2.SnapshotPairPrediction]:
        """Return the rows with numbers that do not."""
        return [*map(scheduling_pb2.SnapshotPairPrediction.FromString, compress(self._columns.rows, ~self._valid))]

    def without_invalid(self) -> PairRows:
        """Return the others."""
        return self if self.are_valid() else PairRows([*compress(self._columns.rows, self._valid)])

    def find(self, keys: KeyPair, sizes: Sizes) -> PairPrediction | None:
        """Return what is stated of a pair at these micro-batches, else at the nearest ones (`preferred`)."""
        listing, names = self._listing(*keys[:2]), b"".join(map(_named, _NAMES, keys))
        of_names = listing.at_sizes.get(names, {})
        at = next((one for one in preferred(*sizes) if one in of_names), None) if of_names else None
        return self._read(listing.at_any, names, keys) if at is None else self._read(of_names, at, keys)

    def _listing(self, victim_key: str, other_key: str) -> _Listing:
        """Return a listing with all rows about two keys."""
        found = self._of_all or self._of_key.get(victim_key) or self._of_key.get(other_key)
        if found is not None:
            return found
        if len(self._of_key) == KEYS_ALONE_MAX:
            self._of_key.clear()
            self._of_all = self._listed(np.arange(len(self._columns.rows)))
            return self._of_all
        # Who asks about another pair of the same key will do so again.
        key = other_key if other_key in self._asked_keys else victim_key
        self._asked_keys |= {victim_key, other_key}
        found = self._of_key[key] = self._listed(self._numbers_about(key))
        return found

    def _numbers_about(self, key: str) -> Places:
        """Return the rows about a key, in their order; a few others may be among them."""
        of_victim, of_other = (self._columns.alike(name, _named(name, key)) for name in _NAMES[:2])
        return np.flatnonzero(of_victim | of_other)

    def _listed(self, places: Places) -> _Listing:
        """Return a listing of the rows with these numbers."""
        numbers, ends = places.tolist(), self._columns.ends("device", places)
        names = [row[:end] for row, end in zip(map(self._columns.rows.__getitem__, numbers), ends, strict=True)]
        if not any(column.any() for column in self._sizes):
            return _Listing(dict(zip(names, numbers, strict=True)))
        listing = _Listing()
        sizes = zip(*(column[places].tolist() for column in self._sizes), strict=True)
        for number, named, at in zip(numbers, names, sizes, strict=True):
            if any(at):
                listing.at_sizes.setdefault(named, {})[at] = number
            else:
                listing.at_any[named] = number
        return listing

    def _read(self, rows: dict[_Name, _Row], name: _Name, keys: KeyPair) -> PairPrediction | None:
        found = rows.get(name)
        if isinstance(found, int):
            rows[name] = found = self._prediction(found, keys)
        return found

    def _prediction(self, number: int, keys: KeyPair) -> PairPrediction:
        """Return how much one key slows another one down."""
        victim_key, other_key, device = keys
        of = self._columns.numbers
        slowdown_ratio = of["slowdown_ratio"].item(number)
        return PairPrediction(
            victim_key=victim_key,
            other_key=other_key,
            device=device,
            micro_batch_size=of["micro_batch_size"].item(number),
            other_micro_batch_size=of["other_micro_batch_size"].item(number),
            slowdown_ratio=max(slowdown_ratio, 0.0),
            upper_ratio=max(of["slowdown_upper_ratio"].item(number), slowdown_ratio, 0.0),
            level=LEVEL_FROM_PROTO[of["level"].item(number)],
            in_domain=bool(of["in_domain"].item(number)),
        )


@lru_cache(maxsize=_NAMES_KEPT_MAX)
def _named(field: str, name: str) -> bytes:
    """Return a row that states one of its names alone: rows begin with these, one after the other."""
    row = scheduling_pb2.SnapshotPairPrediction()
    setattr(row, field, name)
    return row.SerializeToString()
