"""What is measured: an architecture with its settings."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class JobSpec:
    """One configuration of one architecture.

    Attributes:
        architecture: Name in the zoo.
        batch: Samples per optimizer step, 1 or more.
        input_wait_ratio: Share of a step that the job alone spends waiting for input, 0 to below 1.
        precision: fp32, or of mixed training on a GPU: bf16 | fp16.
    """

    architecture: str
    batch: int
    input_wait_ratio: float = 0.0
    precision: str = "fp32"

    @property
    def name(self) -> str:
        """Short unique name, e.g. lenet-b64, lenet-b64-wait50 or lenet-b64-bf16."""
        wait = f"-wait{round(100 * self.input_wait_ratio)}" if self.input_wait_ratio else ""
        precision = "" if self.precision == "fp32" else f"-{self.precision}"
        return f"{self.architecture}-b{self.batch}{wait}{precision}"

    @property
    def without_wait(self) -> JobSpec:
        """The same job with its input always ready."""
        return replace(self, input_wait_ratio=0.0)

    def wait_ms(self, busy_step_ms: float) -> float:
        """Return the waiting per step that gives the wait ratio to a job whose steps take `busy_step_ms` without it."""
        return busy_step_ms * self.input_wait_ratio / (1 - self.input_wait_ratio)
