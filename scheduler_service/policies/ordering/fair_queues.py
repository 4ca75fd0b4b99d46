"""Weighted fair queues: similar jobs in one queue, every queue gets its share of each round.

Source:
    Horus (Yeung et al.), Algorithm 1 lines 2-4 and section 4.2.2. The number of queues is k (the text's {0..k} counts
    k + 1), and the clustering is by medians, which is what an L1 distance asks for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from scheduler_service.core.cluster_view.view import PendingJob

CLUSTERING_ROUNDS_MAX = 20


def k_medians(features: NDArray[np.float64], k: int) -> NDArray[np.int64]:
    """Put rows into at most k clusters by L1 distance to the clusters' medians, without a random start.

    Args:
        features: One row per job; each column is scaled to [0, 1] first.
        k: Clusters wanted, at least 1.

    Returns:
        The cluster of every row; the start is the row at the middle of each k-th of the rows ordered by their sum.
    """
    rows = len(features)
    if rows == 0 or k == 1:
        return np.zeros(rows, dtype=np.int64)
    low, high = features.min(axis=0), features.max(axis=0)
    scaled = (features - low) / np.where(high > low, high - low, 1.0)
    order = np.lexsort((*scaled.T[::-1], scaled.sum(axis=1)))
    starts = order[[int((part + 0.5) * rows / k) for part in range(k)]]
    medians = scaled[starts]
    clusters = np.full(rows, -1, dtype=np.int64)
    for _ in range(CLUSTERING_ROUNDS_MAX):
        distances = np.abs(scaled[:, None, :] - medians[None, :, :]).sum(axis=2)
        nearest = distances.argmin(axis=1)
        if np.array_equal(nearest, clusters):
            break
        clusters = nearest
        for cluster in range(k):
            members = scaled[clusters == cluster]
            if len(members):
                medians[cluster] = np.median(members, axis=0)
    return clusters


def queue_weight(length: int, median_wait_s: float) -> float:
    """Return max(length, median wait in seconds times length) of one queue."""
    return max(float(length), median_wait_s * length)


def slots_of(weights: Sequence[float], lengths: Sequence[int], slots: int) -> list[int]:
    """Share the slots of one round by weight (largest remainder), never more to a queue than it holds."""
    total = sum(weights)
    if total <= 0:
        return [0] * len(weights)
    shares = [weight / total * slots for weight in weights]
    given = [int(share) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda queue: (given[queue] - shares[queue], queue))
    for queue in by_remainder[: slots - sum(given)]:
        given[queue] += 1
    return [min(count, length) for count, length in zip(given, lengths, strict=True)]


def fair_order(
    jobs: Sequence[PendingJob], clusters: NDArray[np.int64], *, now_ms: int, k: int, slots: int
) -> Iterator[PendingJob]:
    """Yield every job once, round after round, the longest waiting of each queue first.

    Args:
        jobs: Pending jobs.
        clusters: The queue of each job, 0 to k - 1.
        now_ms: For the waiting times.
        k: Queues.
        slots: Jobs per round, the paper's beta, at least 1.
    """
    queues: list[list[PendingJob]] = [[] for _ in range(k)]
    for job, cluster in zip(jobs, clusters, strict=True):
        queues[cluster].append(job)
    for queue in queues:
        queue.sort(key=lambda job: (job.submitted_at_ms, job.request.job_id))
    heads = [0] * k
    while any(head < len(queue) for head, queue in zip(heads, queues, strict=True)):
        lengths = [len(queue) - head for head, queue in zip(heads, queues, strict=True)]
        weights = [_weight(queue, head, now_ms) for head, queue in zip(heads, queues, strict=True)]
        for index, count in enumerate(slots_of(weights, lengths, slots)):
            yield from queues[index][heads[index] : heads[index] + count]
            heads[index] += count


def _weight(queue: Sequence[PendingJob], head: int, now_ms: int) -> float:
    """The queue is in order of submission, so its median wait lies in its middle."""
    length = len(queue) - head
    if length == 0:
        return 0.0
    middle = (queue[head + (length - 1) // 2], queue[head + length // 2])
    median_wait_s = sum(now_ms - job.submitted_at_ms for job in middle) / 2 / 1_000
    return queue_weight(length, median_wait_s)
