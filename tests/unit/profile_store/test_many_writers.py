"""Several threads and processes write at once: every window is kept once, and no bound is passed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from predictor_service.profile_store.store import ProfileStore
from tests.support.measurement_windows import NOW_MS, job, window

WRITERS = 4
EACH = 25


def write(path: Path, writer: int) -> int:
    """Writes windows of which every second one is written by the next writer as well."""
    recorded = 0
    with closing(ProfileStore(path, rows_max=1_000)) as store:
        for number in range(EACH):
            mine = writer * EACH + number
            both = [window(mine, job=job(mine)), window(mine + EACH, job=job(mine + EACH))]
            recorded += store.add(both, NOW_MS).recorded
    return recorded


def test_writers_with_connections_of_their_own_keep_everything_once(tmp_path: Path) -> None:
    path = tmp_path / "profiles.sqlite"
    with ThreadPoolExecutor(WRITERS) as pool:
        recorded = sum(pool.map(lambda writer: write(path, writer), range(WRITERS)))
    with closing(ProfileStore(path)) as store:
        kept = [item.window.window_id for item in store.read() if item.window is not None]
    assert recorded == len(kept) == len(set(kept)) == (WRITERS + 1) * EACH
