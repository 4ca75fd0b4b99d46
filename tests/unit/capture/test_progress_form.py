"""Which form of progress a capture states for a job: one that was seen, not one that may be."""

from __future__ import annotations

from cotenant.capture import captured_job
from cotenant.capture.script_run import ScriptOutcome
from tests.support.cases import for_each


@for_each(
    ("log", "progress", "expected"),
    [
        ("  0%|   | 0/60 [00:00<?, ?it/s]", "", r"(?P<step>[0-9]+)/[0-9]+ \["),
        ("Step 1: loss 2.3", "", r"[Ss]tep[ :=#]*(?P<step>[0-9]+)"),
        ("step 1", "helper", ""),  # it says itself how far it is
        ("Total params: 4.7 K", "tqdm", ""),  # Lightning draws with rich, whatever it imports
        ("", "", ""),
    ],
)
def test_a_form_is_stated_where_it_was_seen(log: str, progress: str, expected: str) -> None:
    outcome = ScriptOutcome(
        result={"progress": progress}, status=0, has_started=True, has_torch=True, log=log, not_isolated=""
    )
    assert captured_job._progress_regex(outcome) == expected
