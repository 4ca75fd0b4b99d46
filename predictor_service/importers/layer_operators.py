"""What the layers of a published list do to memory in a training step, for `allocator_replay`.

A list gives an order and no edges. Layers read what the one before wrote, with two exceptions that show in the list.
Where inputs are concatenated, every block concatenates all that it has, be that one tensor, and holds it until it ends.
Where a convolution follows another without an activation between them, the first one is a shortcut: both read the
block's input, and its output is added to that of the block's two convolutions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from predictor_service.features.graphs.allocator_replay import Operator, replay_step
from predictor_service.importers.layer_list import ELEMENT_BYTES, KEEPS_NOTHING, KEEPS_OUTPUT, MASK_BYTES, Work

_BLOCK_CONVOLUTIONS: Final = 2
_POOLING: Final = "adaptive_avg_pool2d"
_CONVOLUTION: Final = "conv2d"


def reserved_bytes(work: Sequence[Work]) -> int:
    """What the allocator reserves for the tensors of a training step, bytes per sample of 32-bit numbers."""
    writer = _Writer(joins=any(item.is_joined for item in work))
    place = 0
    while place < len(work):
        behind = _behind_shortcut(work, place)
        place = writer.add_block(work, place, behind) if behind else writer.add(work[place], place)
    return replay_step(writer.operators, {operator.output for operator in writer.operators})


def _behind_shortcut(work: Sequence[Work], place: int) -> int:
    """Place of the convolution that follows this one without an activation; 0 = there is none."""
    behind = place + 1
    while behind < len(work) and work[behind].layer.kind in {"batchnorm2d", "Identity"}:
        behind += 1
    kinds = [work[each].layer.kind for each in (place, behind) if each < len(work)]
    return behind if kinds == [_CONVOLUTION, _CONVOLUTION] else 0


class _Writer:
    """Makes operators one after the other."""

    def __init__(self, *, joins: bool) -> None:
        self.operators: list[Operator] = []
        self._joins = joins
        self._sizes: dict[str, int] = {}
        self._last = ""
        self._members: list[str] = []

    def add(self, item: Work, place: int) -> int:
        """Adds a layer that reads what was written last; returns the place behind it."""
        if item.layer.kind == "Identity":
            return place + 1
        source = self._last
        if self._joins and item.layer.kind in {_CONVOLUTION, _POOLING}:
            self._members = [*self._members, source] if item.is_joined else [source]
            if item.is_joined or item.layer.kind == _CONVOLUTION:
                source = self._write(ELEMENT_BYTES * item.input_elements, self._members, passes_gradient=True)
        self._read(item, source)
        return place + 1

    def add_block(self, work: Sequence[Work], place: int, behind: int) -> int:
        """Adds a shortcut, the convolutions beside it and the sum of both; returns the place behind them."""
        source = self._last
        for item in work[place:behind]:
            self.add(item, 0)
        shortcut, convolutions, place = self._last, 0, behind
        self._last = source
        while place < len(work) and work[place].layer.kind not in {_POOLING, "linear"}:
            convolutions += work[place].layer.kind == _CONVOLUTION
            if convolutions > _BLOCK_CONVOLUTIONS:
                break
            place = self.add(work[place], place)
        self._write(self._sizes[self._last], [self._last, shortcut], passes_gradient=True)
        return place

    def _read(self, item: Work, source: str) -> None:
        layer = item.layer
        output_bytes = ELEMENT_BYTES * layer.elements
        is_convolution = layer.kind == _CONVOLUTION
        read_bytes = self._sizes.get(source, ELEMENT_BYTES * item.input_elements)
        self._write(
            output_bytes,
            [source],
            keeps_output=layer.kind in KEEPS_OUTPUT,
            keeps_input=layer.kind not in KEEPS_OUTPUT | KEEPS_NOTHING | {_POOLING},
            unnamed_bytes=MASK_BYTES * layer.elements if layer.kind == "dropout" else 0,
            workspace_bytes=read_bytes + output_bytes if is_convolution else 0,
        )

    def _write(
        self,
        output_bytes: int,
        inputs: Sequence[str],
        *,
        keeps_output: bool = False,
        keeps_input: bool = False,
        unnamed_bytes: int = 0,
        workspace_bytes: int = 0,
        passes_gradient: bool = False,
    ) -> str:
        name = str(len(self.operators))
        known = [each for each in inputs if each]
        self.operators.append(
            Operator(
                output=name,
                output_bytes=output_bytes,
                inputs=known,
                kept=[*(known if keeps_input else ()), *([name] if keeps_output else ())],
                unnamed_bytes=unnamed_bytes,
                workspace_bytes=workspace_bytes,
                passes_gradient=passes_gradient,
            )
        )
        self._sizes[name], self._last = output_bytes, name
        return name
