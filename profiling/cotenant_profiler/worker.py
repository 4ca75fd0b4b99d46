"""A resident measuring process: python -m cotenant_profiler.worker --core N | --cuda.

Reads one JSON object per line from standard input and answers each with one line on standard output. It lives through
many measurements, because starting Python and importing torch costs more than a measurement. End of input ends it.

    ready {}               the framework is imported, nothing is on the device yet                -> {}
    prepare {job, steps_min, duration_ms_min, duration_ms_max}   build (or reuse) and warm up     -> {steady}
    measure {job, wait_ms, start_ns, warm_in_ms, window_ms, tail_ms}   step through the window    -> figures
    memory {job, steps}    peak resident memory of the first job of this process                  -> {peak_bytes, ...}
    script {job, steps}    peak of a fresh process that trains as a user's script does            -> {peak_bytes}
    trace {job, wait_ms, samples, steps_min, duration_ms_max}   its memory at random instants     -> {samples}
    spin {start_ns, window_ms, cycles}   kernels of one block, one after the other, on a GPU       -> {kernels}
    hold {bytes}           take so much memory of a GPU and leave it again                        -> {}
    context {}             memory of a fresh process after its first tiny steps                   -> {context_bytes ...}
    rates {duration_ms}    what the device sustains, see device_rates                             -> {rates, ...}
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from cotenant_profiler import device_memory, device_rates, framework_baseline, plain_training, system_clock
from cotenant_profiler.errors import ProfilerError, WorkerError
from cotenant_profiler.job_spec import JobSpec
from cotenant_profiler.memory_trace import sample_memory
from cotenant_profiler.step_times import StepRecord, window_figures
from cotenant_profiler.training_loop import TrainingLoop

# Jobs kept built: on a GPU each holds its weights there, and the memory is for the jobs under measurement.
RESIDENT_JOBS_MAX = {"cpu": 24, "cuda": 2}

Command = dict[str, Any]


class Worker:
    """Carries out commands; keeps the jobs that it built, least recently used leave first."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._loops: OrderedDict[JobSpec, TrainingLoop] = OrderedDict()
        self._warm: set[JobSpec] = set()
        self._commands: dict[str, Callable[[Command], Command]] = {
            "ready": lambda command: {},
            "prepare": self._prepare,
            "measure": self._measure,
            "memory": self._measure_memory,
            "script": self._measure_script,
            "trace": self._trace_memory,
            "spin": self._spin,
            "hold": self._hold_memory,
            "context": self._measure_context,
            "rates": self._measure_rates,
        }

    def answer(self, command: Command) -> Command:
        """Return the answer to one command; failures are answers with the key `error`."""
        try:
            return self._commands[command["do"]](command)
        except torch.OutOfMemoryError as error:
            self._loops.clear()
            return {"error": f"out of memory: {error}", "out_of_memory": True}
        except (ProfilerError, RuntimeError, ValueError, KeyError) as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def _loop(self, spec: JobSpec) -> TrainingLoop:
        if spec not in self._loops:
            while len(self._loops) >= RESIDENT_JOBS_MAX[self._device]:
                self._warm.discard(self._loops.popitem(last=False)[0])
                device_memory.give_back(self._device)
            self._loops[spec] = TrainingLoop(spec, self._device)
        self._loops.move_to_end(spec)
        return self._loops[spec]

    def _prepare(self, command: Command) -> Command:
        spec = JobSpec(**command["job"]).without_wait
        loop = self._loop(spec)
        if spec not in self._warm:
            steady = loop.warm_up(
                steps_min=command["steps_min"],
                duration_ms_min=command["duration_ms_min"],
                duration_ms_max=command["duration_ms_max"],
            )
            self._warm.add(spec)
            return {"steady": steady}
        return {"steady": True}

    def _measure(self, command: Command) -> Command:
        loop = self._loop(JobSpec(**command["job"]).without_wait)
        begin_ns = command["start_ns"] + round(1e6 * command["warm_in_ms"])
        end_ns = begin_ns + round(1e6 * command["window_ms"])
        leave_ns = end_ns + round(1e6 * command["tail_ms"])
        records: list[StepRecord] = []
        system_clock.sleep_until_ns(command["start_ns"])
        while not records or records[-1].end_ns < leave_ns:
            records.append(loop.step(command["wait_ms"]))
        return dataclasses.asdict(window_figures(records, begin_ns, end_ns))

    def _measure_memory(self, command: Command) -> Command:
        if self._loops:
            raise WorkerError("peak memory is a property of a fresh process; this one has built jobs before")
        spec = JobSpec(**command["job"]).without_wait
        with device_memory.peak(self._device) as memory:
            loop = self._loop(spec)
            for _ in range(command["steps"]):
                loop.step()
        return dataclasses.asdict(memory)

    def _measure_script(self, command: Command) -> Command:
        if self._loops:
            raise WorkerError("a script trains in a fresh process; this one has built jobs before")
        spec = JobSpec(**command["job"])
        return {"peak_bytes": plain_training.train(spec.architecture, spec.batch, command["steps"])}

    def _trace_memory(self, command: Command) -> Command:
        if self._loops:
            raise WorkerError("a trace of memory needs a fresh process; this one has built jobs before")
        loop_spec = JobSpec(**command["job"]).without_wait
        samples = sample_memory(
            lambda: self._loop(loop_spec),
            device_memory.reader(self._device),
            wait_ms=command["wait_ms"],
            samples=command["samples"],
            steps_min=command["steps_min"],
            duration_ms_max=command["duration_ms_max"],
        )
        return {"samples": [dataclasses.asdict(sample) for sample in samples]}

    def _spin(self, command: Command) -> Command:
        self._refuse_without_gpu()
        end_ns = max(command["start_ns"], system_clock.now_ns()) + round(1e6 * command["window_ms"])
        system_clock.sleep_until_ns(command["start_ns"])
        kernels = 0
        while kernels == 0 or system_clock.now_ns() < end_ns:
            # One thread that counts cycles: the only kernel of PyTorch that takes time and no room.
            torch.cuda._sleep(command["cycles"])  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
            kernels += 1
        return {"kernels": kernels}

    def _hold_memory(self, command: Command) -> Command:
        self._refuse_without_gpu()
        torch.empty(command["bytes"], dtype=torch.uint8, device="cuda")
        device_memory.give_back(self._device)
        return {}

    def _measure_context(self, command: Command) -> Command:
        """What a first step takes, and what a first convolution takes beyond it; on a GPU the driver knows more."""
        place = torch.device(self._device)
        with device_memory.peak(self._device) as first:
            device_rates.tiny_step(nn.Linear(8, 8).to(place), torch.zeros(8, 8, device=place))()
        with device_memory.peak(self._device) as convolving:
            images = torch.zeros(1, 8, 8, 8, device=place)
            device_rates.tiny_step(nn.Conv2d(8, 8, 3).to(place), images)()
        return {
            "context_bytes": first.peak_bytes + framework_baseline.imported_ahead_bytes(),
            "workspace_bytes": convolving.peak_bytes,
            "reserved_bytes": convolving.reserved_bytes,
        }

    def _measure_rates(self, command: Command) -> Command:
        duration_ms = command["duration_ms"]
        return {
            "rates": device_rates.measure_rates(self._device, duration_ms),
            "copy_bytes_per_s": device_rates.measure_copy(self._device, duration_ms),
            "launch_ms": device_rates.measure_launch(self._device, duration_ms),
            "host_steps_per_s": device_rates.measure_host_steps(self._device, duration_ms),
        }

    def _refuse_without_gpu(self) -> None:
        if self._device != "cuda":
            raise WorkerError("this is about a GPU, and the worker has none")


def main(arguments: Sequence[str] | None = None) -> None:
    """Answer commands until the input ends.

    Args:
        arguments: Those of the command line; None = as it was started.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--core", type=int, help="the only core that this process may use, and its device")
    place.add_argument("--cuda", action="store_true", help="the device is the visible GPU")
    options = parser.parse_args(arguments)
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    torch.set_num_threads(1)
    worker = Worker("cuda" if options.cuda else "cpu")
    answers = sys.stdout
    # Whatever a library prints must not end up between the answers.
    sys.stdout = sys.stderr
    for line in sys.stdin:
        answers.write(json.dumps(worker.answer(json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
