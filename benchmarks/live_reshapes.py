"""What reshapes of many live jobs cost, prepared beside the present attempt and by termination, on the same events.

    python -m benchmarks.live_reshapes [--jobs 20] [--model mlp]

A real scheduler and agent with two stand-in devices under the policy `elastic`. Each job has both devices until the
next one comes, for which it gives one up; when the earlier of two ends, the later one has both: every job but the last
is reshaped down, every job but the first up. First each next attempt is prepared (`prepared`), then every job is asked
to let nothing be prepared and starts again from nothing (`termination`).

    lost_s              of all reshapes: between the last step of one attempt and the first of the next, less saving,
                        loading and a step; and steps that the present attempt makes fewer while the next is prepared
    lost_median_ms      of one reshape
    newcomer_wait_s     mean time from submission to the first step of jobs that others make room for: these wait longer
                        where what makes room is prepared first
    lost_ratio          prepared over termination

Prints JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import reshape_job
from benchmarks.reshape import STEPS_BETWEEN, Attempt, gap_ms, lost_steps, read_journal
from tests.support.fake_predictor import FakePredictor
from tests.support.interruptions import unwind_when_ended
from tests.support.policy_cluster import ENDLESS, PATIENCE_S, PolicyCluster, policy_cluster
from tests.support.scheduler_process import wait_until

WAYS = {"prepared": False, "termination": True}
"""Whether jobs ask for no preparation."""


class Succession:
    """Jobs that follow each other on two devices."""

    def __init__(self, cluster: PolicyCluster, model: str, *, no_preparation: bool) -> None:
        self._cluster, self._model, self._no_preparation = cluster, model, no_preparation
        self._job_ids: list[str] = []
        self.waits_ms: list[float] = []
        cluster.use("elastic", "reshape_cost_ms=1000", "start_cost_ms=1000")

    def run(self, jobs: int) -> list[list[Attempt]]:
        """Let so many jobs come and go; return the attempts of each."""
        self._submit()
        self._wait_for_steps(0, attempts=1)
        for number in range(1, jobs):
            submitted_ms = reshape_job.now_ns() / 1e6
            self._submit()
            self._wait_for_steps(number - 1, attempts=2 if number == 1 else 3)
            self._wait_for_steps(number, attempts=1)
            self.waits_ms.append(self._attempts(number)[0].steps[0][1] - submitted_ms)
            self._end(number - 1)
            self._wait_for_steps(number, attempts=2)
        self._end(jobs - 1)
        return [self._attempts(number) for number in range(jobs)]

    def _journal(self, number: int) -> Path:
        return self._cluster.folder / f"journal-{number}"

    def _submit(self) -> None:
        number = len(self._job_ids)
        command = [reshape_job.__file__, str(self._journal(number)), self._model, "0", "build"]
        job_id = self._cluster.submit(
            f"job-{number}",
            command=command,
            steps=ENDLESS,
            allowed_gpus=[1, 2],
            share="SHARE_MODE_NEVER",
            no_preparation=self._no_preparation,
        )
        self._job_ids.append(job_id)

    def _end(self, number: int) -> None:
        self._cluster.client.cancel(self._job_ids[number])
        self._cluster.wait(self._job_ids[number], "CANCELLED")

    def _attempts(self, number: int) -> list[Attempt]:
        journal = self._journal(number)
        found = read_journal(journal.read_text().splitlines()) if journal.exists() else []
        return [attempt for attempt in found if attempt.steps]

    def _wait_for_steps(self, number: int, *, attempts: int) -> None:
        def has_steps() -> bool:
            begun = self._attempts(number)
            return len(begun) >= attempts and len(begun[attempts - 1].steps) > STEPS_BETWEEN

        wait_until(has_steps, what=f"steps of attempt {attempts} of job {number}", timeout_s=PATIENCE_S)


def measure(jobs: int, model: str, *, no_preparation: bool) -> Mapping[str, float]:
    """Run one way."""
    with (
        tempfile.TemporaryDirectory() as folder,
        FakePredictor() as predictor,
        policy_cluster(Path(folder), policy="fifo", predictor=predictor, gpus=2) as cluster,
    ):
        succession = Succession(cluster, model, no_preparation=no_preparation)
        attempts_by_job = succession.run(jobs)
    lost_ms = [_lost_ms(old, new) for attempts in attempts_by_job for old, new in itertools.pairwise(attempts)]
    return {
        "reshapes": len(lost_ms),
        "lost_s": round(sum(lost_ms) / 1_000, 2),
        "lost_median_ms": round(statistics.median(lost_ms), 1),
        "lost_max_ms": round(max(lost_ms), 1),
        "newcomer_wait_s": round(statistics.fmean(succession.waits_ms) / 1_000, 2),
    }


def _lost_ms(old: Attempt, new: Attempt) -> float:
    return gap_ms(old, new) + lost_steps(old, new) * old.step_ms


def main(jobs: int = 20, model: str = "mlp") -> dict[str, object]:
    """Run both ways."""
    begun = time.perf_counter()
    found = {way: measure(jobs, model, no_preparation=chosen) for way, chosen in WAYS.items()}
    return {
        "jobs": jobs,
        "model": model,
        "ways": found,
        "lost_ratio": round(found["prepared"]["lost_s"] / found["termination"]["lost_s"], 3),
        "wall_s": round(time.perf_counter() - begun, 1),
    }


def _main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--model", default="mlp")
    found = parser.parse_args(arguments)
    print(json.dumps(main(max(found.jobs, 2), found.model), indent=1))


if __name__ == "__main__":
    unwind_when_ended()
    _main()
