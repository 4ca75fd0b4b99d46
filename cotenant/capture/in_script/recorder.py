"""Records calls of networks, backward passes and optimizer steps until one whole step is known."""

# ruff: noqa: ANN401 (torch is the script's own: it is handed in, and nothing of it has a type here)
from __future__ import annotations

import contextlib
import functools
import os
import resource
import sys
import threading
import time
import traceback
import weakref
from pathlib import Path
from typing import Any

from .hidden_modules import uncover_modules
from .input_gradients import note_dropped
from .repeated_answers import RepeatedAnswers
from .result_file import write_result
from .step_export import export_step
from .step_window import (
    Call,
    Step,
    awaited,
    find_window,
    freeze_what_only_answers,
    is_in_transform,
    parameters_of,
    unwrapped,
)

STEPPED_FILE = "stepped"
STEPS_MAX = 64
STEPS_EACH_MAX = 3
# Of every optimizer on average: some scripts have one for each parameter.
CALLS_MAX = 10_000
# One a second once the time is used up.
WARNINGS_MAX = 20
LAST_CPU_S = 5


class Recorder:
    """What one process of the script does with its networks.

    Attributes:
        requested: What the script asked of a GPU.
        answering: Networks that were called without learning after the first step.
        asked: How often each network that could learn was called without gradients, as for a rollout or a validation.
        is_asked_in_transform: Whether torch.func called a network with weights of its own, which learn there alone.
        learned: Weights that an optimizer has moved, whether or not they are laid off at present.
        is_writing: Whether the export has begun.
        recomputes: Whether networks were called again in a backward pass, as activation checkpointing does.
        differentiates_twice: Whether gradients were asked for that can be differentiated again.
    """

    def __init__(self, torch: Any, folder: Path) -> None:
        self.torch = torch
        self.folder = folder
        self.requested: Any = None
        self.is_writing = False
        self.recomputes = False
        self.differentiates_twice = False
        self.calls: list[Call] = []
        self.steps: list[Step] = []
        self.backward_passes = 0
        self.answering: dict[int, Any] = {}
        self.asked: dict[int, int] = {}
        self.is_asked_in_transform = False
        self.learned: dict[int, Any] = {}
        self.loader_wait_s = 0.0
        self.loader_batch_sizes: list[int] = []
        self.optimizers: Any = weakref.WeakSet()
        self._depth = threading.local()
        self._inside_step = 0
        self._backward_depth = 0
        self._passes_stepped = 0
        self._parts_called: set[int] = set()
        self._sequences: dict[tuple[int, ...], Any] = {}
        self._warnings = 0
        self._undo: list[Any] = []
        self._answers = RepeatedAnswers(torch)

    def install(self) -> None:
        """Puts the recorder in place of seven functions of torch."""
        torch = self.torch
        self._replace(torch.nn.Module, "__call__", self._watched_call)
        self._replace(torch.autograd, "backward", self._watched_backward)
        self._replace(torch.autograd, "grad", self._watched_gradients)
        self._replace(torch.optim.Optimizer, "__init__", self._watched_optimizer)
        for owner in (torch.nn.Module, torch.optim.Optimizer):
            self._replace(owner, "zero_grad", self._watched_zeroing)
        hooks = sys.modules["torch.optim.optimizer"]  # the package hides it
        hooks.register_optimizer_step_pre_hook(self._before_step)
        hooks.register_optimizer_step_post_hook(self._after_step)
        iterator = torch.utils.data.dataloader._BaseDataLoaderIter
        self._replace(iterator, "__next__", self._watched_loader)

    def uninstall(self) -> None:
        """Gives torch its functions back, so that an export sees nothing of ours."""
        for owner, name, own in self._undo:
            setattr(owner, name, own)
        if self.requested is not None:
            # Inside of a backward pass torch has laid it off already.
            with contextlib.suppress(RuntimeError):
                self.requested.mode.__exit__(None, None, None)

    def note_limit(self) -> None:
        """Ends with what is known at the next call or step: a signal may come in the middle of anything."""
        self._warnings += 1
        if self.is_writing or not self.calls or self._warnings > WARNINGS_MAX:
            ends = {"export_limit": self.is_writing, "step_limit": bool(self.calls), "asked_limit": bool(self.asked)}
            reason = next((reason for reason, applies in ends.items() if applies), "no_forward")
            write_result(self.folder, {"status": "failed", "reason": reason})

    def _stop_early(self) -> None:
        if self._warnings or len(self.calls) >= CALLS_MAX:
            self._finish(is_whole=False)

    def _replace(self, owner: Any, name: str, make: Any) -> None:
        own = getattr(owner, name)
        self._undo.append((owner, name, own))
        setattr(owner, name, functools.wraps(own)(make(own)))

    def _watched_call(self, own: Any) -> Any:
        recorder = self

        def __call__(module: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            depth = getattr(recorder._depth, "value", 0)
            if recorder.is_writing:
                return own(module, *args, **kwargs)
            recorder._stop_early()
            if depth:
                return own(module, *args, **kwargs)
            call = recorder._begin_call(recorder._first_alike(module), args, kwargs)
            is_asked = call is None and not recorder.torch.is_grad_enabled()
            recorder._depth.value = 1
            try:
                if is_asked:
                    return recorder._answers.answer(own, module, args, kwargs)
                output = own(module, *args, **kwargs)
            finally:
                recorder._depth.value = 0
            if call is not None:
                call.note_output(recorder.torch, output)
            return output

        return __call__

    def _first_alike(self, module: Any) -> Any:
        """The network that stands for this one: a slice of a sequence, `layers[2:]`, is a new object each time."""
        if type(module) is not self.torch.nn.Sequential:
            return module
        # What is kept keeps its layers, so that no others get their names.
        return self._sequences.setdefault(tuple(id(each) for each in module), module)

    def _begin_call(self, module: Any, args: Any, kwargs: Any) -> Call | None:
        parameters = list(module.parameters())
        if self._backward_depth and (not parameters or id(module) in self._parts_called):
            self.recomputes = True
            return None
        learns = any(each.requires_grad or id(each) in self.learned for each in parameters)
        if not self.torch.is_grad_enabled() or not learns:
            is_link = type(module).__module__.startswith("torch.nn.modules.") and not parameters
            self.is_asked_in_transform |= bool(parameters) and is_in_transform(self.torch)
            if learns:
                self.asked[id(unwrapped(module))] = self.asked.get(id(unwrapped(module)), 0) + 1
            if parameters and self.steps:
                self.answering[id(module)] = unwrapped(module)
            if not is_link or type(module).__module__.endswith(".loss") or not self.torch.is_grad_enabled():
                return None
        passes, inside_step = self.backward_passes, self._inside_step
        call = Call(self.torch, module, (args, kwargs), group=passes, inside_step=inside_step, trained=self._trained)
        self.calls.append(call)
        self._parts_called.update(id(each) for each in module.modules())
        return call

    def _watched_backward(self, own: Any) -> Any:
        def backward(*args: Any, **kwargs: Any) -> Any:
            self.differentiates_twice |= _creates_graph(3, args, kwargs)
            self.backward_passes += not self._backward_depth
            self._backward_depth += 1
            try:
                return own(*args, **kwargs)
            finally:
                self._backward_depth -= 1

        return backward

    def _watched_gradients(self, own: Any) -> Any:
        def grad(*args: Any, **kwargs: Any) -> Any:
            # torch.func asks so each time, and is no second derivative.
            self.differentiates_twice |= not is_in_transform(self.torch) and _creates_graph(4, args, kwargs)
            return own(*args, **kwargs)

        return grad

    def _watched_optimizer(self, own: Any) -> Any:
        recorder = self

        def __init__(optimizer: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            own(optimizer, *args, **kwargs)
            recorder.optimizers.add(optimizer)

        return __init__

    def _trained(self) -> set[int]:
        return {id(each) for optimizer in list(self.optimizers) for each in parameters_of(optimizer)}

    def _watched_zeroing(self, own: Any) -> Any:
        recorder = self

        def zero_grad(owner: Any, *args: Any, **kwargs: Any) -> Any:
            begin, end = recorder._passes_stepped, recorder.backward_passes
            if begin < end and not recorder._inside_step and not recorder.is_writing:
                is_network = isinstance(owner, recorder.torch.nn.Module)
                zeroed = owner.parameters() if is_network else parameters_of(owner)
                note_dropped(recorder.calls, {id(each) for each in zeroed}, begin=begin, end=end)
            return own(owner, *args, **kwargs)

        return zero_grad

    def _watched_loader(self, own: Any) -> Any:
        recorder = self

        def __next__(iterator: Any) -> Any:  # noqa: N807
            begun = time.perf_counter()
            batch = own(iterator)
            recorder.loader_wait_s += time.perf_counter() - begun
            size = getattr(getattr(iterator, "_index_sampler", None), "batch_size", None)
            if isinstance(size, int):
                recorder.loader_batch_sizes.append(size)
            return batch

        return __next__

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.optimizers.add(optimizer)
        if self._warnings and not self.is_writing:
            self._finish(is_whole=False)
        self._inside_step = len(self.steps) + 1

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._inside_step, self._passes_stepped = 0, self.backward_passes
        if self.is_writing:
            return
        (self.folder / STEPPED_FILE).touch()
        moved = [each for group in optimizer.param_groups for each in group["params"] if each.grad is not None]
        self.learned.update((id(each), each) for each in moved)
        waited_s, loaded = self.loader_wait_s, len(self.loader_batch_sizes)
        self.steps.append(Step(optimizer, len(self.calls), time.perf_counter(), waited_s, loaded))
        counts = {
            id(each): sum(step.optimizer is each for step in self.steps)
            for each in awaited(list(self.optimizers), self.steps)
        }
        most = max(STEPS_MAX, STEPS_EACH_MAX * len(counts))
        if all(count >= 2 for count in counts.values()) or len(self.steps) >= most:
            self._finish(is_whole=True)

    def _finish(self, *, is_whole: bool) -> None:
        self.is_writing = True
        _grant_time_for_export()
        if not _is_first_rank(self.torch):
            write_nothing()
        self.uninstall()
        uncover_modules()
        for each in self.learned.values():
            each.requires_grad_(True)  # in the turn of another optimizer they may be laid off
        try:
            window = find_window(self.calls, self.steps, list(self.optimizers), is_whole=is_whole)
            freeze_what_only_answers(window)
            result = export_step(self, window)
        except Exception as error:
            trace = traceback.format_exc(limit=-3)
            result = {"status": "failed", "reason": "export", "detail": f"{error}"[:2000], "trace": trace[-4000:]}
        write_result(self.folder, result)


def _creates_graph(place: int, args: Any, kwargs: Any) -> bool:
    """Whether a call asks for gradients that can be differentiated, which is its argument at that place."""
    return bool(args[place] if len(args) > place else kwargs.get("create_graph"))


def write_nothing() -> None:
    """Waits for the first rank, which writes the result and has everything ended."""
    time.sleep(300)
    os._exit(0)


def _grant_time_for_export() -> None:
    """Moves the warning about CPU time to the end of what the export may take."""
    most = resource.getrlimit(resource.RLIMIT_CPU)[1]
    if most != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_CPU, (max(most - LAST_CPU_S, 1), most))


def _is_first_rank(torch: Any) -> bool:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return bool(distributed.get_rank() == 0)
    return True
