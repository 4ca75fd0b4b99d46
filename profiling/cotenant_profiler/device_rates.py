"""What a device reaches for as long as one asks: matrix products, convolutions, copies, small operators, host steps.

Runs in a measuring process, on the core or GPU that this process has. Each figure is work over time of a loop that ran
for `duration_ms`, after one round that does not count. The same code measures a CPU core and a GPU. Operands are
random: equal ones switch fewer transistors, and a GPU at its power limit multiplies them faster than any job's tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import torch
from torch import nn

from cotenant_profiler import system_clock

# Sizes that fill the device and end within milliseconds: a product of two square matrices, images of a convolution.
_MATMUL_WIDTH: Final = {"cpu": 512, "cuda": 4096}
_CONVOLUTION_BATCH: Final = {"cpu": 2, "cuda": 64}
_CONVOLUTION_SIDE: Final = {"cpu": 28, "cuda": 56}
_CHANNELS: Final = 64
_KERNEL: Final = 3
_COPY_BYTES: Final = {"cpu": 64 << 20, "cuda": 512 << 20}
_LAUNCHES: Final = 200
# By name in JobSettings; a processor without matrix units emulates halves, which says nothing of any job.
_FORMATS: Final = {
    "cpu": {"fp32": (torch.float32, False)},
    "cuda": {
        "fp32": (torch.float32, False),
        "tf32": (torch.float32, True),
        "bf16": (torch.bfloat16, False),
        "fp16": (torch.float16, False),
    },
}


def measure_rates(device: str, duration_ms: float) -> dict[str, dict[str, float]]:
    """Return sustained rates by precision, FLOP/s; a format that the device refuses is left out.

    Args:
        device: cpu or cuda.
        duration_ms: Time for each figure.
    """
    rates = {}
    for precision, (dtype, allows_tf32) in _FORMATS[device].items():
        try:
            with _tf32(allows_tf32):
                rates[precision] = {
                    "matmul_flops_per_s": _matmul(device, dtype, duration_ms),
                    "convolution_flops_per_s": _convolution(device, dtype, duration_ms),
                }
        except RuntimeError:
            continue
    return rates


def measure_copy(device: str, duration_ms: float) -> float:
    """Return bytes read and written per second by copies inside the device's memory."""
    source = torch.ones(_COPY_BYTES[device], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2.0 * source.numel() * _rounds_per_s(lambda: target.copy_(source), device, duration_ms)


def measure_launch(device: str, duration_ms: float) -> float:
    """Return the duration of one small operator among many back to back, milliseconds."""
    value = torch.zeros(1, device=device)

    def launch() -> None:
        for _ in range(_LAUNCHES):
            value.add_(1.0)

    return 1e3 / (_LAUNCHES * _rounds_per_s(launch, device, duration_ms))


def measure_host_steps(device: str, duration_ms: float) -> float:
    """Return optimizer steps per second of a network so small that only the host works."""
    step = tiny_step(nn.Linear(8, 8).to(device), torch.zeros(8, 8, device=device))
    return _rounds_per_s(step, device, duration_ms)


def tiny_step(network: nn.Module, inputs: torch.Tensor) -> Callable[[], None]:
    """Return a function that does one training step of a network that has no work."""
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(network(inputs).square().mean())
        optimizer.step()

    return step


def _matmul(device: str, dtype: torch.dtype, duration_ms: float) -> float:
    width = _MATMUL_WIDTH[device]
    left, right = (torch.randn(width, width, device=device).to(dtype) for _ in range(2))
    return 2.0 * width**3 * _rounds_per_s(lambda: left @ right, device, duration_ms)


def _convolution(device: str, dtype: torch.dtype, duration_ms: float) -> float:
    """Forward and backward, as in training."""
    batch, side = _CONVOLUTION_BATCH[device], _CONVOLUTION_SIDE[device]
    layer = nn.Conv2d(_CHANNELS, _CHANNELS, _KERNEL, padding=1, bias=False).to(device, dtype)
    images = torch.randn(batch, _CHANNELS, side, side, device=device).to(dtype).requires_grad_()
    gradient = torch.randn(batch, _CHANNELS, side, side, device=device).to(dtype)

    def step() -> None:
        layer.weight.grad = images.grad = None
        torch.autograd.backward(layer(images), gradient)

    flops = 3 * 2.0 * batch * side * side * _CHANNELS * _CHANNELS * _KERNEL**2
    return flops * _rounds_per_s(step, device, duration_ms)


def _rounds_per_s(work: Callable[[], object], device: str, duration_ms: float) -> float:
    work()
    _wait_for(device)
    begin_ns = now_ns = system_clock.now_ns()
    rounds = 0
    while rounds == 0 or now_ns - begin_ns < duration_ms * 1e6:
        work()
        _wait_for(device)
        rounds += 1
        now_ns = system_clock.now_ns()
    return rounds * 1e9 / (now_ns - begin_ns)


def _wait_for(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


@contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
