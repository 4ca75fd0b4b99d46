"""Rows that a service refuses are counted by their reason."""

from __future__ import annotations

import dataclasses

from benchmarks.rows_not_served import count_refused
from predictor_service.fitting.known_rows import ODD_SETTINGS, WITHOUT_GRAPH
from predictor_service.learning.profile_files import MeasuredProfiles
from tests.support.table_dataset import DEVICE, table_rows


def profiles() -> MeasuredProfiles:
    rows = table_rows()
    bare = [dataclasses.replace(row, features_json='{"set.width": 8}') for row in rows[:12]]
    odd = [dataclasses.replace(row, precision="fp64") for row in rows[12:14]]
    return MeasuredProfiles(name="invented", solo=(*bare, *odd, *rows[14:]), pairs=())


def test_each_refused_row_is_counted_by_its_reason() -> None:
    counted = count_refused(profiles())[f"memory; {DEVICE}"]
    assert counted == {WITHOUT_GRAPH: 12, ODD_SETTINGS: 2, "answered": len(table_rows()) - 14}
