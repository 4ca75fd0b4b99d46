"""Jobs of the zoo train in the precision that is asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from cotenant_profiler.job_spec import JobSpec
from cotenant_profiler.training_loop import TrainingLoop

LENET = JobSpec(architecture="lenet", batch=2)


def output_of(precision: str) -> tuple[torch.Tensor, float]:
    """What the network answers in a step, and the largest gradient that comes back to that."""
    loop, seen = TrainingLoop(replace(LENET, precision=precision)), list[Any]()

    def note(_: torch.nn.Module, __: object, output: Any) -> None:
        seen.append(output.detach())
        output.register_hook(seen.append)

    loop._network.register_forward_hook(note)
    loop.step()
    output, gradient = seen
    return output, float(gradient.abs().max())


@pytest.mark.parametrize(
    ("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_a_network_computes_in_the_precision_of_its_job(precision: str, dtype: torch.dtype) -> None:
    assert output_of(precision)[0].dtype is dtype


def test_the_loss_is_scaled_where_gradients_have_few_exponents() -> None:
    plain, narrow, wide = (output_of(precision)[1] for precision in ("fp32", "fp16", "bf16"))
    assert narrow > 1_000 * plain
    assert wide == pytest.approx(plain, rel=0.1)


def test_a_precision_that_is_not_known_is_refused() -> None:
    with pytest.raises(ValueError, match="lenet-b2-tf32: precision tf32 is none of fp32, bf16, fp16"):
        TrainingLoop(replace(LENET, precision="tf32"))


def test_jobs_of_two_precisions_are_two_jobs_with_and_without_a_wait() -> None:
    waiting = replace(LENET, input_wait_ratio=0.5, precision="bf16")
    assert [waiting.name, waiting.without_wait.name] == ["lenet-b2-wait50-bf16", "lenet-b2-bf16"]
    assert waiting.without_wait != LENET
