"""What PyTorch's caching allocator takes from the device for the tensors of a training step, found by replaying it.

A block that a tensor gave back stays reserved. The next tensor gets the smallest free block that it fits into, whose
rest stays free; free neighbours of one segment merge; only where no block fits more is taken from the device. So more
is reserved than ever lives at once: where tensors grow from layer to layer, what the forward pass frees fits nothing
that comes later.

The forward pass writes outputs and frees what neither a later operator nor the backward pass reads; the backward pass
runs in reverse, writes a gradient for each input and frees what was kept. A convolution takes room for a copy of its
input and its output for a moment: tensor cores read channels last, and cuDNN turns tensors of the usual layout around,
once forward and twice backward. Parameters, their gradients and the input are counted elsewhere. Sizes are exact
instead of multiples of 2 MiB, so that the result grows with the batch in proportion. The device is never full here: on
one that is, whole free segments are given back first.

Source: `CUDACachingAllocator.cpp` of PyTorch.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence, Set
from typing import Final, NamedTuple

_PART_LENGTH_MAX: Final = 512


class Operator(NamedTuple):
    """What one operator does to memory.

    Attributes:
        output: Name of the storage that it writes.
        output_bytes: 0 = it writes none: a view, or a part of what is computed in one piece.
        inputs: Names of storages that it reads, of those that operators wrote.
        kept: Names of storages that its backward pass reads.
        unnamed_bytes: What it keeps in addition.
        workspace_bytes: Taken for a moment, forward and for each gradient.
        passes_gradient: Whether the gradient of its output is that of its inputs as well, without a copy.
    """

    output: str
    output_bytes: int
    inputs: Sequence[str]
    kept: Sequence[str] = ()
    unnamed_bytes: int = 0
    workspace_bytes: int = 0
    passes_gradient: bool = False


class _FreeBlocks:
    """Sizes and blocks in order, in parts of bounded length: in one list each of n changes would move n others."""

    def __init__(self) -> None:
        self._parts: list[list[tuple[int, int]]] = []
        self._ends: list[tuple[int, int]] = []

    def add(self, entry: tuple[int, int]) -> None:
        if not self._parts:
            self._parts, self._ends = [[entry]], [entry]
            return
        place = min(bisect.bisect_left(self._ends, entry), len(self._parts) - 1)
        part = self._parts[place]
        bisect.insort(part, entry)
        if len(part) > _PART_LENGTH_MAX:
            half = len(part) // 2
            self._parts[place : place + 1] = [part[:half], part[half:]]
            self._ends.insert(place, part[half - 1])
            place += 1
        self._ends[place] = part[-1]

    def remove(self, entry: tuple[int, int]) -> None:
        self._pop(entry)

    def pop_smallest(self, size: int) -> tuple[int, int]:
        """Removes and returns the smallest that has at least so many bytes; 0 and 0 where there is none."""
        return self._pop((size, 0))

    def _pop(self, least: tuple[int, int]) -> tuple[int, int]:
        place = bisect.bisect_left(self._ends, least)
        if place == len(self._parts):
            return 0, 0
        part = self._parts[place]
        found = part.pop(bisect.bisect_left(part, least))
        if part:
            self._ends[place] = part[-1]
        else:
            del self._parts[place], self._ends[place]
        return found


class CachingAllocator:
    """Blocks, which are known by numbers above 0; 0 is nothing.

    Attributes:
        reserved_bytes: Taken from the device so far.
    """

    def __init__(self) -> None:
        self.reserved_bytes = 0
        self._sizes = [0]
        self._before: list[int] = [0]
        self._behind: list[int] = [0]
        self._is_free = [False]
        self._free = _FreeBlocks()

    def take(self, size: int) -> int:
        """Returns a block of so many bytes."""
        if size <= 0:
            return 0
        found, block = self._free.pop_smallest(size)
        if not block:
            self.reserved_bytes += size
            return self._add(size, 0, 0)
        self._is_free[block] = False
        if found > size:
            self._split(block, size, found)
        return block

    def give_back(self, block: int) -> None:
        """Frees a block."""
        if not block:
            return
        behind, before = self._behind[block], self._before[block]
        if self._is_free[behind]:
            self._forget_free(behind)
            self._merge(block, behind)
        if self._is_free[before]:
            self._forget_free(before)
            self._merge(before, block)
            block = before
        self._is_free[block] = True
        self._free.add((self._sizes[block], block))

    def borrow(self, size: int) -> None:
        """Takes a block and gives it back at once."""
        self.give_back(self.take(size))

    def _add(self, size: int, before: int, behind: int) -> int:
        self._sizes.append(size)
        self._before.append(before)
        self._behind.append(behind)
        self._is_free.append(False)
        return len(self._sizes) - 1

    def _split(self, block: int, size: int, found: int) -> None:
        behind = self._behind[block]
        rest = self._add(found - size, block, behind)
        self._sizes[block], self._behind[block] = size, rest
        if behind:
            self._before[behind] = rest
        self._is_free[rest] = True
        self._free.add((found - size, rest))

    def _forget_free(self, block: int) -> None:
        self._is_free[block] = False
        self._free.remove((self._sizes[block], block))

    def _merge(self, block: int, behind: int) -> None:
        self._sizes[block] += self._sizes[behind]
        after = self._behind[block] = self._behind[behind]
        if after:
            self._before[after] = block


def replay_step(operators: Sequence[Operator], trainable: Set[str]) -> int:
    """Replays a training step.

    Args:
        operators: In order of execution; the last one writes what the loss is of.
        trainable: Names of storages that a gradient flows to.

    Returns:
        Bytes that are reserved in the end: nothing is given back to the device within a step.
    """
    step = _Step(operators)
    for place, operator in enumerate(operators):
        step.run_forward(place, operator)
    for place in range(len(operators) - 1, -1, -1):
        step.run_backward(place, operators[place], trainable)
    return step.allocator.reserved_bytes


def replay_events(events: Iterable[tuple[int, int]]) -> int:
    """Replays what was seen of a step.

    Args:
        events: In order: number above 0 and bytes of a tensor that came to be, number and -1 of one that was freed, 0
            and bytes of a workspace. What is never freed, such as gradients of parameters, is left out.

    Returns:
        Bytes that are reserved in the end.
    """
    seen = list(events)
    freed = {number for number, size in seen if size < 0}
    allocator, blocks = CachingAllocator(), dict[int, int]()
    for number, size in seen:
        if not number:
            allocator.borrow(size)
        elif number in freed:
            if size < 0:
                allocator.give_back(blocks.pop(number, 0))
            else:
                blocks[number] = allocator.take(size)
    return allocator.reserved_bytes


class _Step:
    """Blocks of storages and gradients by name while a step goes on."""

    def __init__(self, operators: Sequence[Operator]) -> None:
        self.allocator = CachingAllocator()
        self._last_reader = {name: place for place, operator in enumerate(operators) for name in operator.inputs}
        self._blocks: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        self._keepers: dict[str, int] = {}
        self._unnamed: list[int] = []
        self._gradients: dict[str, int] = {}
        self._holders: dict[int, int] = {}
        self._shared: set[int] = set()  # of concatenated tensors, each of which reads a part
        self._end = operators[-1].output if operators else ""

    def run_forward(self, place: int, operator: Operator) -> None:
        take = self.allocator.take
        self._blocks[operator.output] = take(operator.output_bytes)
        self._sizes[operator.output] = operator.output_bytes
        self._unnamed.append(take(operator.unnamed_bytes))
        self.allocator.borrow(operator.workspace_bytes)
        for name in operator.kept:
            self._keepers[name] = self._keepers.get(name, 0) + 1
        for name in operator.inputs:
            if self._last_reader[name] == place and not self._keepers.get(name):
                self._free(name)
        if operator.output == self._end:
            self._hold_gradient(self._end, take(operator.output_bytes))

    def run_backward(self, place: int, operator: Operator, trainable: Set[str]) -> None:
        gradient = self._gradients.pop(operator.output, None)
        if gradient is not None:
            for name in operator.inputs:
                if name in trainable:
                    self._add_gradient(name, operator, gradient)
            self.allocator.borrow(operator.workspace_bytes)
        for name in operator.kept:
            self._keepers[name] -= 1
            if not self._keepers[name]:
                self._free(name)
        self.allocator.give_back(self._unnamed[place])
        if gradient is not None:
            self._drop_gradient(gradient)

    def _add_gradient(self, name: str, operator: Operator, gradient: int) -> None:
        size = self._sizes.get(name, 0)
        if not operator.passes_gradient:
            self._hold_gradient(name, self.allocator.take(size))
            self.allocator.borrow(operator.workspace_bytes)
            return
        if operator.output_bytes > size:
            self._shared.add(gradient)
        self._hold_gradient(name, gradient)

    def _hold_gradient(self, name: str, block: int) -> None:
        """Adds a gradient to what there is of it: in either of both that nothing else reads, or in a new block."""
        self._holders[block] = self._holders.get(block, 0) + 1
        known = self._gradients.get(name)
        if known is None:
            self._gradients[name] = block
        elif self._is_own(known):
            self._drop_gradient(block)
        else:
            total = block if self._is_own(block) else self.allocator.take(self._sizes.get(name, 0))
            if total != block:
                self._holders[total] = 1
                self._drop_gradient(block)
            self._gradients[name] = total
            self._drop_gradient(known)

    def _is_own(self, block: int) -> bool:
        return self._holders[block] == 1 and block not in self._shared

    def _drop_gradient(self, block: int) -> None:
        self._holders[block] -= 1
        if not self._holders[block]:
            self._shared.discard(block)
            self.allocator.give_back(block)

    def _free(self, name: str) -> None:
        self.allocator.give_back(self._blocks.pop(name, 0))
