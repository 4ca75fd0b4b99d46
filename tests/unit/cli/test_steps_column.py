"""How far a job came is not told as 0 where nobody counted."""

from __future__ import annotations

import pytest

from cotenant.cli.forecast_views import steps_done_text, steps_text
from cotenant.v1 import scheduling_pb2


@pytest.mark.parametrize(("code", "shown"), [("FINISHED_UNCOUNTED", "?"), ("FINISHED", "0"), ("STARTS_ALONE", "0")])
def test_a_finished_job_whose_steps_nobody_counted_made_an_unknown_number(code: str, shown: str) -> None:
    assert steps_done_text(scheduling_pb2.Job(reason=scheduling_pb2.Reason(code=code))) == shown


@pytest.mark.parametrize(("stated", "said", "shown"), [(30, 0, "30"), (30, 40, "30"), (0, 40, "40"), (0, 0, "?")])
def test_the_steps_of_a_job_are_what_its_owner_stated_else_what_its_script_says(
    stated: int, said: int, shown: str
) -> None:
    spec = scheduling_pb2.JobSpec(steps_total=stated)
    assert steps_text(scheduling_pb2.Job(spec=spec, script_steps_total=said)) == shown
