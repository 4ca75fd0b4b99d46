from __future__ import annotations

import random

import pytest
from cotenant_profiler.memory_trace import memory_states


def test_two_levels_become_gamma_delta_and_p() -> None:
    states = memory_states([100.0] * 70 + [150.0] * 30, peak_bytes=160.0)
    assert (states.gamma_bytes, states.delta_bytes, states.high_ratio) == (100.0, 60.0, 0.3)


def test_noise_around_two_levels_changes_little() -> None:
    noise = random.Random(1)
    samples = [100 + noise.gauss(0, 3) for _ in range(60)] + [200 + noise.gauss(0, 3) for _ in range(40)]
    states = memory_states(samples, peak_bytes=210.0)
    assert states.gamma_bytes == pytest.approx(100, abs=2)
    assert states.high_ratio == 0.4


@pytest.mark.parametrize(
    "samples",
    [[7.0], [7.0] * 100, [1000.0 + index % 3 for index in range(100)]],
    ids=["one sample", "flat", "a ripple below two percent"],
)
def test_a_trace_of_one_state_has_its_peak_and_no_second_state(samples: list[float]) -> None:
    peak = max(samples)
    states = memory_states(samples, peak)
    assert (states.gamma_bytes, states.delta_bytes, states.high_ratio) == (peak, 0.0, 0.0)


def test_two_samples_that_differ_are_two_states() -> None:
    assert memory_states([1.0, 2.0], peak_bytes=2.0).high_ratio == 0.5


def test_a_broad_single_state_is_not_cut_in_two() -> None:
    noise = random.Random(2)
    samples = [500 + noise.gauss(0, 4) for _ in range(100)]
    assert memory_states(samples, peak_bytes=max(samples)).high_ratio == 0.0


def test_the_peak_of_the_states_is_that_of_the_allocator() -> None:
    states = memory_states([10.0] * 50 + [30.0] * 50, peak_bytes=44.0)
    assert states.gamma_bytes + states.delta_bytes == 44.0
