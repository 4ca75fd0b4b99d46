"""Packed sequences, while a network is exported, as the padded ones that they were packed from.

How many rows a packed batch has depends on the lengths in it, which no graph can hold. Padded, every sequence takes
part in every step of the longest one.
"""

# ruff: noqa: ANN401 (torch is the script's own: it is handed in, and nothing of it has a type here)
from __future__ import annotations

from types import CodeType
from typing import Any


class _Padded:
    """What stands for a packed sequence: its samples with their padding, and how many steps of each count."""

    def __init__(self, data: Any, lengths: Any, *, is_batch_first: bool) -> None:
        self.data, self.lengths, self.is_batch_first = data, lengths, is_batch_first

    def laid_out(self, *, is_batch_first: bool) -> Any:
        """The samples with the batch in the first or in the second dimension."""
        return self.data if self.is_batch_first == is_batch_first else self.data.transpose(0, 1)


class PaddedSequences:
    """While it is entered, torch's functions that pack and unpack sequences keep the padding, and its cells take it.

    Args:
        torch: The script's.

    Attributes:
        are_met: Whether a network packed any.
    """

    def __init__(self, torch: Any) -> None:
        self.are_met = False
        self._torch = torch
        self._functions = torch.nn.utils.rnn
        self._codes: dict[str, CodeType] = {}
        self._forwards: dict[Any, Any] = {}

    def __enter__(self) -> PaddedSequences:
        self._functions.__dict__["_cotenant_pad"] = self
        for stand_in in (pack_padded_sequence, pad_packed_sequence):
            # Scripts hold the functions by their names: the code is what all of them share.
            function = getattr(self._functions, stand_in.__name__)
            self._codes[stand_in.__name__] = function.__code__
            function.__code__ = stand_in.__code__
        for kind in (self._torch.nn.LSTM, self._torch.nn.GRU, self._torch.nn.RNN):
            self._forwards[kind] = kind.forward
            kind.forward = _taking_padded(kind.forward)
        return self

    def __exit__(self, *_: object) -> None:
        for name, code in self._codes.items():
            getattr(self._functions, name).__code__ = code
        for kind, forward in self._forwards.items():
            kind.forward = forward
        self._functions.__dict__.pop("_cotenant_pad", None)

    def pack(self, samples: Any, lengths: Any, is_batch_first: bool) -> _Padded:
        """Stands for packing."""
        self.are_met = True
        return _Padded(samples, self._torch.as_tensor(lengths), is_batch_first=is_batch_first)

    def unpack(self, padded: _Padded, is_batch_first: bool, value: float, steps: int | None) -> tuple[Any, Any]:
        """Stands for unpacking, to so many steps where they are stated."""
        data = padded.laid_out(is_batch_first=True)
        if steps is not None:
            data = self._torch.nn.functional.pad(data, (0, 0, 0, steps - data.shape[1]), value=value)
        return data if is_batch_first else data.transpose(0, 1), padded.lengths


def _taking_padded(forward: Any) -> Any:
    def forward_padded(cells: Any, samples: Any, hx: Any = None) -> Any:
        if not isinstance(samples, _Padded):
            return forward(cells, samples, hx)
        answers, state = forward(cells, samples.laid_out(is_batch_first=cells.batch_first), hx)
        return _Padded(answers, samples.lengths, is_batch_first=cells.batch_first), state

    return forward_padded


# Their code runs in torch's module, with the arguments of its functions.
def pack_padded_sequence(
    input: Any,
    lengths: Any,
    batch_first: bool = False,
    enforce_sorted: bool = True,
) -> Any:
    """Stands for torch's function of this name."""
    return _cotenant_pad.pack(input, lengths, batch_first)  # type: ignore[name-defined]  # noqa: F821


def pad_packed_sequence(
    sequence: Any, batch_first: bool = False, padding_value: float = 0.0, total_length: int | None = None
) -> Any:
    """Stands for torch's function of this name."""
    return _cotenant_pad.unpack(  # type: ignore[name-defined]  # noqa: F821
        sequence, batch_first, padding_value, total_length
    )
