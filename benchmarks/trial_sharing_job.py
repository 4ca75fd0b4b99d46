"""A training of the benchmark: waits for input, computes, keeps some memory: STEPS STEP_CPU_MS WAIT_MS MEMORY_MIB."""

from __future__ import annotations

import sys
import time

from cotenant import job

CHECKPOINT_STEPS = 20


def run_training(steps_total: int, step_cpu_ms: float, wait_ms: float, memory_mib: int) -> None:
    """Steps from the newest checkpoint to the end."""
    held = bytearray(memory_mib * 2**20)
    held[::4096] = b"\1" * len(held[::4096])
    for step in range(job.resume_step() + 1, steps_total + 1):
        time.sleep(wait_ms / 1_000)
        until_s = time.process_time() + step_cpu_ms / 1_000
        while time.process_time() < until_s:
            pass
        job.report(step, loss=1.0 / step)
        stop = job.should_stop()
        if stop or job.should_checkpoint() or step == CHECKPOINT_STEPS:
            path = job.checkpoint_directory() / f"step-{step}.txt"
            path.write_text(str(step), encoding="utf-8")
            job.checkpointed(path, step)
        if stop:
            job.leave()


if __name__ == "__main__":
    run_training(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
