"""What scripts ask a GPU for besides computing on it: its facts, streams, events and marks, where there is none."""

# ruff: noqa: ANN401 (torch is the script's own: it is handed in, and nothing of it has a type here)
from __future__ import annotations

from typing import Any

NAME = "cpu"
CAPABILITY = (8, 0)
"""Of a GPU that has all kinds of numbers which a script may choose by this."""
MEMORY_BYTES = 80 << 30
EVENT_MS = 1.0


class Ignored:
    """A stream, or a device that is entered: whatever is called of it does nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None

    def __enter__(self) -> Ignored:
        return self

    def __exit__(self, *error: object) -> None:
        pass


class Event(Ignored):
    """An event that has always happened; some scripts divide by the time between two."""

    def query(self) -> bool:
        """Returns that it has happened."""
        return True

    def elapsed_time(self, end: Any) -> float:
        """Returns some milliseconds."""
        return EVENT_MS


class Properties:
    """Facts of a GPU, under torch's names."""

    def __init__(self, device: Any = None) -> None:
        self.name = NAME
        self.major, self.minor = CAPABILITY
        self.total_memory = MEMORY_BYTES
        self.multi_processor_count = 108


def replace_calls(torch: Any, note_question: Any) -> None:
    """Puts stand-ins in place of what `torch.cuda` raises an error for on a machine without a GPU.

    Args:
        torch: The script's.
        note_question: Called whenever the script asks for a fact that it may decide something by.
    """

    def answer(value: Any) -> Any:
        def asked(device: Any = None) -> Any:
            note_question()
            return value(device) if callable(value) else value

        return asked

    cuda = torch.cuda
    cuda.Event, cuda.Stream, cuda.ExternalStream = Event, Ignored, Ignored
    cuda.stream = cuda.device = cuda.device_of = cuda.current_stream = cuda.default_stream = Ignored
    cuda.get_device_name = lambda *args, **kwargs: NAME
    cuda.get_device_properties = answer(Properties)
    cuda.get_device_capability = answer(CAPABILITY)
    cuda.mem_get_info = answer((MEMORY_BYTES, MEMORY_BYTES))
    _register_kinds(torch)
    torch.Tensor.record_stream = lambda tensor, stream: None  # torch takes a stream of its own only
    cuda.memory_summary = lambda *args, **kwargs: ""
    for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
        setattr(cuda.nvtx, name, lambda *args, **kwargs: 0)


def _register_kinds(torch: Any) -> None:
    """Makes the stand-ins events and streams of torch, which its compiler insists on until 2.4, and optimizers load."""
    streams = getattr(torch, "_streambase", None)
    for name, stand_in in (("_EventBase", Event), ("_StreamBase", Ignored)):
        register = getattr(getattr(streams, name, None), "register", None)  # of abstract classes only
        if register is not None:
            register(stand_in)
