"""Numbers that a network reads off its inputs, such as the count of graphs in a batch: an export has no values.

The network runs once on the example, and each number is noted by its line. During the export the same lines get the
same numbers, so that the graph holds for batches with these numbers only.
"""

# ruff: noqa: ANN401 (torch is the script's own: it is handed in, and nothing of it has a type here)
from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_READS = ("__int__", "__index__", "__bool__", "__float__", "item", "tolist")
_NUMBERS_MAX = 100_000
_SIGNS = ("data-dependent", "DataDependent", "unbacked", "GuardOnDataDependent")


def asks_for_values(error: Exception | None) -> bool:
    """Returns whether an export was refused because of a number that is not known before the network runs."""
    return error is not None and any(sign in f"{type(error).__name__}: {error}" for sign in _SIGNS)


class ReadNumbers:
    """What lines of a network make Python numbers of.

    Args:
        torch: The script's.

    Attributes:
        places: The lines, as "net.py:42", in the order in which they first read one.
    """

    def __init__(self, torch: Any) -> None:
        self.places: list[str] = []
        self._torch, self._kind = torch, torch.Tensor
        self._numbers: dict[tuple[str, int, str], list[Any]] = {}
        self._told: dict[tuple[str, int, str], int] = {}
        self._count = 0

    @contextmanager
    def of_call(self, module: Any, args: Any, kwargs: Any) -> Iterator[None]:
        """Runs a network once; in this context every further run reads the same numbers."""
        self._forget()
        with self._replaced(self._noting), self._torch.no_grad():
            module(*args, **kwargs)
        with self._replaced(self._telling):
            yield

    def _forget(self) -> None:
        """Of a network before, whose export was refused in the midst of it, nothing holds."""
        self.places, self._count = [], 0
        self._numbers.clear()
        self._told.clear()

    @contextmanager
    def _replaced(self, replacement: Callable[[str, Any], Any]) -> Iterator[None]:
        own = {name: vars(self._kind).get(name) for name in _READS}
        for name in _READS:
            setattr(self._kind, name, replacement(name, getattr(self._kind, name)))
        try:
            yield
        finally:
            for name, before in own.items():
                if before is None:
                    delattr(self._kind, name)
                else:
                    setattr(self._kind, name, before)

    def _noting(self, name: str, own: Any) -> Any:
        def read(tensor: Any) -> Any:
            number = own(tensor)
            place = _place(sys._getframe(1), name)
            self._count += 1
            if self._count <= _NUMBERS_MAX:
                self._numbers.setdefault(place, []).append(number)
            told = f"{os.path.basename(place[0])}:{place[1]}"  # noqa: PTH119 (as short as it can be)
            self.places += [told] if told not in self.places else []
            return number

        return read

    def _telling(self, name: str, own: Any) -> Any:
        def tell(tensor: Any) -> Any:
            place = _place(sys._getframe(1), name)
            numbers = self._numbers.get(place)
            if not numbers:
                return own(tensor)
            told = self._told[place] = self._told.get(place, -1) + 1
            return numbers[told % len(numbers)]  # an export runs the network more than once

        return tell


def _place(frame: Any, name: str) -> tuple[str, int, str]:
    return frame.f_code.co_filename, frame.f_lineno, name
