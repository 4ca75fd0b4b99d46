"""Durations as people write them, and quantities in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cotenant.client_errors import InputError
from cotenant.job_file import parse_job
from cotenant.quantities import format_named, parse_duration_ms


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("1ms", 1),
        ("500MS", 500),
        ("5m", 300_000),
        ("1m5ms", 60_005),
        ("2s250ms", 2_250),
        ("00:30:00", 1_800_000),
        ("1-12:00:01", 129_601_000),
        ("100:00:00", 360_000_000),
    ],
)
def test_milliseconds_are_a_duration(text: str, duration_ms: int) -> None:
    assert parse_duration_ms(text) == duration_ms


@pytest.mark.parametrize("text", ["", "ms", "5", "0ms", "1ms1s", "5 ms", "1us"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"is not (a duration|between 1 ms and 10 years)"):
        parse_duration_ms(text)


@pytest.mark.parametrize(
    "asked",
    [
        {"time_limit": "{}"},
        {"migration_cost": "{}"},
        {"deadline": "+{}"},
        {"straggler_window": "{}"},
    ],
    ids=lambda asked: next(iter(asked)),
)
def test_every_duration_of_a_job_is_read_with_each_of_the_forms_that_its_remedy_names(
    asked: dict[str, str], tmp_path: Path
) -> None:
    def read(duration: str) -> Any:
        ((name, form),) = asked.items()
        return parse_job({"command": ["true"], "working_directory": "/", name: form.format(duration)}, folder=tmp_path)

    for wrong in ("5", "0ms"):
        with pytest.raises(InputError) as refusal:
            read(wrong)
        remedy = refusal.value.remedy
        assert remedy.startswith("write it like ")
        for form in remedy.removeprefix("write it like ").replace(" or ", ", ").split(", "):
            read(form)
        assert "500ms" in remedy


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("gpu_memory_bytes", 80 * 2**30, "gpu memory 80.00 GiB"),
        ("slowdown_ratio", 0.29, "slowdown 29 %"),
        ("waited_ms", 75_000, "waited 1m15s"),
        ("gained_ms", 42.0, "gained 42.0 ms"),
        ("gpus_needed", 2, "gpus needed 2"),
        ("steps_total", 12_000, "steps total 12,000"),
        ("bytes", 12, "bytes 12"),
    ],
)
def test_a_number_of_a_reason_is_told_in_words_with_its_unit(name: str, value: float, shown: str) -> None:
    assert format_named(name, value) == shown
