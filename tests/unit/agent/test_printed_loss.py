"""The loss that a script prints beside its step is read without an expression; other losses are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotenant_agent.progress_reading.log_progress import LogProgress
from cotenant_agent.progress_reading.loss_recognition import printed_loss


def loss_of(tmp_path: Path, line: str) -> float | None:
    log = tmp_path / "output.log"
    log.write_text("".join(f"{line.format(step=step)}\n" for step in (10, 20, 30)))
    (report,) = LogProgress(log, "").read(1_000_000_000)
    assert report.step > 0
    return report.loss


@pytest.mark.parametrize(
    ("line", "loss"),
    [
        ("step {step} | loss 1.25", 1.25),
        ("iter {step}: loss 2.5, time 12.3ms", 2.5),
        ("Step [{step}/600], Loss: 0.125", 0.125),
        ("{{'loss': 0.75, 'step': {step}}}", 0.75),
        ("train_loss=3.5e-2 step={step}", 0.035),
        ("Epoch: [0][{step}/391]  Time 0.1 (0.1)  Loss 6.9e+00 (7.0e+00)", 6.9),
        ("step {step} loss 1.5.", 1.5),
        ("step {step}, loss 0,532, lr 0,001", 0.532),
        ("step {step}, loss 4,2531", 4.2531),
        ("step {step}, loss 1,5", 1.5),
        ("step {step}, loss 1,234", None),  # it may part thousands
        ("step {step} loss 2, lr 3", 2.0),
        ("step {step} loss 0.25,0.5", 0.25),
        ("step {step} val_loss 1.5", None),
        ("step {step} val loss 1.5 validation loss 2.5", None),
        ("step {step} loss nan", None),
        ("step {step} loss_scale 65536", None),
        ("step {step} loss 50% done", None),
        ("step {step}", None),
    ],
)
def test_the_loss_on_the_line_of_a_step_is_the_jobs(tmp_path: Path, line: str, loss: float | None) -> None:
    assert loss_of(tmp_path, line) == loss


def test_an_endless_line_of_losses_takes_no_time_to_speak_of() -> None:
    assert printed_loss("loss " * 50_000, "loss=" * 50_000) is None
    assert printed_loss("", "loss " + "9" * 50_000) is None
