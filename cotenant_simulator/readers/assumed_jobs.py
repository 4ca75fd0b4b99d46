"""What past jobs may have been: each is one of some measured jobs, drawn from a seed; no accounting tells it.

Jobs of one user and name are the same measured job. Jobs of several GPUs are not shared, so that nothing need be
assumed of them but their length.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from cotenant_simulator.readers.accounting import PastJob
from cotenant_simulator.readers.measured_jobs import MeasuredJobs
from cotenant_simulator.readers.requests import Consent
from cotenant_simulator.truth.kinds import EVERY_DEVICE, GroundTruth, Kind
from cotenant_simulator.truth.trace import Trace, TraceJob

_SECOND_MS = 1_000.0


def assume(jobs: Iterable[PastJob], measured: MeasuredJobs, consent: Consent, *, seed: int) -> Trace:
    """Return past jobs with drawn demands, submitted when they were and as long alone as they ran.

    Args:
        jobs: They had their GPUs to themselves.
        measured: One of these each job is.
        consent: What their owners would consent to.
        seed: The same seed draws the same demands.
    """
    kinds: dict[tuple[str, str], Kind] = {}
    found = []
    for job in jobs:
        duration_ms = job.ended_at_ms - job.started_at_ms
        if job.gpus == 1:
            chosen = Random(f"{seed}/{job.user}/{job.name}").choice(measured.jobs)
            key, kind = chosen.key, chosen.kind
        else:
            key, kind = f"{job.gpus} GPUs", Kind(step_ms_by_gpus={job.gpus: _SECOND_MS}, batch=job.gpus)
        kinds[key, measured.device if job.gpus == 1 else EVERY_DEVICE] = kind
        request = consent.request(
            job.job_id,
            key=key,
            gpus=job.gpus,
            batch=kind.batch,
            steps_total=max(round(duration_ms / kind.step_ms(gpus=job.gpus)), 1),
            may_share=job.gpus == 1,
        )
        found.append(TraceJob(submitted_at_ms=job.submitted_at_ms, request=request))
    truth = GroundTruth(kinds=kinds, slowdowns=measured.slowdowns, predicts_unmeasured=False)
    return Trace(format="accounting", jobs=found, truth=truth, device=measured.device)
