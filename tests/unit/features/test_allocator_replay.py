"""What the caching allocator reserves beyond what lives at once."""

from __future__ import annotations

import random
import time

from predictor_service.features.graphs.allocator_replay import (
    CachingAllocator,
    Operator,
    replay_events,
    replay_step,
)

_MANY, _NODES = 100_000, 20_000
_MANY_LIMIT_S = 4.0


def chain(sizes: list[int], *, keeps: bool = True, workspace_bytes: int = 0) -> list[Operator]:
    """Convolutions that keep their input, each followed by an activation that keeps its output."""
    operators: list[Operator] = []
    for place, size in enumerate(sizes):
        before = [f"a{place - 1}"] if place else []
        kept = before if keeps else []
        operators.append(Operator(f"c{place}", size, before, kept, workspace_bytes=workspace_bytes))
        operators.append(Operator(f"a{place}", size, [f"c{place}"], [f"a{place}"] if keeps else []))
    return operators


def reserved(operators: list[Operator]) -> int:
    return replay_step(operators, {operator.output for operator in operators})


def test_a_freed_block_serves_a_tensor_that_fits_and_no_larger_one() -> None:
    allocator = CachingAllocator()
    allocator.give_back(allocator.take(100))
    allocator.take(60)
    assert allocator.reserved_bytes == 100
    allocator.take(40)
    assert allocator.reserved_bytes == 100
    allocator.take(1)
    assert allocator.reserved_bytes == 101


def test_the_smallest_block_that_fits_is_taken() -> None:
    allocator = CachingAllocator()
    large, small = allocator.take(100), allocator.take(50)
    allocator.give_back(large)
    allocator.give_back(small)
    assert allocator.take(40) == small
    assert allocator.take(100) == large


def test_neighbours_of_one_segment_merge_and_segments_do_not() -> None:
    allocator = CachingAllocator()
    allocator.give_back(allocator.take(90))
    parts = [allocator.take(30) for _ in range(3)]
    for part in (parts[1], parts[0], parts[2]):
        allocator.give_back(part)
    allocator.take(90)
    assert allocator.reserved_bytes == 90
    other = CachingAllocator()
    for block in [other.take(30) for _ in range(3)]:
        other.give_back(block)
    other.take(90)
    assert other.reserved_bytes == 180


def test_a_tensor_cut_from_the_block_of_a_workspace_makes_the_next_one_take_another() -> None:
    allocator = CachingAllocator()
    allocator.borrow(100)
    allocator.borrow(100)
    assert allocator.reserved_bytes == 100
    allocator.take(10)
    allocator.borrow(100)
    assert allocator.reserved_bytes == 200


def test_tensors_that_grow_leave_blocks_behind_that_fit_nothing_later() -> None:
    alike, growing = reserved(chain([20] * 5)), reserved(chain([10, 15, 20, 25, 30]))
    # Five kept activations, one convolution's output at a time and two gradients.
    assert alike <= 5 * 20 + 3 * 20
    # Their outputs of convolutions sum to as much as what is kept, and no one of them serves the next.
    assert growing >= 2 * (10 + 15 + 20 + 25 + 30)


def test_twice_the_batch_reserves_twice_as_much() -> None:
    sizes = [7, 19, 11, 40, 3, 23]
    assert reserved(chain([2 * size for size in sizes])) == 2 * reserved(chain(sizes))


def test_gradients_of_two_readers_are_summed_in_one_of_them() -> None:
    operators = [
        Operator("x", 10, ()),
        Operator("left", 10, ("x",)),
        Operator("right", 10, ("x",)),
        Operator("sum", 10, ("left", "right"), passes_gradient=True),
    ]
    # x, left and right live together, then the sum; the backward pass finds room in what these gave back.
    assert reserved(operators) == 40


def test_what_is_never_freed_is_left_out_of_events() -> None:
    weight_gradient, activation, workspace = (1, 1000), (2, 30), (0, 50)
    assert replay_events([activation, workspace, weight_gradient, (2, -1), workspace]) == 80
    assert replay_events([]) == 0


def test_no_block_is_moved_because_another_of_many_is_freed() -> None:
    allocator, random_numbers = CachingAllocator(), random.Random(0)
    start_s = time.process_time()
    for block in [allocator.take(random_numbers.randrange(10**6, 10**9)) for _ in range(_MANY)]:
        allocator.give_back(block)
    for _ in range(_MANY):
        allocator.borrow(10**6)
    assert time.process_time() - start_s < _MANY_LIMIT_S


def test_a_long_graph_and_one_tensor_with_many_readers_are_replayed_in_time() -> None:
    sizes = random.Random(0)
    long = chain([sizes.randrange(1, 10**9) for _ in range(_NODES // 2)], workspace_bytes=10**6)
    readers = [Operator(f"r{place}", sizes.randrange(1, 10**9), ("x",), ("x",)) for place in range(_NODES)]
    wide = [Operator("x", 10, ()), *readers, Operator("sum", 5, [item.output for item in readers])]
    start_s = time.process_time()
    assert reserved(long) > 0
    assert reserved(wide) > sum(item.output_bytes for item in readers)
    assert time.process_time() - start_s < _MANY_LIMIT_S


def test_sizes_beyond_any_number_of_64_bits_stay_exact() -> None:
    sizes = [7, 19, 11, 40, 3, 23]
    assert reserved(chain([10**30 * size for size in sizes])) == 10**30 * reserved(chain(sizes))


def test_empty_tensors_and_an_empty_graph_reserve_nothing() -> None:
    assert reserved(chain([0] * 5)) == 0
    assert reserved([]) == 0


def test_a_name_that_is_written_or_read_twice_or_never_written_ends_no_replay() -> None:
    operators = [
        Operator("x", 10, ("absent", "x"), ("x", "x", "absent")),
        Operator("x", 20, ("x", "x"), passes_gradient=True),
        Operator("", 30, ("x", ""), ("x",)),
        Operator("x", 40, ("x",), passes_gradient=True),
    ]
    assert 40 <= reserved(operators) <= 1000
