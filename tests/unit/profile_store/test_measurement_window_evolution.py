"""A window that another version wrote is read as far as it goes; nothing of it is lost."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from predictor_service.profile_store.measurement_window import StoredMeasurementWindow, decode, encode
from predictor_service.profile_store.store import ProfileStore
from tests.support.cases import for_each
from tests.support.measurement_windows import NOW_MS, window


def rewritten(change: Callable[[dict[str, Any]], Any]) -> str:
    content = json.loads(encode(window(1)))
    change(content)
    return json.dumps(content)


def read(change: Callable[[dict[str, Any]], Any]) -> StoredMeasurementWindow:
    return decode(f"{1:032x}", rewritten(change))


def test_what_was_not_measured_is_not_written() -> None:
    assert "sm_activity_ratio" not in encode(window(1))
    assert "under_mps" not in encode(window(1))
    assert decode(f"{1:032x}", encode(window(1))) == StoredMeasurementWindow(window=window(1))
    served = window(1, under_mps=True, utilization_ratio=0.0)
    assert decode(f"{1:032x}", encode(served)) == StoredMeasurementWindow(window=served)


@pytest.mark.parametrize("name", ["utilization_ratio", "memory_peak_bytes", "source"])
def test_a_field_that_an_older_version_did_not_write_is_read_as_not_measured(name: str) -> None:
    stored = read(lambda content: content.pop(name))
    assert stored.window is not None
    assert stored.fault == ""


def test_fields_of_a_newer_version_stay_in_the_store_and_are_named(tmp_path: Path) -> None:
    newer = rewritten(
        lambda content: (content.update(fan_rpm=900), content["job"]["settings"].update(gradient_clipping=1.0))
    )
    with closing(ProfileStore(tmp_path / "profiles.sqlite")) as store:
        store.add([window(1)], NOW_MS)
        store._connection.execute("UPDATE stretches SET content = ?", (newer,))
        store.add([window(2)], NOW_MS)
        stored = store.read()
    assert stored[0].window == window(1)
    assert stored[0].unknown == {"fan_rpm", "job.gradient_clipping"}
    with closing(sqlite3.connect(tmp_path / "profiles.sqlite")) as connection:
        assert newer in [row[0] for row in connection.execute("SELECT content FROM stretches")]


@for_each(
    "change",
    [
        lambda content: content.pop("steps"),
        lambda content: content.pop("job"),
        lambda content: content.update(steps="many"),
        lambda content: content.update(source="a thing to come"),
        lambda content: content["job"]["settings"].update(optimizer="a thing to come"),
        lambda content: content["job"].update(graph_sha256=7),
    ],
)
def test_what_cannot_be_read_is_named_and_stops_nothing(change: Callable[[dict[str, Any]], Any]) -> None:
    stored = read(change)
    assert stored.window is None
    assert "written by another version" in stored.fault


def test_numbers_that_an_older_version_accepted_and_this_one_does_not_are_named() -> None:
    stored = read(lambda content: content.update(utilization_ratio=50.0))
    assert stored.window is not None
    assert "outside 0 to 1" in stored.fault
