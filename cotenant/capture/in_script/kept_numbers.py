"""What a network keeps and reads as a Python number, as the pointer of MoCo's queue: no export has one.

While a network is exported such a number is what it was in the script's last step, weights that are moved by assigning
to `.data`, as MoCo moves its second encoder, stay as they are, and a shuffled order, for which ONNX has no operator, is
the plain one.
"""

# ruff: noqa: ANN401 (torch is the script's own: it is handed in, and nothing of it has a type here)
from __future__ import annotations

from typing import Any

_READS = {"__int__": int, "__index__": int, "__bool__": bool, "__float__": float, "item": lambda value: value}
"""What makes a Python number of a tensor, and of the number that it was."""
_REPLACED = (*_READS, "__getitem__")
_VALUES_MAX = 65_536
_PLACES_MAX = 100_000


class KeptNumbers:
    """While it is entered, buffers of one element, and single elements of others, are read as numbers by a script.

    Args:
        torch: The script's.
        networks: Whose buffers.

    Attributes:
        names: Of the buffers that were read, as `queue_ptr`, in order.
    """

    def __init__(self, torch: Any, networks: list[Any]) -> None:
        self.names: list[str] = []
        self._torch = torch
        self._kind, self._file = torch.Tensor, torch.__file__
        self._plain = (torch.Tensor, torch.nn.Parameter)
        self._own = {name: vars(self._kind)[name] for name in (*_REPLACED, "data") if name in vars(self._kind)}
        parts = {id(part): part for network in networks for part in network.modules()}
        self._kept = [
            (part, name, numbers)
            for part in parts.values()
            for name, buffer in part.named_buffers(recurse=False)
            if buffer.numel() <= _VALUES_MAX and (numbers := _numbers_of(buffer)) is not None
        ]
        self._places: dict[int, tuple[Any, str, Any]] = {}

    def __enter__(self) -> KeptNumbers:
        for name, number_of in _READS.items():
            setattr(self._kind, name, self._reading(getattr(self._kind, name), number_of))
        self._kind.__getitem__ = self._selecting(self._kind.__getitem__)
        own, plain = self._kind.data, self._plain

        def assign(tensor: Any, value: Any) -> None:
            if type(value) in plain:
                own.__set__(tensor, value)

        torch, self._shuffled = self._torch, self._torch.randperm
        torch.randperm = lambda count, generator=None, **named: torch.arange(count, **named)
        self._kind.data = property(
            lambda tensor: own.__get__(tensor) if type(tensor) in plain else tensor.detach(), assign
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._torch.randperm = self._shuffled
        for name in (*_REPLACED, "data"):
            delattr(self._kind, name)
        for name, own in self._own.items():
            setattr(self._kind, name, own)

    def _reading(self, own: Any, number_of: Any) -> Any:
        def read(tensor: Any) -> Any:
            name, value = self._find(tensor)
            while isinstance(value, list) and len(value) == 1:
                value = value[0]
            if not name or isinstance(value, list):
                return own(tensor)
            self.names += [name] if name not in self.names else []
            return number_of(value)

        return self._told_as_torch(read)

    def _selecting(self, own: Any) -> Any:
        """Let an element of what is kept be known by where it lay, as the one of `self.queue_ptr[0]`."""

        def select(tensor: Any, place: Any) -> Any:
            found = own(tensor, place)
            places = place if isinstance(place, tuple) else (place,)
            if all(type(one) is int for one in places) and len(self._places) < _PLACES_MAX:
                name, value = self._find(tensor)
                if name:
                    for one in places:
                        value = value[one]
                    self._places[id(found)] = (found, name, value)
            return found

        return self._told_as_torch(select)

    def _find(self, tensor: Any) -> tuple[str, Any]:
        """Returns the name of the buffer that this is, or is an element of, and what it was; "" = of none."""
        if type(tensor) in self._plain:
            return "", None
        if id(tensor) in self._places:
            return self._places[id(tensor)][1:]
        # An export lays tensors of its own in the place of the buffers.
        found = ((name, value) for part, name, value in self._kept if part._buffers.get(name) is tensor)
        return next(found, ("", None))

    def _told_as_torch(self, function: Any) -> Any:
        """What is refused is told with the line of the script, which torch looks for below frames of its own."""
        function.__code__ = function.__code__.replace(co_filename=self._file)
        return function


def _numbers_of(buffer: Any) -> Any:
    """Returns what is in a buffer; None = torch shows no numbers of it, as where it is sparse or packed."""
    try:
        return buffer.tolist()
    except RuntimeError:
        return None
