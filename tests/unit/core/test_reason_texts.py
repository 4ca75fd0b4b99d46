"""Every reason in words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cotenant.quantities import parse_duration_ms
from scheduler_service.core.event_handling.job_events import RESTARTING_EXIT_CLASSES
from scheduler_service.core.reasons.reason_remedies import describe_remedy
from scheduler_service.core.reasons.reason_texts import REASON_TEXTS, describe_reason, format_quantity
from scheduler_service.core.records import Reason, Share
from tests.support.cases import for_each
from tests.support.policy_contract import faults_of_reason, has_unit, required_of
from tests.support.scheduling import GIB, job


def test_every_code_in_the_code_has_a_text() -> None:
    root = Path(__file__).parents[3] / "scheduler_service"
    sources = [path.read_text() for folder in ("core", "policies") for path in sorted((root / folder).rglob("*.py"))]
    found = {
        code
        for text in sources
        for code in re.findall(r'code="([A-Z_0-9]+)"|"([A-Z_]+)", numbers', text)
        for code in code
    }
    wanted = (found | {f"ATTEMPT_{name.upper()}" for name in RESTARTING_EXIT_CLASSES}) - {"", "ATTEMPT_"}
    assert wanted <= REASON_TEXTS.keys()
    assert len(wanted) > 30


def test_every_number_that_a_text_names_states_its_unit() -> None:
    names = {name for code in REASON_TEXTS for name in required_of(code)} - {"jobs", "gpus"}
    assert [name for name in sorted(names) if not has_unit(name)] == []
    assert not has_unit("remaining")


def test_a_text_asks_for_the_numbers_and_ids_that_it_names() -> None:
    assert required_of("SLOWDOWN_TOO_HIGH") == {"slowdown_ratio", "max_slowdown_ratio", "jobs"}
    assert required_of("FINISHED") == frozenset()
    with pytest.raises(KeyError):
        required_of("NO_SUCH_CODE")
    assert faults_of_reason(Reason(code="NO_FREE_GPU", numbers={"gpus_needed": float("inf"), "score": 1.0})) == [
        "NO_FREE_GPU lacks gpus_free",
        "NO_FREE_GPU: gpus_needed is inf",
        "NO_FREE_GPU: score states no unit",
    ]


def test_a_reason_is_a_sentence_with_units() -> None:
    numbers = {"needed_bytes": 3 * GIB, "free_bytes": GIB, "gpu_memory_bytes": 8 * GIB}
    text = describe_reason(Reason(code="MEMORY_DOES_NOT_FIT", numbers=numbers))
    assert text == "The job needs 3.00 GiB and 1.00 GiB are left of the GPU's 8.00 GiB."


@for_each(
    ("value_ms", "shown"),
    [
        (0.0, "0.0 s"), (1.0, "1 ms"), (99.0, "99 ms"), (100.0, "0.1 s"),
        (59_949.0, "59.9 s"), (60_000.0, "1m"), (75_400.0, "1m15s"), (3_599_600.0, "1h"),
        (3_600_000.0, "1h"), (5_400_000.0, "1h30m"), (86_399_000.0, "1d"), (187_200_000.0, "2d4h"),
        (-61_000.0, "-61.0 s"),
    ],
)  # fmt: skip
def test_times_are_written_as_flags_are(value_ms: float, shown: str) -> None:
    assert format_quantity("time_limit_ms", value_ms) == shown


def test_a_time_that_is_written_is_read_back() -> None:
    assert parse_duration_ms(format_quantity("time_limit_ms", 5_400_000)) == 5_400_000


def test_where_no_gpu_is_usable_nobody_is_told_to_ask_for_fewer() -> None:
    numbers = {"gpus_needed": 1, "gpus_in_cluster": 0}
    nowhere = Reason(code="GPUS_NOT_IN_CLUSTER", numbers=numbers)
    assert "fewer" not in describe_reason(nowhere)
    assert "cotenant nodes" in describe_reason(nowhere)
    assert "--gpus" not in describe_remedy(nowhere, job())
    too_few = Reason(code="GPUS_NOT_IN_CLUSTER", numbers={"gpus_needed": 8, "gpus_in_cluster": 2})
    assert "fewer" in describe_reason(too_few)
    assert "--gpus" in describe_remedy(too_few, job())


@pytest.mark.parametrize(("victim", "helps"), [("job-1", True), ("job-2", False)])
def test_who_waits_for_the_limit_of_another_job_is_not_told_to_raise_an_own_one(victim: str, helps: bool) -> None:
    other = "job-2" if victim == "job-1" else "job-1"
    numbers = {"slowdown_ratio": 1.33, "max_slowdown_ratio": 0.2}
    reason = Reason(code="SLOWDOWN_TOO_HIGH", numbers=numbers, job_ids=(victim, other))
    assert f"Next to {other}, {victim} would be slowed down by 133.0 %" in describe_reason(reason)
    assert "raise" not in describe_reason(reason)
    assert ("--max-slowdown" in describe_remedy(reason, job("job-1"))) is helps


@for_each("code", ["OUT_OF_DOMAIN", "RANGE_NOT_CALIBRATED", "PAIR_UNKNOWN", "REMAINING_TIME_UNKNOWN"])
def test_a_job_that_may_not_share_yet_is_told_that_it_starts_alone(code: str) -> None:
    assert "starts alone when" in describe_reason(Reason(code=code, job_ids=("job-1",)))


def test_one_gpu_is_said_of_one_and_gpus_are_said_of_several() -> None:
    def missing(needed: float) -> str:
        return describe_reason(Reason(code="NO_FREE_GPU", numbers={"gpus_needed": needed, "gpus_free": 0}))

    assert missing(1).startswith("1 GPU is needed at once and 0 can")
    assert missing(2).startswith("2 GPUs are needed at once and 0 can")


@for_each("code", sorted(REASON_TEXTS))
def test_no_sentence_leaves_the_choice_of_number_to_its_reader(code: str) -> None:
    for count in (1.0, 2.0):
        numbers = dict.fromkeys(required_of(code) - {"jobs", "gpus"}, count)
        assert "(s)" not in describe_reason(Reason(code=code, numbers=numbers))
    assert "(s)" not in describe_reason(Reason(code=code))


@pytest.mark.parametrize(
    ("changes", "helps"),
    [
        ({"takes_whole_batch": True}, True),
        ({"takes_whole_batch": False}, False),
        ({"takes_whole_batch": True, "share": Share.NEVER}, False),
        ({"takes_whole_batch": True, "global_batch_size": 1}, False),
    ],
)
def test_a_job_whose_script_seems_to_cut_no_batch_is_told_how_to_say_that_it_does(
    changes: dict[str, Any], helps: bool
) -> None:
    request = job(**{"global_batch_size": 8, **changes})
    needs = Reason(code="MEMORY_EXCEEDS_GPU", numbers={"needed_bytes": 9 * GIB, "gpu_memory_bytes": 8 * GIB})
    assert ("--cuts-batch" in describe_remedy(needs, request)) is helps
    assert "--cuts-batch" not in describe_remedy(Reason(code="QUOTA"), request)


def test_a_remedy_names_the_job_itself() -> None:
    assert describe_remedy(Reason(code="HELD"), job("job-7")) == "`cotenant release job-7`."


@for_each("code", sorted(code for code in REASON_TEXTS if code.startswith("STARTS_ALONE")))
def test_the_reason_of_a_start_stays_true_when_another_job_joins(code: str) -> None:
    numbers = {"gpus_count": 1.0, "accumulation_steps": 2.0, "micro_batch_size": 8.0}
    assert describe_reason(Reason(code=code, numbers=numbers)).startswith("The job starts with 1 GPU to itself")
