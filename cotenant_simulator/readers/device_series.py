"""Past jobs from what DCGM's exporter told of GPUs, as Prometheus' query_range answers.

curl --get http://prometheus:9090/api/v1/query_range --data-urlencode start=2026-03-01T00:00:00Z
          --data-urlencode end=2026-03-08T00:00:00Z --data-urlencode step=60
          --data-urlencode 'query={__name__=~"DCGM_FI_DEV_GPU_UTIL|DCGM_FI_DEV_FB_USED"}' > dcgm.json

A sample names the GPU and the job on it: of Kubernetes by namespace and pod, of Slurm by hpc_job where the exporter is
told the jobs. A job lasts from its first to its last sample.

Source: dcgm-exporter's README and its issue 587 (each job on a shared GPU is told the utilization of all).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Final

from cotenant_simulator.errors import TraceError
from cotenant_simulator.readers.accounting import Accounting, PastJob
from cotenant_simulator.readers.json_documents import Row, number_of, read_document, row_of, text_of

ORIGIN: Final = "Prometheus' api/v1/query_range (docs/shadow.md)"
UTILIZATION: Final = "DCGM_FI_DEV_GPU_UTIL"
MEMORY: Final = "DCGM_FI_DEV_FB_USED"
GAP_MS: Final = 300_000
"""A job that is not told for longer, while others are, has ended: as long as Prometheus holds a value for one."""
_MIB: Final = 2**20
# The letters of the parts that Kubernetes appends to names of Jobs and Deployments.
_PARTS: Final = re.compile(r"(?:-[bcdf-hj-np-tv-z2456789]{8,10})?-[bcdf-hj-np-tv-z2456789]{5}$")


@dataclass(slots=True)
class _Seen:
    """What was told of one job.

    Attributes:
        gpus: By instant in ms, on which GPUs it was.
    """

    name: str
    user: str
    gpus: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    utilization: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    memory_bytes: dict[int, float] = field(default_factory=dict)


def read_device_series(path: Path) -> Accounting:
    """Read an answer of Prometheus.

    Raises:
        TraceError: It is none of a range, or tells of no job that had a GPU to itself.
    """
    rows = _matrix(path, read_document(path, ORIGIN))
    skipped: Counter[str] = Counter()
    seen: dict[str, _Seen] = {}
    instants: set[int] = set()
    for row in rows:
        _add(row, seen, instants, skipped)
    looked = sorted(instants)
    step_ms = min((after - before for before, after in pairwise(looked)), default=0)
    shared = _shared(seen.values())
    jobs = [
        job
        for job_id, one in seen.items()
        for job in _jobs(job_id, one, looked=looked, step_ms=step_ms, shared=shared, skipped=skipped)
    ]
    if not jobs:
        told = "; ".join(f"{reason}: {count:,}" for reason, count in skipped.items()) or "no series"
        raise TraceError(path, f"tells of no job with a GPU to itself ({told}); query {UTILIZATION} with its labels")
    jobs.sort(key=lambda job: (job.submitted_at_ms, job.job_id))
    ends = looked[0], looked[-1] + max(step_ms, 1)
    cut = sum(job.started_at_ms == ends[0] or job.ended_at_ms == ends[1] for job in jobs)
    doubt = f"{cut:,} jobs are in the first or the last sample: they count from and to there"
    return Accounting(jobs=tuple(jobs), skipped=dict(skipped), doubts=(doubt,) if cut else (), tells_submissions=False)


def _matrix(path: Path, document: object) -> list[Row]:
    answer = row_of(document)
    found = row_of(answer.get("data"))
    if found.get("resultType") != "matrix" or not isinstance(found.get("result"), list):
        said = text_of(answer, "error") or f"it holds {found.get('resultType', 'no resultType')!s:.50}"
        raise TraceError(path, f"is no range of samples ({said}); write it with {ORIGIN}")
    return [row_of(row) for row in found["result"]]


def _add(row: Row, seen: dict[str, _Seen], instants: set[int], skipped: Counter[str]) -> None:
    """Take one series over; one that is no job's still tells when Prometheus looked."""
    labels = row_of(row.get("metric"))
    samples = dict(_samples(row.get("values"), skipped))
    instants.update(samples)
    metric = text_of(labels, "__name__")
    namespace, pod = text_of(labels, "exported_namespace", "namespace"), text_of(labels, "exported_pod", "pod")
    batch_job = text_of(labels, "hpc_job", "exported_hpc_job")
    job_id = f"slurm/{batch_job}" if batch_job else f"{namespace}/{pod}" if pod else ""
    gpu = text_of(labels, "UUID", "uuid") or f"{text_of(labels, 'Hostname', 'instance')}/{text_of(labels, 'gpu')}"
    if metric not in (UTILIZATION, MEMORY):
        skipped[f"series of another name than {UTILIZATION} and {MEMORY}"] += 1
    elif text_of(labels, "GPU_I_ID"):
        skipped["series of a part of a GPU (MIG), shared already"] += 1
    elif not job_id:
        skipped["series of a GPU without a job's labels"] += 1
    elif gpu == "/":
        skipped["series without a GPU's labels"] += 1
    else:
        job = seen.setdefault(job_id, _Seen(name=_PARTS.sub("", pod) or batch_job, user=namespace))
        for at_ms, value in samples.items():
            job.gpus[at_ms].add(gpu)
            if metric == UTILIZATION:
                job.utilization[at_ms].append(min(value / 100, 1.0))
            else:
                job.memory_bytes[at_ms] = max(job.memory_bytes.get(at_ms, 0.0), value * _MIB)


def _samples(values: object, skipped: Counter[str]) -> Iterator[tuple[int, float]]:
    for pair in values if isinstance(values, list) else []:
        at_s, value = map(number_of, pair) if isinstance(pair, list) and len(pair) == 2 else (None, None)
        if at_s is None or value is None or value < 0 or not 0 < at_s < 1e11:
            skipped["samples without an instant and a number"] += 1
        else:
            yield round(at_s * 1_000), value


def _shared(jobs: Iterable[_Seen]) -> set[tuple[int, str]]:
    """Return at which instants which GPUs had several jobs."""
    counts = Counter((at_ms, gpu) for job in jobs for at_ms, gpus in job.gpus.items() for gpu in gpus)
    return {place for place, count in counts.items() if count > 1}


def _jobs(
    job_id: str,
    seen: _Seen,
    *,
    looked: list[int],
    step_ms: int,
    shared: set[tuple[int, str]],
    skipped: Counter[str],
) -> Iterator[PastJob]:
    """Yield the job of some series, or the jobs that had its name one after the other."""
    for place, run in enumerate(_runs(sorted(seen.gpus), looked)):
        if any((at_ms, gpu) in shared for at_ms in run for gpu in seen.gpus[at_ms]):
            skipped["jobs that shared a GPU already"] += 1
            continue
        busy = [value for at_ms in run for value in seen.utilization.get(at_ms, ())]
        yield PastJob(
            job_id=f"{job_id}.{place}" if place else job_id,
            name=seen.name,
            user=seen.user,
            gpus=max(len(seen.gpus[at_ms]) for at_ms in run),
            submitted_at_ms=run[0],
            started_at_ms=run[0],
            ended_at_ms=run[-1] + max(step_ms, 1),
            utilization_ratio=fmean(busy) if busy else None,
            memory_bytes=int(max((seen.memory_bytes.get(at_ms, 0.0) for at_ms in run), default=0.0)),
        )


def _runs(at: list[int], looked: list[int]) -> Iterator[list[int]]:
    """Split a job's instants where it is missing too long while Prometheus looked; where it did not look, none ends."""
    run = at[:1]
    for before, after in pairwise(at):
        if looked[bisect_left(looked, after) - 1] - before > GAP_MS:
            yield run
            run = []
        run.append(after)
    if run:
        yield run
