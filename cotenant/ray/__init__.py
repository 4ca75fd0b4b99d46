"""Tasks and actors of Ray that share GPUs: each waits for cotenant's decision and runs on the GPU that it names.

    job = cotenant.ray.submit("memory=8GiB utilization=0.4 slowdown=0.15", train, 0.1)
    job.result()

Inside, `report(step)` tells how far it is. The bridge `cotenant engine ray` must run on the cluster (docs/ray.md).
"""

from cotenant.ray.progress import report, should_stop
from cotenant.ray.shared_jobs import JobStoppedError, SharedJob
from cotenant.ray.submission import start, submit
from cotenant.ray.trials import trainable

__all__ = ["JobStoppedError", "SharedJob", "report", "should_stop", "start", "submit", "trainable"]
