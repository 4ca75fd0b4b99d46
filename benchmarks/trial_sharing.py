"""Do jobs that nothing was measured of end sooner by sharing on trial? Really run, on stand-in devices.

    python -m benchmarks.trial_sharing [--seeds 5] [--jobs 20] [--scale 1.0] [--cores 0,1]

Scheduler, agent and jobs are processes; the predictor is part of this program: it knows step time and memory of a job
up to an error of 20 %, calls every answer out of domain, and knows no pair. Each seed draws JOBS jobs of 10 to 25 s
alone (times `--scale`), three in five of which wait for input for half of their time or longer, all submitted within a
few seconds, no two alike. They run twice: under sjf, every job alone, and under sjf_bsbf with trials. Every job accepts
steps that take half as long again. Nodes report four times a second, since all limits of trials follow that interval
and these jobs are so short. Prints JSON:

    jct_mean_s, jct_ratio   mean completion time, and over that of sjf, paired by seed with its 95 % interval.
    beyond_consent_ratio    the most by which a job held its device longer than alone under sjf, less its consent.
    lost_ratio              device time of restarts and pauses over all device time.
    out_of_memory           ends of that kind.
    unmeasured_jobs         jobs of which no window alone was sound: they were too short, or others used the cores.

The machine must be quiet: a window in which others used a core teaches nothing, so nothing is tried. `load` says.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import fmean

import grpc

from benchmarks import trial_sharing_job
from benchmarks.papers.seeds import interval_of
from cotenant.v1 import (
    prediction_pb2,
    resources_pb2,
    scheduling_pb2,
    scheduling_pb2_grpc,
)
from tests.support.interruptions import unwind_when_ended

CONSENT_RATIO = 0.5
WAITING_RATIO = 0.6
MIB = 2**20
HEARTBEAT_MS = 250
"""These jobs are a hundred times as short as others: nodes report more often than every two seconds, too."""
DEVICE_BYTES = 4 * 2**30
READY_S = 60.0
RUN_S_MAX = 1_200.0
ROOT = Path(__file__).resolve().parents[1]
ENDED = frozenset(
    {scheduling_pb2.JOB_PHASE_FINISHED, scheduling_pb2.JOB_PHASE_FAILED, scheduling_pb2.JOB_PHASE_CANCELLED}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnJob:
    """One job and what is true of it."""

    name: str
    steps: int
    step_cpu_ms: float
    wait_ms: float
    memory_mib: int
    submit_after_s: float

    @property
    def graph_sha256(self) -> str:
        """Stands for a graph of its own."""
        return hashlib.sha256(repr(self).encode()).hexdigest()

    @property
    def step_ms(self) -> float:
        """One step alone."""
        return self.step_cpu_ms + self.wait_ms

    def spec(self) -> scheduling_pb2.JobSpec:
        """Return what is submitted."""
        numbers = (self.steps, self.step_cpu_ms, self.wait_ms, self.memory_mib)
        return scheduling_pb2.JobSpec(
            name=self.name,
            command=[sys.executable, "-m", trial_sharing_job.__name__, *map(str, numbers)],
            working_directory=str(ROOT),
            graph_sha256=self.graph_sha256,
            settings=resources_pb2.JobSettings(global_batch_size=8),
            steps_total=self.steps,
            max_slowdown_ratio=CONSENT_RATIO,
        )


def draw_jobs(count: int, seed: int, scale: float) -> list[DrawnJob]:
    """Draw the jobs of a seed; the first of them wait for input, in random order of submission."""
    random = Random(seed)
    found = []
    for number in range(count):
        is_waiting = number < round(count * WAITING_RATIO)
        wait_ratio = random.uniform(0.5, 0.8) if is_waiting else random.uniform(0.0, 0.3)
        step_ms = random.uniform(30.0, 80.0)
        length_s = random.uniform(10.0, 25.0) * scale
        found.append(
            DrawnJob(
                name=f"{'waiting' if is_waiting else 'busy'}-{number}",
                steps=max(int(length_s * 1_000 / step_ms), 5),
                step_cpu_ms=round(step_ms * (1 - wait_ratio), 3),
                wait_ms=round(step_ms * wait_ratio, 3),
                memory_mib=random.randint(300, 600),
                submit_after_s=random.uniform(0.0, 5.0),
            )
        )
    return sorted(found, key=lambda job: job.submit_after_s)


class DoubtfulPredictor:
    """Answers about the drawn jobs with an error, always out of domain; of pairs it knows nothing.

    Args:
        jobs: What is true.
    """

    def __init__(self, jobs: Sequence[DrawnJob]) -> None:
        self._jobs = {job.graph_sha256: job for job in jobs}

    def handler(self) -> grpc.GenericRpcHandler:
        """Return what a server serves of it; every other method is unimplemented."""
        predict = grpc.unary_unary_rpc_method_handler(
            lambda request, context: self._predict(request),
            request_deserializer=prediction_pb2.PredictJobRequest.FromString,
            response_serializer=prediction_pb2.PredictJobResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler("cotenant.v1.PredictionService", {"PredictJob": predict})

    def _predict(self, request: prediction_pb2.PredictJobRequest) -> prediction_pb2.PredictJobResponse:
        job = self._jobs[request.graph_sha256]
        factor = Random(request.graph_sha256).uniform(0.8, 1.2)
        memory, step_ms = _doubtful(job.memory_mib * MIB * factor), _doubtful(job.step_ms * factor)
        return prediction_pb2.PredictJobResponse(
            prediction_id=request.graph_sha256[:16],
            model_version="stub",
            utilization_ratio=_doubtful(1.0),
            memory_bytes=memory,
            step_ms=step_ms,
            fits=True,
            micro_batches=[
                prediction_pb2.MicroBatchEstimate(
                    micro_batch_size=size, accumulation_steps=1, memory_bytes=memory, step_ms=step_ms
                )
                for size in request.micro_batch_sizes
            ],
        )


def _doubtful(value: float) -> resources_pb2.Estimate:
    return resources_pb2.Estimate(
        value=value,
        lower=value / 2,
        upper=value * 2,
        upper_99=value * 3,
        confidence=0.9,
        level=resources_pb2.ESTIMATE_LEVEL_GRAPH,
        in_domain=False,
    )


@contextmanager
def cluster(
    folder: Path, policy: str, cores: str, handler: grpc.GenericRpcHandler | None, options: Sequence[str] = ()
) -> Iterator[str]:
    """Run predictor, scheduler and one agent; yield the scheduler's address.

    Args:
        folder: For state and logs.
        policy: Of the scheduler.
        cores: That stand in for devices.
        handler: What answers as the predictor; None = nothing is predicted.
        options: Of the scheduler, besides.
    """
    server = grpc.server(ThreadPoolExecutor(4))
    predictor = ""
    if handler is not None:
        server.add_generic_rpc_handlers((handler,))
        predictor = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
    ready = folder / "scheduler.json"
    serve = ["scheduler_service", "serve", "--address", "127.0.0.1:0", "--metrics-address", "127.0.0.1:0"]
    serve += ["--state-dir", str(folder / "scheduler"), "--predictor", predictor, "--policy", policy]
    serve += ["--heartbeat-ms", str(HEARTBEAT_MS), "--progress-interval-ms", "100", "--ready-file", str(ready)]
    serve += options
    programs = [_start(folder, serve)]
    try:
        address = _address(ready)
        agent = ["cotenant_agent", "run", "--scheduler", address, "--node-id", "bench", "--sample-ms", "100"]
        agent += ["--state-dir", str(folder / "agent"), "--standin-cores", cores, "--stop-jobs-on-exit"]
        agent += ["--standin-memory-bytes", str(DEVICE_BYTES)]
        agent += ["--allow-directory", str(ROOT), "--allow-any-command"]
        programs.append(_start(folder, agent))
        yield address
    finally:
        for program in reversed(programs):
            program.terminate()
            program.wait(timeout=60)
        server.stop(None).wait()


def _start(folder: Path, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    with (folder / f"{arguments[0]}.log").open("ab") as log:
        return subprocess.Popen([sys.executable, "-m", *arguments], cwd=ROOT, stdout=log, stderr=log)


def _address(ready: Path) -> str:
    until_s = time.monotonic() + READY_S
    while not ready.exists():
        if time.monotonic() > until_s:
            raise TimeoutError(f"the scheduler is not ready; see {ready.parent}")
        time.sleep(0.05)
    return str(json.loads(ready.read_text(encoding="utf-8"))["address"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one job.

    Attributes:
        stay_s: From submission to its end.
        held_s: It held a device, pauses left out.
        lost_s: It held a device without stepping because of trials: pauses, and starts after the first.
    """

    stay_s: float
    held_s: float
    lost_s: float
    attempts: int
    out_of_memory: int
    was_measured: bool
    has_finished: bool


def run(
    jobs: Sequence[DrawnJob],
    policy: str,
    cores: str,
    handler: grpc.GenericRpcHandler | None,
    options: Sequence[str] = (),
) -> dict[str, Outcome]:
    """Run the jobs once and return what became of each, by name; arguments as those of `cluster`."""
    with tempfile.TemporaryDirectory(prefix="cotenant-trials-") as name:
        folder = Path(name)
        with cluster(folder, policy, cores, handler, options) as address, grpc.insecure_channel(address) as channel:
            stub = scheduling_pb2_grpc.SchedulingServiceStub(channel)
            _wait_for_devices(stub)
            ids = _submit(stub, jobs)
            _wait_for_end(stub, len(ids))
            return {job.name: _outcome(stub, ids[job.name]) for job in jobs}


def _wait_for_devices(stub: scheduling_pb2_grpc.SchedulingServiceStub) -> None:
    until_s = time.monotonic() + READY_S
    while not stub.ListNodes(scheduling_pb2.ListNodesRequest(), timeout=20, wait_for_ready=True).nodes:
        if time.monotonic() > until_s:
            raise TimeoutError("no agent has joined")
        time.sleep(0.1)


def _submit(stub: scheduling_pb2_grpc.SchedulingServiceStub, jobs: Sequence[DrawnJob]) -> dict[str, str]:
    began_s, ids = time.monotonic(), {}
    for job in jobs:
        time.sleep(max(began_s + job.submit_after_s - time.monotonic(), 0.0))
        ids[job.name] = stub.SubmitJob(scheduling_pb2.SubmitJobRequest(spec=job.spec()), timeout=30).job.job_id
    return ids


def _wait_for_end(stub: scheduling_pb2_grpc.SchedulingServiceStub, count: int) -> None:
    until_s = time.monotonic() + RUN_S_MAX
    while time.monotonic() < until_s:
        listed = stub.ListJobs(scheduling_pb2.ListJobsRequest(page_size=1_000), timeout=30).jobs
        if sum(job.phase in ENDED for job in listed) == count:
            return
        time.sleep(0.5)
    raise TimeoutError(f"the jobs did not end within {RUN_S_MAX:g} s")


def _outcome(stub: scheduling_pb2_grpc.SchedulingServiceStub, job_id: str) -> Outcome:
    answer = stub.ExplainJob(scheduling_pb2.ExplainJobRequest(job_id=job_id), timeout=30)
    job = answer.job
    return Outcome(
        stay_s=(job.finished_at_ms - job.submitted_at_ms) / 1_000,
        held_s=job.attained_gpu_ms / 1_000,
        lost_s=job.paused_ms / 1_000 + _restart_s(answer.history),
        attempts=job.attempt,
        out_of_memory=job.out_of_memory_count,
        was_measured=job.solo_step_ms > 0,
        has_finished=job.phase == scheduling_pb2.JOB_PHASE_FINISHED,
    )


def _restart_s(history: Sequence[scheduling_pb2.JobEvent]) -> float:
    """Return the time from each order to stop or move until GPUs are free, and from each later launch to its start."""
    lost_ms, since_ms, launches = 0, 0, 0
    for line in history:
        if line.kind in ("stop", "move"):
            since_ms = line.at_ms
        elif line.kind in ("requeue", "launch") and since_ms:
            lost_ms, since_ms = lost_ms + line.at_ms - since_ms, 0
        if line.kind == "launch":
            launches += 1
            since_ms = line.at_ms if launches > 1 else 0
        elif line.kind == "started" and since_ms:
            lost_ms, since_ms = lost_ms + line.at_ms - since_ms, 0
    return lost_ms / 1_000


def measure_seed(seed: int, *, jobs: int, scale: float, cores: str) -> dict[str, float]:
    """Run the jobs of one seed alone and on trial."""
    drawn = draw_jobs(jobs, seed, scale)
    load = os.getloadavg()[0]
    handler = DoubtfulPredictor(drawn).handler()
    alone, tried = run(drawn, "sjf", cores, handler), run(drawn, "sjf_bsbf", cores, handler)
    beyond = max(tried[name].held_s / alone[name].held_s - 1 - CONSENT_RATIO for name in tried)
    held_s = sum(one.held_s for one in tried.values())
    row = {
        "seed": seed,
        "load": round(load, 2),
        "jct_mean_alone_s": round(fmean(one.stay_s for one in alone.values()), 2),
        "jct_mean_s": round(fmean(one.stay_s for one in tried.values()), 2),
        "beyond_consent_ratio": round(beyond, 3),
        "lost_ratio": round(sum(one.lost_s for one in tried.values()) / held_s, 4),
        "restarts": sum(one.attempts - 1 for one in tried.values()),
        "out_of_memory": sum(one.out_of_memory for one in tried.values()),
        "unfinished": sum(not one.has_finished for one in tried.values()),
        "unmeasured_jobs": sum(not one.was_measured for one in tried.values()),
    }
    row["jct_ratio"] = round(row["jct_mean_s"] / row["jct_mean_alone_s"], 3)
    sys.stderr.write(f"{json.dumps(row)}\n")
    return row


def main(seeds: int = 5, jobs: int = 20, scale: float = 1.0, cores: str = "0,1") -> dict[str, object]:
    """Measure every seed."""
    rows = [measure_seed(seed, jobs=jobs, scale=scale, cores=cores) for seed in range(seeds)]
    ratios = [row["jct_ratio"] for row in rows]
    return {
        "jobs": jobs,
        "scale": scale,
        "consent_ratio": CONSENT_RATIO,
        "jct_ratio": round(fmean(ratios), 3),
        "jct_ratio_95": [round(end, 3) for end in interval_of(ratios)],
        "beyond_consent_ratio": max(row["beyond_consent_ratio"] for row in rows),
        "lost_ratio": round(fmean(row["lost_ratio"] for row in rows), 4),
        "out_of_memory": sum(row["out_of_memory"] for row in rows),
        "by_seed": rows,
    }


def run_command_line(
    measure: Callable[[int, int, float, str], object], description: str, seeds: int, jobs: int
) -> None:
    """Measure as the command line says, of which these are the usual numbers of seeds and jobs, and print JSON."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument("--jobs", type=int, default=jobs)
    parser.add_argument("--scale", type=float, default=1.0, help="of the jobs' lengths")
    parser.add_argument("--cores", default="0,1", help="that stand in for devices")
    arguments = parser.parse_args()
    found = measure(max(arguments.seeds, 1), max(arguments.jobs, 2), arguments.scale, arguments.cores)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    unwind_when_ended()
    run_command_line(main, __doc__, seeds=5, jobs=20)
