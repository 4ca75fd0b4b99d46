"""The next job of a group, found by its place, against a walk through the whole group."""

from __future__ import annotations

import random

import pytest

from scheduler_service.core.cluster_view.remaining_time_queue import GroupedQueue, RemainingTimeQueue, ServiceQueue
from tests.support.scheduling import DEVICE, job, pending, prediction, store


def queues(seed: int) -> list[GroupedQueue]:
    """Queues of jobs many of which are equally long, were submitted at once, or have steps of unknown length."""
    generator = random.Random(seed)
    known = store([prediction("a", step_ms={(1, 1): 12.5})])
    found: list[GroupedQueue] = [RemainingTimeQueue([DEVICE], known), ServiceQueue((50.0, 500.0))]
    for number in range(60):
        steps = generator.choice((0, 5, 7, generator.randrange(1, 40)))
        request = job(f"j{number:02}", key=generator.choice("ab"), steps_total=steps, global_batch_size=1)
        waiting = pending(request, generator.randrange(12), attained_gpu_ms=generator.randrange(800))
        for queue in found:
            queue.put(waiting)
    return found


@pytest.mark.parametrize("seed", range(5))
def test_the_next_job_of_a_group_is_the_first_of_those_that_a_walk_finds_behind_it(seed: int) -> None:
    for queue in queues(seed):
        followed = 0
        for group in queue.all_groups():
            turn = group.head
            while turn is not None:
                walked = next((one for one, _ in group.firsts_after(turn, lambda length: False)), None)
                assert queue.next_after(turn) == walked
                turn, followed = walked, followed + 1
        assert followed == len(queue)
