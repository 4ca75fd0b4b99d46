"""A job of the zoo that can be stepped: network, optimizer, one batch, and waiting for input."""

from __future__ import annotations

import torch

from cotenant_profiler import system_clock, zoo
from cotenant_profiler.job_spec import JobSpec
from cotenant_profiler.step_times import StepRecord, is_steady

SEED = 1
_MIXED = {"bf16": torch.bfloat16, "fp16": torch.float16}


class TrainingLoop:
    """Trains one job on one batch that never changes: the work is real, the learning does not matter."""

    def __init__(self, spec: JobSpec, device: str = "cpu") -> None:
        if spec.precision not in ("fp32", *_MIXED):
            raise ValueError(f"{spec.name}: precision {spec.precision} is none of fp32, {', '.join(_MIXED)}")
        architecture = zoo.find(spec.architecture)
        torch.manual_seed(SEED)
        with torch.device(device):
            self._network = architecture.build()
            self._inputs, self._targets = architecture.make_batch(spec.batch)
        self._events = None if device == "cpu" else (_event(), _event())
        self._loss = architecture.loss
        self._optimizer = build_optimizer(architecture.optimizer, self._network)
        self._cast = torch.autocast(device, _MIXED.get(spec.precision), enabled=spec.precision in _MIXED)
        # Gradients of 16 bits with few exponents vanish unless the loss is scaled; enabled=False passes all through.
        self._scaler = torch.amp.GradScaler(device, enabled=spec.precision == "fp16")

    def step(self, wait_ms: float = 0.0) -> StepRecord:
        """Wait for `wait_ms`, then do one optimizer step; returns its record."""
        begin_ns = system_clock.now_ns()
        if wait_ms > 0:
            system_clock.sleep_ms(wait_ms)
        if self._events is not None:
            self._events[0].record()
        self._optimizer.zero_grad(set_to_none=True)
        with self._cast:
            loss = self._loss(self._network(self._inputs), self._targets)
        torch.autograd.backward(self._scaler.scale(loss))
        self._scaler.step(self._optimizer)
        self._scaler.update()
        if self._events is not None:
            self._events[1].record()
        # Reading the loss is what makes a script wait for its device.
        loss.item()
        processor_ns = system_clock.own_processor_time_ns()
        end_ns = system_clock.now_ns()
        return StepRecord(begin_ns=begin_ns, end_ns=end_ns, processor_ns=processor_ns, device_ms=self._device_ms())

    def _device_ms(self) -> float | None:
        """Time between the device's first and last work of the step, by its own clock."""
        if self._events is None:
            return None
        self._events[1].synchronize()
        return float(self._events[0].elapsed_time(self._events[1]))

    def warm_up(self, *, steps_min: int, duration_ms_min: float, duration_ms_max: float) -> bool:
        """Step until step times are steady.

        Args:
            steps_min: Steps done in any case.
            duration_ms_min: Time spent in any case.
            duration_ms_max: After this much time the attempt ends.

        Returns:
            Whether step times became steady.
        """
        begin_ns = system_clock.now_ns()
        durations_ms: list[float] = []
        elapsed_ms = 0.0
        while elapsed_ms < duration_ms_max:
            record = self.step()
            durations_ms.append((record.end_ns - record.begin_ns) / 1e6)
            elapsed_ms = (record.end_ns - begin_ns) / 1e6
            enough = len(durations_ms) >= steps_min and elapsed_ms >= duration_ms_min
            if enough and is_steady(durations_ms):
                return True
        return False


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def build_optimizer(name: str, network: torch.nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer called sgd, momentum, adam or adamw with a small step size."""
    if name == "adam":
        return torch.optim.Adam(network.parameters(), lr=1e-4)
    if name == "adamw":
        return torch.optim.AdamW(network.parameters(), lr=1e-4)
    return torch.optim.SGD(network.parameters(), lr=1e-4, momentum=0.9 if name == "momentum" else 0.0)
