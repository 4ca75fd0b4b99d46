from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cotenant_profiler.campaign import parse_campaign, read_campaign
from cotenant_profiler.errors import InvalidCampaignError, UnknownArchitectureError
from cotenant_profiler.job_spec import JobSpec

from tests.support.cases import for_each
from tests.support.profiler import small_document

CAMPAIGNS = Path("profiling/campaigns")


@for_each("path", sorted(CAMPAIGNS.glob("*.toml")))
def test_every_campaign_in_the_repository_can_be_read(path: Path) -> None:
    assert read_campaign(path).core_jobs


@for_each(
    ("changes", "reason"),
    [
        ({"surprise": 1}, "unknown keys: surprise"),
        ({"name": ""}, "name must be a text"),
        ({"seed": -1}, "seed must be a whole number of at least 0"),
        ({"core_jobs": {}}, "core_jobs is empty"),
        ({"core_jobs": {"a": {"architecture": "lenet", "batch": 0}}}, "batch must be a whole number of at least 1"),
        ({"core_jobs": {"a": {"architecture": "lenet", "batch": 1, "input_wait_ratio": 1}}}, "below 1"),
        ({"core_jobs": {"a": 3}}, "must be a table"),
        ({"method": {"window": 3}}, "method has unknown keys: window"),
        ({"method": {"window_ms": 5}}, "window_ms must be a number of at least 100"),
        ({"method": {"attempts_max": True}}, "attempts_max must be a number"),
        ({"method": {"window_ms": float("nan")}}, "window_ms must be a number of at least 100"),
        ({"method": {"window_ms": float("inf")}}, "window_ms must be a number of at least 100"),
        ({"method": {"foreign_ratio_max": float("nan")}}, "foreign_ratio_max must be a number"),
        ({"method": [1]}, "method must be a table"),
        ({"core_jobs": ["lenet"]}, "core_jobs must be a table"),
        ({"solo": 5}, "solo must be a table"),
        ({"solo": {"architectures": 5}}, "solo.architectures must be a list"),
        ({"solo": {"wait_ratios": 0.3}}, "solo.wait_ratios must be a list"),
        ({"solo": {"first": "yes"}}, "solo.first must be true or false"),
        ({"traces": 1}, "traces must be true or false"),
        ({"pairs": {"repeats": 10**9}}, "repeats must be a whole number of at least 1 and at most 10000"),
        ({"groups": 5}, "groups must be a list"),
        ({"groups": [[{}, {}]]}, "a group must list two or more of"),
        ({"groups": [["lenet", "nobody"]]}, "a group must list two or more of"),
    ],
)
def test_a_campaign_that_cannot_be_carried_out_is_refused_with_the_reason(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidCampaignError, match=reason):
        parse_campaign(small_document(**changes))


def test_an_unknown_architecture_is_answered_with_the_known_ones() -> None:
    document = small_document(core_jobs={"a": {"architecture": "lenett", "batch": 1}})
    with pytest.raises(UnknownArchitectureError, match="lenet, lstm"):
        parse_campaign(document)


def test_a_missing_file_is_an_invalid_campaign(tmp_path: Path) -> None:
    with pytest.raises(InvalidCampaignError, match=r"absent\.toml"):
        read_campaign(tmp_path / "absent.toml")


def test_a_sweep_measures_every_batch_alone_but_no_core_job_twice() -> None:
    campaign = parse_campaign(small_document(solo={"architectures": ["lenet"], "wait_ratios": [0.3]}))
    jobs = set(campaign.solo_jobs)
    assert {job.batch for job in jobs} >= {16, 64, 128}
    assert JobSpec(architecture="lenet", batch=64, input_wait_ratio=0.3) in jobs
    assert not jobs & set(campaign.core_jobs)
