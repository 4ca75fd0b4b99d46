"""No plan over-packs an engine, changes what a job has, or is given twice, whatever happens in between."""

from __future__ import annotations

from tests.support.engine_stories import EngineStory


def test_plans_keep_the_ledger_of_the_engine_whatever_happens() -> None:
    placed = 0
    for seed in range(150):
        story = EngineStory(seed)
        assert story.tell() == [], seed
        placed += sum(order.startswith("place ") for order in story.engine.orders)
    assert placed > 300
