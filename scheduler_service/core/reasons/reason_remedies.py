"""What would let a waiting job start sooner: the second tier of a reason, after what is and before when it changes."""

from __future__ import annotations

import re
from collections.abc import Mapping

from scheduler_service.core.reasons.reason_texts import describe_reason, has_no_gpu
from scheduler_service.core.records import JobRequest, Reason, Share

_MEASURE = (
    "It can share once both jobs were measured, which counts while others use at most a tenth of the device: alone, or "
    "next to a long job that is paused meanwhile; --share any accepts what is not known."
)
_SMALLER = "A smaller --batch-size, a --memory that you know to suffice, or a GPU with more memory."
_CUT = "or --cuts-batch, if its program can make a step in several passes (job.sub_batches)."
_ROOM = "A job that ends, or another GPU (`cotenant gpus` shows who holds them)."
_SHARE_ROOM = "A job that ends, another GPU, or consent to share (--share safe)."

WAITS_FOR_ROOM = frozenset({
    "CLUSTER_FULL", "COLLISION_TOO_LIKELY", "DEVICE_SLOWDOWN_TOO_HIGH", "GPU_RELEASING", "JOB_UNKNOWN",
    "MEMORY_DOES_NOT_FIT", "MEMORY_LIKELY_EXCEEDS_GPU", "NO_FREE_GPU", "OTHERS_GAIN_MORE", "OUT_OF_DOMAIN",
    "PAIR_UNKNOWN", "PEAKS_DO_NOT_FIT", "RANGE_NOT_CALIBRATED", "REMAINING_TIME_UNKNOWN", "SHARES_GIVEN_AWAY",
    "SHARE_NOT_ALLOWED", "SHARING_NOT_WORTH_IT", "SLOWDOWN_TOO_HIGH", "TOO_FEW_PLACES", "TOO_MANY_JOBS",
    "TOO_MANY_WEIGHED", "TRIAL_GOES_ON", "UTILIZATION_TOO_HIGH", "WORKERS_OUT_OF_BALANCE",
})  # fmt: skip
"""Reasons that sound as if waiting, or consent to share, would help."""

_OTHER_MAY_NOT_BE_SLOWED = "A job that ends, or another GPU; the limit is that of the job which would be slowed down."
REMEDIES: Mapping[str, str] = {
    "NO_NODE": "A node: `cotenant up` on this machine, or an agent elsewhere.",
    "AWAITING_PREDICTION": "The predictor's answer; without it the job starts alone.",
    "PEAKS_MET": "The end of the pause; `cotenant submit` without --releases-memory gives a job its whole peak always.",
    "RESTART_BACKOFF": "The end of the pause between two restarts; `cotenant logs JOB` shows why the last one ended.",
    "LAUNCH_REFUSED": "The node's next try; `cotenant explain JOB` has what it refused.",
    "RESTORED": "The end of that time.",
    "FORMER_ATTEMPT_RUNS": "The node's word that it has ended; if the node is gone for good: `cotenant nodes forget`.",
    "POLICY_FAILED": "Another policy: `cotenant policies use NAME`.",
    "POLICY_SILENT": "Another policy, or the same one anew: `cotenant policies use NAME`.",
    "HELD": "`cotenant release JOB`.",
    "AFTER": "The end of these jobs.",
    "ARRAY_LIMIT": "The end of an earlier task.",
    "NOT_BEFORE": "That time.",
    "QUOTA": "A job of the tenant that ends, or a larger quota in the scheduler's --tenants file.",
    "QUOTA_TOO_SMALL": "Fewer --gpus, or a larger quota in the scheduler's --tenants file.",
    "TENANT_CLOSED": "A quota in the scheduler's --tenants file.",
    "FAIR_SHARE": "GPU time that the others have, or a larger weight in the scheduler's --tenants file.",
    "PROTECTED": "A job that ends, or a higher --priority.",
    "RESERVED": "An earlier end of the jobs there (`cotenant gpus` shows who holds the GPUs), or fewer --gpus.",
    "RESERVED_FOR_NOW": "The end of the jobs there (`cotenant gpus` shows who holds the GPUs), or fewer --gpus.",
    "KEPT_FOR_OTHER": "The start of that job, another GPU, or a higher --priority.",
    "GPUS_NOT_IN_CLUSTER": "Fewer --gpus, or a node that has so many.",
    "DEVICES_NOT_IN_CLUSTER": "A node with such a GPU, or the job submitted again with another --device.",
    "GANG_NEEDS_MORE_NODES": "Fewer --gpus, GPUs that get free on one node, or --ranks with --across-nodes.",
    "NODES_TOGETHER_TOO_SMALL": "More such nodes, fewer --ranks, or a job for one node (without --across-nodes).",
    "NO_SHARED_STORAGE": "Nodes that share or send their checkpoints, or a job for one node (without --across-nodes).",
    "BEHIND_IN_QUEUE": "The start of the jobs before it, or a policy that lets it pass: `cotenant policies use NAME`.",
    "MEMORY_EXCEEDS_GPU": _SMALLER,
    "MEMORY_LIKELY_EXCEEDS_GPU": _SMALLER,
    "MEMORY_DOES_NOT_FIT": "A job that ends, a smaller --batch-size, or a GPU with more memory.",
    "PEAK_EXCEEDS_GPU": _SMALLER,
    "HOST_DOES_NOT_FIT": "A job that ends on a node with enough CPU and host memory, or a job that asks for less.",
    "SHARE_NOT_ALLOWED": "A job that ends, another GPU, or consent of all jobs on one (--share safe).",
    "SLOWDOWN_TOO_HIGH": "A job that ends, another GPU, or a larger --max-slowdown.",
    "OUT_OF_DOMAIN": _MEASURE,
    "RANGE_NOT_CALIBRATED": _MEASURE,
    "PAIR_UNKNOWN": _MEASURE,
    "JOB_UNKNOWN": _MEASURE,
    "REMAINING_TIME_UNKNOWN": "A --graph, a run of the same command alone, or a job that ends.",
    "NO_FREE_GPU": _ROOM,
    "CLUSTER_FULL": _ROOM,
    "TOO_FEW_PLACES": _ROOM,
    "TOO_MANY_JOBS": _ROOM,
}
"""By code; what is missing changes by itself, or by the jobs that the reason names."""

_FITS_IN_PASSES = ("MEMORY_EXCEEDS_GPU", "MEMORY_LIKELY_EXCEEDS_GPU", "MEMORY_DOES_NOT_FIT", "PEAK_EXCEEDS_GPU")
_OPERATORS_MEANS = re.compile("`cotenant (?:nodes|policies) [^`]*`|the scheduler's --tenants file")


def describe_remedy(reason: Reason, request: JobRequest) -> str:
    """Return what would let a waiting job start sooner; empty = nothing that people could do.

    Never repeats what the reason says already.
    """
    if reason.code in ("NO_FREE_GPU", "CLUSTER_FULL", "TOO_FEW_PLACES") and request.share is Share.NEVER:
        return _SHARE_ROOM
    if has_no_gpu(reason):
        return "A node that is back, or `cotenant nodes uncordon`."
    if reason.code == "SLOWDOWN_TOO_HIGH" and reason.job_ids[:1] != (request.job_id,):
        return _OTHER_MAY_NOT_BE_SLOWED
    remedy = REMEDIES.get(reason.code, "")
    if remedy and remedy in describe_reason(reason):
        return ""
    is_whole = request.takes_whole_batch and request.share is not Share.NEVER
    if reason.code in _FITS_IN_PASSES and is_whole and request.global_batch_size > request.gpus:
        remedy = f"{remedy.removesuffix('.')}, {_CUT}"
    return remedy.replace(" JOB`", f" {request.job_id}`")


def name_whom_to_ask(remedy: str) -> str:
    """Return a remedy for those who are no operators: behind what only operators can do it says whom to ask."""
    return _OPERATORS_MEANS.sub(r"\g<0> (ask an operator)", remedy)
