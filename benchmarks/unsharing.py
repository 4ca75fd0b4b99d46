"""What it is worth to move co-located jobs apart when GPUs fall idle: sjf_bsbf with `unshare` and without it.

    python -m benchmarks.unsharing [--windows 20] [--jobs 1000]

Prints JSON. Needs the public traces (COTENANT_SHARED_DATA). Philly's jobs of at most 48 GPUs on 6 x 8 GPUs, which all
accept to be twice as slow when co-located; every two jobs slow each other down by 0.5; moves cost what the simulator
charges by default. `first_400` are the first 400 jobs; the windows are so many jobs, one window every 4,000 jobs of the
trace, each on an empty cluster. Of each: the mean time from submission to end, shared GPU-hours, and the share of them
during which any GPU was idle, or as many GPUs as the narrowest job there would need to leave all that it shares.

`could_part_gpu_hours` and `could_gain_ratio` say what is left at most, instant by instant of that run: the shared
GPU-hours beside an idle GPU while any arrangement of the same jobs on the same GPUs, two at most on each, has more jobs
alone, and what all completion times together would be shorter by if jobs were always so arranged then, for nothing.
What follows from jobs that end sooner is not counted, nor that a gang's GPUs should be on few nodes.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from statistics import fmean

from benchmarks.simulator import CONSENT, shared_traces
from cotenant_simulator.readers.trace_file import read_trace
from cotenant_simulator.run.records import RunSettings
from cotenant_simulator.run.simulation import Simulation
from cotenant_simulator.truth.cluster import read_cluster
from cotenant_simulator.truth.predictions import NoErrors, TruthPredictor
from cotenant_simulator.truth.trace import Trace, TraceJob
from scheduler_service.core import commands, events
from scheduler_service.core.state import ClusterState

CLUSTER, GPUS = "6x8", 48
FIRST_JOBS, BETWEEN_WINDOWS = 400, 4_000
HOUR_MS = 3_600_000
GAINED_ALONE_RATIO = 0.5
"""How much sooner a job ends at most for each hour alone: what takes 1.5 hours with others is done in one."""


@dataclass(slots=True)
class SharedTime:
    """GPU time while two jobs or more held a GPU, in ms: in all, with any idle GPU, and with enough of them.

    Attributes:
        could_part: That with any idle GPU while more jobs could be alone.
        could_be_alone: Job time of as many more as could be alone while a GPU is idle, in ms.
    """

    shared: float = 0.0
    beside_idle: float = 0.0
    beside_enough: float = 0.0
    could_part: float = 0.0
    could_be_alone: float = 0.0
    _seen_at_ms: int = 0
    _now: tuple[int, int, int, int, int] = field(default=(0, 0, 0, 0, 0))

    def look(self, state: ClusterState) -> None:
        """Count the time since the last look, and remember what holds from now on."""
        elapsed_ms = state.now_ms - self._seen_at_ms
        shared, beside_idle, beside_enough, could_part, could_be_alone = self._now
        self.shared += shared * elapsed_ms
        self.beside_idle += beside_idle * elapsed_ms
        self.beside_enough += beside_enough * elapsed_ms
        self.could_part += could_part * elapsed_ms
        self.could_be_alone += could_be_alone * elapsed_ms
        self._seen_at_ms, self._now = state.now_ms, _shared_gpus(state)


def alone_at_most(widths: Iterable[int], gpus: int) -> int:
    """Return how many jobs can be alone on their GPUs at most, all running and two on a GPU at most.

    Where jobs of `alone` GPUs in sum are alone, the others have the rest twice at most: total - alone is at most
    2 * (gpus - alone), so alone is at most 2 * gpus - total, and the narrowest jobs are most for that.

    Args:
        widths: GPUs of each job.
        gpus: Of the cluster.
    """
    ordered = sorted(widths)
    room = 2 * gpus - sum(ordered)
    return sum(taken <= room for taken in accumulate(ordered))


def _shared_gpus(state: ClusterState) -> tuple[int, int, int, int, int]:
    usable = state.usable_gpus
    crowded = {gpu_id: one for gpu_id, one in usable.items() if len(one.job_ids) > 1}
    idle = len(state.occupancy.free_gpu_ids)
    if not idle or not crowded:
        return len(crowded), 0, 0, 0, 0
    widths = {
        job_id: sum(gpu_id in crowded for gpu_id in state.jobs[job_id].gpu_ids)
        for one in crowded.values()
        for job_id in one.job_ids
    }
    narrow = sum(min(widths[job_id] for job_id in one.job_ids) <= idle for one in crowded.values())
    running = {job_id for one in usable.values() for job_id in one.job_ids}
    most = alone_at_most((len(state.jobs[job_id].gpu_ids) for job_id in running), len(usable))
    more = max(most - len(running - widths.keys()), 0)
    return len(crowded), len(crowded), narrow, len(crowded) if more else 0, more


def run(trace: Trace, *, unshare: bool) -> dict[str, float]:
    """Run sjf_bsbf on one list of jobs."""
    time_shared, began_s = SharedTime(), time.process_time()

    def observe(_: events.Event, __: Sequence[commands.Command]) -> None:
        time_shared.look(simulation.engine.state)

    simulation = Simulation(
        trace,
        read_cluster(CLUSTER, device=trace.device),
        TruthPredictor(trace.truth, NoErrors()),
        RunSettings(policy="sjf_bsbf", parameters={"unshare": unshare}),
        observe=observe,
    )
    result = simulation.run()
    if result.unfinished:
        raise RuntimeError(f"{result.unfinished} jobs did not finish")
    waited_ms = sum(one.finished_at_ms - one.submitted_at_ms for one in result.jobs)
    return {
        "jct_mean_s": round(waited_ms / len(result.jobs) / 1_000, 1),
        "makespan_s": round((result.ended_at_ms - result.began_at_ms) / 1_000, 1),
        "shared_gpu_hours": round(time_shared.shared / HOUR_MS, 1),
        "beside_idle_gpu_hours": round(time_shared.beside_idle / HOUR_MS, 1),
        "beside_enough_gpu_hours": round(time_shared.beside_enough / HOUR_MS, 1),
        "could_part_gpu_hours": round(time_shared.could_part / HOUR_MS, 1),
        "could_gain_ratio": round(GAINED_ALONE_RATIO * time_shared.could_be_alone / waited_ms, 4),
        "moves": sum(one.migrations for one in result.jobs),
        "cpu_s": round(time.process_time() - began_s, 1),
    }


def compare(trace: Trace, jobs: Sequence[TraceJob]) -> dict[str, object]:
    """Run some jobs of a trace with un-sharing off and on, from the first one's submission."""
    began_ms = jobs[0].submitted_at_ms
    cut = replace(trace, jobs=[replace(one, submitted_at_ms=one.submitted_at_ms - began_ms) for one in jobs])
    found = {"off": run(cut, unshare=False), "on": run(cut, unshare=True)}
    return {**found, **summed([found])}


def summed(found: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, object]:
    """Return the shares with idle GPUs over all lists together, and the mean of the ratios of completion times."""
    shares: dict[str, object] = {}
    for way in ("off", "on"):
        hours = {name: sum(one[way][name] for one in found) for name in found[0][way]}
        shared = hours["shared_gpu_hours"]
        shares[f"beside_idle_ratio_{way}"] = round(hours["beside_idle_gpu_hours"] / shared, 3) if shared else 0.0
        shares[f"beside_enough_ratio_{way}"] = round(hours["beside_enough_gpu_hours"] / shared, 3) if shared else 0.0
        shares[f"could_gain_ratio_{way}"] = round(fmean(one[way]["could_gain_ratio"] for one in found), 4)
    ratios = [one["on"]["jct_mean_s"] / one["off"]["jct_mean_s"] for one in found]
    return {**shares, "jct_ratio_mean": round(fmean(ratios), 4), "lists_slower": sum(ratio > 1.0 for ratio in ratios)}


def main(windows: int = 20, jobs: int = 1_000) -> dict[str, object]:
    """Compare on the first 400 jobs and on the windows."""
    trace = read_trace(shared_traces() / "philly/philly_jobs.csv", CONSENT)
    narrow = [one for one in trace.jobs if one.request.gpus <= GPUS]
    lists = {f"first_{FIRST_JOBS}": narrow[:FIRST_JOBS]}
    lists |= {f"from_{first}": narrow[first : first + jobs] for first in range(0, windows * BETWEEN_WINDOWS, 4_000)}
    found = {}
    for name, chosen in lists.items():
        if chosen:
            found[name] = compare(trace, chosen)
            sys.stderr.write(f"{name}: {json.dumps(found[name])}\n")
    in_windows = [one for name, one in found.items() if name.startswith("from_")]
    return {"lists": found, "windows": summed(in_windows) if in_windows else {}}  # type: ignore[arg-type]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=1_000)
    print(json.dumps(main(**vars(parser.parse_args())), indent=1))
