"""What a reshape costs a live job: from nothing, with its imports prepared, and with its network built beforehand.

    python -m benchmarks.reshape [--repeats 20] [--model cnn] [--extra-mb 0] [--ranks 0]

A real scheduler and agent with two stand-in devices; a job has both, gives one of them up for another job, and has
both again. With `--ranks 2` it has a process per device, trained with DistributedDataParallel over gloo, and rank 0
keeps the journal: the gap is that of the gang, its rendezvous included. A gap is the time between the last step of one
attempt and the first of the next, less saving, loading and a step. The three ways take turns, so that they meet the
same machine. Steps that the present attempt loses while the next one is prepared are those that it would have made at
its usual pace.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import reshape_job
from tests.support.fake_predictor import FakePredictor
from tests.support.interruptions import unwind_when_ended
from tests.support.policy_cluster import ENDLESS, PATIENCE_S, PolicyCluster, policy_cluster
from tests.support.scheduler_process import wait_until

COLD, IMPORTS, BUILT = "from_nothing", "imports_prepared", "built_beforehand"
WAYS = {COLD: "imports", IMPORTS: "imports", BUILT: "build"}
RESHAPES_PER_TURN = 4
STEPS_BETWEEN = 8
# An untouched script must not mention the call: the node would leave the waiting to it.
_UNTOUCHED = """
import sys
from pathlib import Path
from benchmarks import reshape_job
reshape_job.run_training(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4])
"""


@dataclass
class Attempt:
    """What the journal says of one attempt; times in ms since boot."""

    begin_ms: float = 0.0
    go_ms: float = 0.0
    load_ms: float = 0.0
    save_ms: float = 0.0
    steps: list[tuple[int, float]] = field(default_factory=list)

    @property
    def step_ms(self) -> float:
        """Median of its steps."""
        times = [at_ms for _, at_ms in self.steps]
        return statistics.median(after - before for before, after in itertools.pairwise(times))


def read_journal(lines: Sequence[str]) -> list[Attempt]:
    """Return the attempts in the order of their fences."""
    found: dict[int, Attempt] = {}
    for line in lines:
        kind, fence, *values = line.split()
        attempt = found.setdefault(int(fence), Attempt())
        if kind == "step":
            attempt.steps.append((int(values[0]), int(values[1]) / 1e6))
        elif kind == "begin":
            attempt.begin_ms = int(values[0]) / 1e6
        elif kind == "go":
            attempt.go_ms = int(values[0]) / 1e6
        elif kind == "loaded":
            attempt.load_ms = float(values[1])
        else:
            attempt.save_ms = float(values[0])
    return [found[fence] for fence in sorted(found)]


def gap_ms(old: Attempt, new: Attempt) -> float:
    """Return how long no step was made, less saving, loading and the step itself."""
    whole_ms = new.steps[0][1] - old.steps[-1][1]
    return whole_ms - old.save_ms - new.load_ms - new.step_ms


def lost_steps(old: Attempt, new: Attempt) -> float:
    """Return how many steps fewer the old attempt made, from the start of the new one to its own last step."""
    meanwhile = [at_ms for _, at_ms in old.steps if at_ms >= new.begin_ms]
    usual = [at_ms for _, at_ms in old.steps if at_ms < new.begin_ms]
    if len(meanwhile) < 2 or len(usual) < 2:
        return 0.0
    usual_ms = statistics.median(after - before for before, after in itertools.pairwise(usual))
    return max(0.0, (meanwhile[-1] - new.begin_ms) / usual_ms - len(meanwhile))


class Scene:
    """A cluster on which jobs are reshaped on demand."""

    def __init__(self, cluster: PolicyCluster, model: str, extra_mb: int, ranks: int) -> None:
        self._cluster, self._model, self._extra_mb, self._ranks = cluster, model, extra_mb, ranks
        self._turns = 0
        cluster.use("drf", "interval_ms=500")
        (cluster.folder / "untouched.py").write_text(_UNTOUCHED)

    def reshape(self, way: str, times: int) -> list[Attempt]:
        """Run a job that is reshaped so many times; return its attempts."""
        cluster, self._turns = self._cluster, self._turns + 1
        journal = cluster.folder / f"journal-{self._turns}"
        script = reshape_job.__file__ if way == BUILT else str(cluster.folder / "untouched.py")
        wide = cluster.submit(
            f"wide-{self._turns}",
            command=[script, str(journal), self._model, str(self._extra_mb), WAYS[way]],
            steps=ENDLESS,
            gpus=2,
            ranks=self._ranks,
            allowed_gpus=[1, 2],
            share="SHARE_MODE_NEVER",
            no_preparation=way == COLD,
        )
        other = ""
        for number in range(times + 1):
            self._wait_for_steps(journal, attempts=number + 1)
            if number == times:
                break
            if other:
                cluster.client.cancel(other)
                other = ""
            else:
                sleep = ["-c", "import time; time.sleep(3600)"]
                other = cluster.submit("other", command=sleep, steps=ENDLESS, share="SHARE_MODE_NEVER")
        for job_id in filter(None, (wide, other)):
            cluster.client.cancel(job_id)
            cluster.wait(job_id, "CANCELLED")
        return read_journal(journal.read_text().splitlines())[: times + 1]

    def _wait_for_steps(self, journal: Path, *, attempts: int) -> None:
        def has_steps() -> bool:
            found = read_journal(journal.read_text().splitlines()) if journal.exists() else []
            begun = [attempt for attempt in found if attempt.steps]
            return len(begun) >= attempts and len(begun[attempts - 1].steps) > STEPS_BETWEEN

        wait_until(has_steps, what="steps", timeout_s=PATIENCE_S)


def measure(repeats: int, model: str, extra_mb: int, ranks: int) -> dict[str, object]:
    """Take turns until every way has been measured so often."""
    gaps: dict[str, list[float]] = {way: [] for way in WAYS}
    lost: dict[str, list[float]] = {way: [] for way in WAYS}
    begun = time.perf_counter()
    with (
        tempfile.TemporaryDirectory() as folder,
        FakePredictor() as predictor,
        policy_cluster(Path(folder), policy="fifo", predictor=predictor, gpus=2) as cluster,
    ):
        scene = Scene(cluster, model, extra_mb, ranks)
        while len(gaps[COLD]) < repeats:
            for way in WAYS:
                attempts = scene.reshape(way, min(RESHAPES_PER_TURN, repeats - len(gaps[way])))
                pairs = list(itertools.pairwise(attempts))
                gaps[way] += [gap_ms(old, new) for old, new in pairs]
                lost[way] += [lost_steps(old, new) if way != COLD else 0.0 for old, new in pairs]
    cold_ms = statistics.median(gaps[COLD])
    rows = {way: _row(gaps[way], lost[way], cold_ms) for way in WAYS}
    return {
        "model": model,
        "extra_mb": extra_mb,
        "ranks": ranks,
        "repeats": repeats,
        "ways": rows,
        "wall_s": time.perf_counter() - begun,
    }


def _row(gaps: Sequence[float], lost: Sequence[float], cold_ms: float) -> Mapping[str, object]:
    return {
        "gap_median_ms": round(statistics.median(gaps), 1),
        "gap_over_cold_ratio": round(statistics.median(gaps) / cold_ms, 3),
        "gaps_ms": [round(one) for one in sorted(gaps)],
        "lost_steps_median": round(statistics.median(lost), 1),
        "lost_steps_max": round(max(lost), 1),
    }


def main(repeats: int = 20, model: str = "cnn", extra_mb: int = 0, ranks: int = 0) -> dict[str, object]:
    """Measure all three ways; `ranks` 2 = a process per device, 0 = one for both."""
    return measure(repeats, model, extra_mb, ranks)


if __name__ == "__main__":
    unwind_when_ended()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--extra-mb", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=0, choices=(0, 2))
    print(json.dumps(main(**vars(parser.parse_args())), indent=1))
