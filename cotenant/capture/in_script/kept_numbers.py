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


class KeptNumbers:
    """While it is entered, buffers of one element are read as numbers where a script does so.

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
        self._own = {name: vars(self._kind)[name] for name in (*_READS, "data") if name in vars(self._kind)}
        parts = {id(part): part for network in networks for part in network.modules()}
        self._kept = [
            (part, name, buffer.item())
            for part in parts.values()
            for name, buffer in part.named_buffers(recurse=False)
            if buffer.numel() == 1 and not buffer.is_meta
        ]

    def __enter__(self) -> KeptNumbers:
        for name, number_of in _READS.items():
            setattr(self._kind, name, self._reading(getattr(self._kind, name), number_of))
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
        for name in (*_READS, "data"):
            delattr(self._kind, name)
        for name, own in self._own.items():
            setattr(self._kind, name, own)

    def _reading(self, own: Any, number_of: Any) -> Any:
        def read(tensor: Any) -> Any:
            for part, name, value in self._kept if type(tensor) not in self._plain else ():
                # An export lays tensors of its own in the place of the buffers.
                if part._buffers.get(name) is tensor:
                    self.names += [name] if name not in self.names else []
                    return number_of(value)
            return own(tensor)

        # What is refused is told with the line of the script, which torch looks for below frames of its own.
        read.__code__ = read.__code__.replace(co_filename=self._file)
        return read
