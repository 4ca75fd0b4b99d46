"""Sends what a script would do on a GPU to the CPU, and remembers what it had asked for."""

# ruff: noqa: ANN401 (torch is the script's own: it is handed in, and nothing of it has a type here)
from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from .absent_gpu import replace_calls

QUIET_CUDA_CALLS = (
    "set_device", "synchronize", "empty_cache", "reset_peak_memory_stats", "reset_max_memory_allocated",
    "reset_accumulated_memory_stats", "set_per_process_memory_fraction", "ipc_collect", "init",
)  # fmt: skip
ZERO_CUDA_CALLS = ("current_device", "memory_allocated", "max_memory_allocated", "memory_reserved", "utilization")

GPU_VARIABLE = "COTENANT_CAPTURE_GPU"
"""Set where the script is to be told that there is a GPU: without one it has ended before."""
_DEVICE_PLACES = {"to": 1, "_parse_to": 0}
"""Of the device among the arguments of what moves tensors, and of what modules take their arguments apart with."""

_PRECISION_MODULES = ("torch.amp.", "torch.cuda.amp.")


class Requested:
    """What the script asked for and a CPU does not do.

    Attributes:
        stated: "fp16" where a library was asked for it and makes something else of it on a CPU, else empty.
        half: "fp16" or "bf16" once the script was inside an autocast region for a GPU, else empty.
        scaler: Whether it made a gradient scaler that it wanted enabled.
        switched_off: Whether it made one, or a region for a GPU, that it wanted off, as many do where there is no GPU.
        is_sharded: Whether it wanted weights in parts on several GPUs.
        sharded: The networks of which each wanted that for itself, with whether it stays whole between its passes.
        shards: In how many parts, as its meshes say at least; 0 = in as many as there are processes.
        state_in_parts: Whether it wanted the state of the optimizer alone, or gradients as well, in parts.
        cuda_named: Whether it named a CUDA device by itself.
        cuda_asked: Whether it asked if there is one, so that what follows may differ on a GPU.
        has_gpu: Whether it is told then that there is one.
        masks_by_code: Whether its attention took masks of code (FlexAttention), whose blocks are counted as all.
        mode: The redirection, to be left before anything is exported.
    """

    def __init__(self) -> None:
        self.stated = ""
        self.half = ""
        self.scaler = self.switched_off = False
        self.is_sharded = False
        self.shards = 0
        self.state_in_parts = False
        self.sharded: list[Any] = []
        self.cuda_named = False
        self.cuda_asked = False
        self.has_gpu = bool(os.environ.get(GPU_VARIABLE))
        self.masks_by_code = False
        self.mode: Any = None


def redirect_to_cpu(torch: Any) -> Requested:
    """Redirects devices, mixed precision and process groups; returns what is remembered of them."""
    requested = Requested()
    requested.mode = _device_mode(torch, requested)
    requested.mode.__enter__()
    _quieten_cuda(torch, requested)
    _watch_autocast(torch, requested)
    _watch_scaler(torch, requested)
    _replace_backend(torch)
    _make_for_the_cpu(torch)
    _allow_breaks_of_the_graph(torch)
    return requested


def _device_mode(torch: Any, requested: Requested) -> Any:
    def to_cpu(value: Any) -> Any:
        is_name = isinstance(value, str) and value.split(":")[0] == "cuda"
        if is_name or (isinstance(value, torch.device) and value.type == "cuda"):
            requested.cuda_named = True
            return torch.device("cpu")
        return value

    class DevicesOfTheCpu(torch.overrides.TorchFunctionMode):  # type: ignore[misc]  # torch is not imported here
        """Replaces CUDA devices in the arguments of every torch function."""

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = getattr(func, "__name__", "")
            if name == "cuda":
                requested.cuda_named = True
                return args[0]
            if name == "pin_memory":
                return args[0]
            if func is torch.device:
                # One device, whose number may stand next to "cuda" or alone: without a GPU torch refuses the latter.
                named = {**dict(zip(("type", "index"), args)), **(kwargs or {})}  # noqa: B905 (Python 3.8 has no strict)
                device = _by_name(named.get("type", named.get("device")))
                made = to_cpu(device)
                return func(*args, **(kwargs or {})) if made is device else made
            place = _DEVICE_PLACES.get(name)
            args = [_by_name(arg) if index == place else arg for index, arg in enumerate(args)]
            kwargs = {key: _by_name(arg) if key == "device" else arg for key, arg in (kwargs or {}).items()}
            return func(*[to_cpu(arg) for arg in args], **{key: to_cpu(arg) for key, arg in kwargs.items()})

    return DevicesOfTheCpu()


def _by_name(device: Any) -> Any:
    """A GPU that is given by its number, as `.to(rank)`; anything else stays."""
    return f"cuda:{device}" if type(device) is int else device


def _quieten_cuda(torch: Any, requested: Requested) -> None:
    is_available, device_count = torch.cuda.is_available, torch.cuda.device_count

    def asked() -> bool:
        return requested.has_gpu if _note_question(requested, sys._getframe(1)) else bool(is_available())

    def counted() -> int:
        return int(requested.has_gpu) if _note_question(requested, sys._getframe(1)) else int(device_count())

    if is_available():
        return
    torch.cuda.is_available, torch.cuda.device_count = asked, counted
    if requested.has_gpu:
        torch.cuda.is_bf16_supported = lambda *args, **kwargs: True
    for name in QUIET_CUDA_CALLS:
        setattr(torch.cuda, name, lambda *args, **kwargs: None)
    for name in ZERO_CUDA_CALLS:
        setattr(torch.cuda, name, lambda *args, **kwargs: 0)
    replace_calls(torch, lambda: setattr(requested, "cuda_asked", True))
    # `torch.device("cuda", 0)` and "cuda" as a default are taken apart before any function sees them.
    set_default = torch.set_default_device
    torch.set_default_device = lambda device: None if str(_by_name(device)).startswith("cuda") else set_default(device)


def _note_question(requested: Requested, frame: Any) -> bool:
    """Returns whether the script itself asks for a GPU: torch asks all the time, and is told the truth."""
    is_own = not _is_in(frame, "torch.")
    requested.cuda_asked |= is_own
    return is_own


def _is_of_script(frame: Any) -> bool:
    """Whether no other part of torch makes a region, as what computes activations again does in the backward pass."""
    while _is_in(frame, _PRECISION_MODULES) and frame.f_back is not None:
        frame = frame.f_back
    return not _is_in(frame, "torch.")


def _is_in(frame: Any, modules: Any) -> bool:
    return f"{frame.f_globals.get('__name__', '')}.".startswith(modules)


def _watch_autocast(torch: Any, requested: Requested) -> None:
    autocast = torch.amp.autocast_mode.autocast
    begin, enter = autocast.__init__, autocast.__enter__

    def init(self: Any, device_type: str, dtype: Any = None, enabled: bool = True, *rest: Any, **named: Any) -> None:
        usual = torch.bfloat16 if device_type == "cpu" else torch.float16
        self._cotenant_asked = (dtype or usual) if enabled else None
        requested.switched_off |= device_type == "cuda" and not enabled and _is_of_script(sys._getframe(1))
        begin(self, device_type, dtype, enabled, *rest, **named)

    def enter_noted(self: Any) -> Any:
        asked = getattr(self, "_cotenant_asked", None)
        if asked is not None and asked is not torch.float32:
            requested.half = "bf16" if asked is torch.bfloat16 else "fp16"
        return enter(self)

    autocast.__init__, autocast.__enter__ = init, enter_noted


def _watch_scaler(torch: Any, requested: Requested) -> None:
    def watch(scaler: Any) -> None:
        begin = scaler.__init__

        def init(self: Any, *args: Any, **named: Any) -> None:
            is_wanted = bool(named.get("enabled", True))
            requested.scaler |= is_wanted
            requested.switched_off |= not is_wanted
            begin(self, *args, **named)

        scaler.__init__ = init

    scaler = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler
    watch(scaler)


def _make_for_the_cpu(torch: Any) -> None:
    """Makes generators of random numbers on the CPU, and optimizers that no CUDA graph is to record."""
    own: Any = torch.Generator

    class Kind(type(own)):  # type: ignore[misc]  # torch is not imported here
        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, own)

    class Generator(own, metaclass=Kind):  # type: ignore[misc]
        def __new__(cls, device: Any = "cpu") -> Any:
            return own("cpu")

    torch.Generator = Generator
    begin = torch.optim.Optimizer.__init__

    def init(self: Any, params: Any, defaults: Any) -> None:
        begin(self, params, {**defaults, "capturable": False} if defaults.get("capturable") else defaults)

    torch.optim.Optimizer.__init__ = init


def _allow_breaks_of_the_graph(torch: Any) -> None:
    """Compilation is off in a capture, which what must be one whole graph takes for an error."""
    own = getattr(torch, "compile", None)  # from 2.0 on
    if own is None:
        return

    def compile_loosely(model: Any = None, *args: Any, **named: Any) -> Any:
        named["fullgraph"] = False
        return own(model, *args, **named)

    torch.compile = compile_loosely


def _replace_backend(torch: Any) -> None:
    distributed = torch.distributed
    if not distributed.is_available():
        return
    begin: Callable[..., Any] = distributed.init_process_group

    def init_process_group(backend: Any = None, *args: Any, **named: Any) -> Any:
        named.pop("device_id", None)
        return begin("gloo", *args, **named)

    distributed.init_process_group = init_process_group
    parallel = torch.nn.parallel.DistributedDataParallel
    wrap = parallel.__init__

    def init(
        self: Any, module: Any, device_ids: Any = None, output_device: Any = None, *rest: Any, **named: Any
    ) -> None:
        wrap(self, module, None, None, *rest, **named)

    parallel.__init__ = init
