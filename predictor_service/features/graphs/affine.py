"""Quantities that grow with the batch along a straight line."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Affine:
    """constant + per_sample * batch, exact; never below 0, because what is counted never is.

    A graph whose counts are not affine (two of its dimensions are the batch) has a line that would fall below 0 at
    batches smaller than those it was measured at; its description warns of that.

    Attributes:
        constant: The part that does not depend on the batch.
        per_sample: The part of each sample.
    """

    constant: int
    per_sample: int

    def at(self, batch: int) -> int:
        """The value at a batch."""
        return max(0, self.constant + self.per_sample * batch)


@dataclass(frozen=True, slots=True, eq=False)
class AffineArray:
    """One `Affine` per operator.

    Attributes:
        constant: Shape (operators,).
        per_sample: Shape (operators,).
    """

    constant: FloatArray
    per_sample: FloatArray

    def at(self, batch: int) -> FloatArray:
        """The values at a batch, shape (operators,), never below 0."""
        return np.maximum(self.constant + self.per_sample * batch, 0.0)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AffineArray):
            return NotImplemented
        same = np.array_equal(self.constant, other.constant) and np.array_equal(self.per_sample, other.per_sample)
        return bool(same)

    def __hash__(self) -> int:
        return hash((self.constant.tobytes(), self.per_sample.tobytes()))


def line_through(first_batch: int, first: int, second_batch: int, second: int) -> Affine:
    """The line through two measured points; the batches differ by one where exactness matters."""
    per_sample = (second - first) // (second_batch - first_batch)
    return Affine(first - per_sample * first_batch, per_sample)
