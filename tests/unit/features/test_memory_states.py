"""What of its memory a job holds all the time is counted: what stays of it is what no pass brings."""

from __future__ import annotations

import pytest

from predictor_service.features.analytical_memory import MemoryBreakdown
from predictor_service.features.memory_states import split_memory

COUNTED = MemoryBreakdown(
    weights_bytes=100.0,
    gradients_bytes=100.0,
    optimizer_state_bytes=200.0,
    activations_bytes=600.0,
    workspace_bytes=50.0,
    context_bytes=50.0,
)


def test_parameters_gradients_optimizer_and_context_are_held_all_the_time() -> None:
    found = split_memory(1_000.0, COUNTED, input_wait_ratio=0.0, once_ratio=0.0)
    assert found == pytest.approx((450.0, 550.0, 1.0))


def test_of_an_estimate_above_the_count_as_large_a_part_is_held() -> None:
    assert split_memory(2_000.0, COUNTED, input_wait_ratio=0.0, once_ratio=0.0)[:2] == pytest.approx((900.0, 1_100.0))


def test_of_an_estimate_below_the_count_no_less_is_held_than_was_counted() -> None:
    assert split_memory(500.0, COUNTED, input_wait_ratio=0.0, once_ratio=0.0)[:2] == pytest.approx((450.0, 50.0))
    assert split_memory(300.0, COUNTED, input_wait_ratio=0.0, once_ratio=0.0)[:2] == (300.0, 0.0)


def test_a_job_is_low_while_it_waits_for_input_and_while_its_optimizer_steps() -> None:
    assert split_memory(1_000.0, COUNTED, input_wait_ratio=0.5, once_ratio=0.2).high_state_ratio == pytest.approx(0.3)
    assert split_memory(1_000.0, COUNTED, input_wait_ratio=0.9, once_ratio=0.2).high_state_ratio == 0.0
