"""What a snapshot states of pairs: one row for every two keys, of which few are asked for and read.

The rows stay bytes. Their numbers are checked as columns, and a row is found by the bytes that its names begin with.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import compress
from typing import Final, TypeVar

import numpy as np

from cotenant.v1 import resources_pb2, scheduling_pb2
from scheduler_service.core.measured_averages import Sizes, preferred
from scheduler_service.core.records import PairPrediction
from scheduler_service.grpc_api import translate_snapshot
from scheduler_service.grpc_api.message_columns import Column, read_columns
from scheduler_service.grpc_api.snapshot_ranges import PAIR_PREDICTION

KeyPair = tuple[str, str, str]
"""Victim, other job, device type."""
_Row = bytes | PairPrediction
"""A row, or what was read from it."""
_Name = TypeVar("_Name")
_NAMES: Final = ("victim_job_key", "other_job_key", "device")
_NAMES_KEPT_MAX: Final = 10_000
_LEVELS: Final = sorted(resources_pb2.EstimateLevel.values())
_IS_LEVEL: Final = np.isin(np.arange(-1, _LEVELS[-1] + 2), _LEVELS)
"""By number, from the one before 0 to the one behind the last level."""


class PairRows:
    """Some rows; of several about one place the last counts.

    Args:
        rows: `SnapshotPairPrediction`, serialized.
    """

    def __init__(self, rows: Sequence[bytes]) -> None:
        self._columns = read_columns(scheduling_pb2.SnapshotPairPrediction, rows)

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

    @cached_property
    def _pairs(self) -> tuple[dict[bytes, _Row], dict[bytes, dict[Sizes, _Row]]]:
        """What is stated of pairs at any micro-batches, and at others, by the names as bytes."""
        rows, ends, numbers = self._columns.rows, self._columns.ends["device"].tolist(), self._columns.numbers
        named = zip([row[:end] for row, end in zip(rows, ends, strict=True)], rows, strict=True)
        of_victim, of_other = numbers["micro_batch_size"], numbers["other_micro_batch_size"]
        if not of_victim.any() and not of_other.any():
            return dict(named), {}
        at_any: dict[bytes, _Row] = {}
        at_sizes: dict[bytes, dict[Sizes, _Row]] = {}
        for (names, row), at in zip(named, zip(of_victim.tolist(), of_other.tolist(), strict=True), strict=True):
            if any(at):
                at_sizes.setdefault(names, {})[at] = row
            else:
                at_any[names] = row
        return at_any, at_sizes

    def find(self, keys: KeyPair, sizes: Sizes) -> PairPrediction | None:
        """Return what is stated of a pair at these micro-batches, else at the nearest ones (`preferred`)."""
        names = b"".join(map(_named, _NAMES, keys))
        at_any, at_sizes = self._pairs
        of_names = at_sizes.get(names, {})
        at = next((one for one in preferred(*sizes) if one in of_names), None) if of_names else None
        return _read(at_any, names) if at is None else _read(of_names, at)


@lru_cache(maxsize=_NAMES_KEPT_MAX)
def _named(field: str, name: str) -> bytes:
    """Return a row that states one of its names alone: rows begin with these, one after the other."""
    row = scheduling_pb2.SnapshotPairPrediction()
    setattr(row, field, name)
    return row.SerializeToString()


def _read(rows: dict[_Name, _Row], name: _Name) -> PairPrediction | None:
    found = rows.get(name)
    if isinstance(found, bytes):
        message = scheduling_pb2.SnapshotPairPrediction.FromString(found)
        rows[name] = found = translate_snapshot.pair_prediction(message)
    return found
