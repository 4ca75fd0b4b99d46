"""How long steps take at several micro-batches at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scheduler_service.core.cluster_view.step_times import step_ms_of, steps_ms_of
from tests.support.scheduling import job, prediction

SIZES = st.integers(1, 40)
PREDICTED = st.dictionaries(st.tuples(st.integers(1, 4), SIZES), st.floats(0.1, 1e6), max_size=8)


@given(PREDICTED, st.lists(SIZES, max_size=6), st.integers(1, 4), SIZES)
def test_several_micro_batches_take_as_long_as_each_asked_alone(
    step_ms: dict[tuple[int, int], float], sizes: list[int], gpus: int, batch: int
) -> None:
    request, predicted = job(global_batch_size=batch), prediction(step_ms=step_ms)
    found = steps_ms_of(request, predicted, gpus=gpus, micro_batch_sizes=sizes)
    assert found == {size: step_ms_of(request, predicted, gpus=gpus, micro_batch_size=size) for size in sizes}
    assert set(steps_ms_of(request, None, gpus=gpus, micro_batch_sizes=sizes).values()) <= {None}
