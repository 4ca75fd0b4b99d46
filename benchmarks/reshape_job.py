"""The job of the benchmark `reshape`: an example's training that writes down when each of its steps ended.

    python reshape_job.py JOURNAL MODEL EXTRA_MB WAITS

Lines of the journal, times in ns since boot: `begin FENCE PROCESS_START_NS`, `go FENCE NS`, `loaded FENCE NS MS`,
`step FENCE STEP NS`, `saved FENCE MS`. Of a gang rank 0 writes it, and saves. EXTRA_MB is written into every checkpoint
as well. With WAITS `imports` it only waits where it is started early by the node, before its first line; with `build`
after its network is built.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from cotenant import job
from examples.training import checkpoint, train, train_ddp

ENDLESS = 1_000_000


def now_ns() -> int:
    """Return the time since boot."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def process_start_ns() -> int:
    """Return when this process was started, to the tick of the kernel."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return int(fields[19]) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def options_of(model: str) -> argparse.Namespace:
    """Return the options of the example."""
    torch.set_num_threads(1)
    return train.parse_arguments(["--model", model, "--steps", str(ENDLESS)])


def save(training: train.Training, extra: torch.Tensor) -> None:
    """Write the checkpoint of the example, and as much more as was asked for."""
    folder = job.checkpoint_directory()
    written = checkpoint.save(folder, training.network, training.optimizer, training.step)
    if len(extra):
        whole = folder / f"whole-{training.step}"
        whole.mkdir()
        written.rename(whole / written.name)
        torch.save(extra, whole / "extra.pt")
        written = whole
    job.checkpointed(written, training.step)


def load(training: train.Training) -> None:
    """Continue from the job's newest checkpoint, if there is one."""
    folder = job.resume_directory()
    if folder is not None:
        whole = folder / f"whole-{job.resume_step()}"
        if whole.exists():
            torch.load(whole / "extra.pt")
        place = whole if whole.exists() else folder
        training.step = checkpoint.restore(place, training.network, training.optimizer)


def join_gang(training: train.Training) -> Callable[[int], object]:
    """Meet the other ranks; return what does one step with them."""
    train_ddp.join_gang("cpu")
    network = DistributedDataParallel(training.network)
    return partial(train_ddp.take_step, training, network)


def should_stop(*, has_ranks: bool) -> bool:
    """Say whether to stop; ranks agree, since the signal reaches each at another instant."""
    return train_ddp.agree(job.should_stop())[0] if has_ranks else job.should_stop()


def run_training(journal_path: Path, model: str, extra_mb: int, waits: str) -> None:
    """Train until a stop is asked for."""
    fence, has_ranks = os.environ["COTENANT_FENCE"], "RANK" in os.environ
    path = journal_path if job.rank() == 0 else Path(os.devnull)
    with path.open("a", buffering=1) as journal:
        journal.write(f"begin {fence} {process_start_ns()}\n")
        options = options_of(model)
        training = train.build_training(options)
        extra = torch.zeros(extra_mb << 18)
        if waits == "build":
            job.wait_for_go()
        journal.write(f"go {fence} {now_ns()}\n")
        take_step = join_gang(training) if has_ranks else training.take_step
        begun_ns = now_ns()
        load(training)
        journal.write(f"loaded {fence} {now_ns()} {(now_ns() - begun_ns) / 1e6:.3f}\n")
        batch_size = job.global_batch(training.task.batch_size)
        while not should_stop(has_ranks=has_ranks):
            take_step(batch_size)
            journal.write(f"step {fence} {training.step} {now_ns()}\n")
            job.report(training.step)
        begun_ns = now_ns()
        if job.rank() == 0:
            save(training, extra)
        else:
            job.checkpointed("", training.step)
        journal.write(f"saved {fence} {(now_ns() - begun_ns) / 1e6:.3f}\n")
        job.leave()


if __name__ == "__main__":
    run_training(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4])
