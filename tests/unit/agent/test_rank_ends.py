"""What the ends of a gang's ranks come to, in any order."""

from __future__ import annotations

import signal

from cotenant_agent.keeper.rank_ends import RankEnds, RankSilence
from tests.support.cases import for_each

FAILED, LEFT, KILLED, TOLD = 3 << 8, 85 << 8, int(signal.SIGKILL), int(signal.SIGTERM)


def ends_of(*statuses: tuple[int, int], ranks: int = 3) -> RankEnds:
    ends = RankEnds(ranks)
    for rank, status in statuses:
        ends.note(rank, status, 1_000 * (rank + 1))
    return ends


@for_each(
    ("statuses", "was_stopped", "code", "failed_rank"),
    [
        ([(0, 0), (1, 0), (2, 0)], False, 0, None),
        ([(2, 0), (1, FAILED), (0, KILLED)], False, 3, 1),
        ([(1, KILLED), (0, FAILED), (2, FAILED)], False, -9, 1),
        ([(0, TOLD), (1, LEFT), (2, LEFT)], True, 85, 0),
        ([(0, TOLD), (1, LEFT), (2, LEFT)], False, -15, 0),
        ([(0, 0), (1, 0), (2, 0)], True, 0, None),
    ],
)
def test_the_first_that_failed_speaks_for_all_and_after_a_stop_one_that_saved(
    statuses: list[tuple[int, int]], was_stopped: bool, code: int, failed_rank: int | None
) -> None:
    ends = ends_of(*statuses)
    assert (ends.return_code(was_stopped=was_stopped), ends.failed_rank) == (code, failed_rank)
    assert ends.are_complete
    assert ends.peers_grace_ms(30_000) is None


@for_each(("status", "grace_ms"), [(0, None), (FAILED, 5_000), (KILLED, 5_000), (LEFT, 30_000), (TOLD, 30_000)])
def test_the_others_have_the_time_of_a_stop_only_where_there_may_be_something_to_save(
    status: int, grace_ms: int | None
) -> None:
    assert ends_of((1, status)).peers_grace_ms(30_000) == grace_ms
    assert ends_of((1, FAILED)).peers_grace_ms(200) == 200


def test_what_the_kernel_killed_with_its_namespace_is_killed_and_no_end_counts_twice() -> None:
    ends = ends_of((0, 0), (0, FAILED), (7, FAILED), (-1, FAILED))
    ends.note_killed()
    assert (ends.return_code(was_stopped=False), ends.failed_rank, ends.max_resident_bytes) == (-9, 1, 1_000)


def test_ranks_that_wait_for_one_that_ended_with_0_are_silent_since_its_end_or_their_last_sign() -> None:
    ends, silence = RankEnds(3), RankSilence(1_000)
    assert not any(silence.is_over(ends, 0, now_ms) for now_ms in (0, 5_000))
    ends.note(1, 0, 0)
    assert [silence.is_over(ends, 0, now_ms) for now_ms in (6_000, 6_999)] == [False, False]
    assert [silence.is_over(ends, 1, now_ms) for now_ms in (6_999, 7_998, 7_999)] == [False, False, True]
    ends.note(2, 0, 0)
    assert not silence.is_over(ends, 1, 8_500)
    ends.note(0, 0, 0)
    assert not silence.is_over(ends, 1, 99_000)


def test_a_part_that_ended_on_another_node_leaves_ranks_behind_as_a_rank_does() -> None:
    """Nobody has ended here: each shim knows its own ranks only."""
    ends, silence = RankEnds(2), RankSilence(1_000)
    assert not silence.is_over(ends, 0, 0)
    assert [silence.is_over(ends, 0, now_ms, ended_parts=1) for now_ms in (5_000, 5_999, 6_000)] == [False, False, True]
    assert [silence.is_over(ends, 0, now_ms, ended_parts=2) for now_ms in (6_000, 6_999, 7_000)] == [False, False, True]
    assert not silence.is_over(ends, 1, 7_500, ended_parts=2)
    ends.note(0, 0, 0)
    ends.note(1, 0, 0)
    assert not silence.is_over(ends, 1, 99_000, ended_parts=2)


def test_servers_that_ranks_on_other_nodes_need_may_be_silent() -> None:
    ends, silence = RankEnds(2, 1), RankSilence(1_000)
    assert not silence.is_over(ends, 0, 0)
    ends.note(0, 0, 0)
    assert not any(silence.is_over(ends, 0, now_ms) for now_ms in (5_000, 99_000))
