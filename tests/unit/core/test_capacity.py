"""What a job takes of one GPU and whether it may share it, in cases that engine and policies seldom reach."""

from __future__ import annotations

from scheduler_service.core.cluster_view.capacity import Resident, micro_batch_size_alone
from scheduler_service.core.records import MemoryPoint, Share
from scheduler_service.core.sharing.sharing_consent import sharing_obstacle
from tests.support.cases import for_each
from tests.support.scheduling import GIB, gpu, job, memory, prediction, store


def test_a_job_that_has_grown_to_several_gpus_is_closed_to_trials_although_it_asked_for_one() -> None:
    resident = Resident(request=job(), micro_batch_size=1, memory_reserved_bytes=GIB)
    gang = Resident(request=job(), micro_batch_size=1, memory_reserved_bytes=GIB, is_gang=True)
    assert (resident.is_open_to_trial, gang.is_open_to_trial) == (True, False)


@for_each("samples", [5, 6, 7, 8])
def test_a_batch_of_any_size_is_cut_down_to_single_samples_where_no_more_fit(samples: int) -> None:
    sizes = {size: MemoryPoint(memory_bytes=size * 6 * GIB, memory_bytes_upper_99=size * 7 * GIB) for size in (1, 2, 8)}
    request = job(global_batch_size=samples, share=Share.ANY)
    assert micro_batch_size_alone(request, prediction(memory=sizes), 1, gpu()) == 1


def test_a_doubt_gives_way_to_the_reason_that_the_gpu_is_too_small_anyway() -> None:
    large, small = job("large"), job("small")
    known = store([prediction(large.key, memory=memory(20), in_domain=False), prediction(small.key)])
    incoming, resident = (
        Resident(request=one, micro_batch_size=1, memory_reserved_bytes=8 * GIB) for one in (large, small)
    )
    found = sharing_obstacle(incoming, [resident], gpu(), known)
    assert found is not None
    assert found.code == "MEMORY_LIKELY_EXCEEDS_GPU"
