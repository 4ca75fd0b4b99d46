"""Real processes are killed, frozen, wiped, cloned and restored under load: the small cut of `benchmarks.kills`."""

from __future__ import annotations

import pytest

from benchmarks import kills

EVENTS = 20


@pytest.mark.endurance
@pytest.mark.timeout(1500)
def test_twenty_kills_and_freezes_of_every_kind_lose_no_job_and_run_none_twice() -> None:
    found = kills.main(EVENTS, seed=1)
    verdicts = {name: found[name] for name in ("lost", "twice", "without_steps", "stuck", "kills")}
    assert verdicts == {"lost": 0, "twice": 0, "without_steps": 0, "stuck": 0, "kills": EVENTS}, found["found"]
