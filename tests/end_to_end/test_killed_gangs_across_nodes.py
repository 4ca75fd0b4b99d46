"""kill -9 with gangs across two agents, at random moments: no gang is lost, doubled or half alive."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import gang_kills


@pytest.mark.endurance
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("seed", [1, 2])
def test_thirty_kills_lose_no_gang_across_nodes_and_leave_no_rank_alone(tmp_path: Path, seed: int) -> None:
    found = gang_kills.main(30, seed, folder=tmp_path)
    assert (found["unfinished"], found["doubled"], found["left_ranks"]) == ([], [], 0), found
