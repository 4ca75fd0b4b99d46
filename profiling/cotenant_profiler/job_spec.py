"""What is measured: an architecture with its settings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class JobSpec:
    """One configuration of one architecture.

    Attributes:
        architecture: Name in the zoo.
        batch: Samples per optimizer step, 1 or more.
        input_wait_ratio: Share of a step that the job alone spends waiting for input, 0 to below 1.
    """

    architecture: str
    batch: int
    input_wait_ratio: float = 0.0

    @property
    def name(self) -> str:
        """Short unique name, e.g. lenet-b64 or lenet-b64-wait50."""
        wait = f"-wait{round(100 * self.input_wait_ratio)}" if self.input_wait_ratio else ""
        return f"{self.architecture}-b{self.batch}{wait}"

    @property
    def without_wait(self) -> JobSpec:
        """The same job with its input always ready."""
        return JobSpec(architecture=self.architecture, batch=self.batch)

    def wait_ms(self, busy_step_ms: float) -> float:
        """Return the waiting per step that gives the wait ratio to a job whose steps take `busy_step_ms` without it."""
        return busy_step_ms * self.input_wait_ratio / (1 - self.input_wait_ratio)
