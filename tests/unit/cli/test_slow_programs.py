"""A program of ours that takes too long ends, and is told with what to do."""

from __future__ import annotations

import pytest

from cotenant.client_errors import ProgramError
from cotenant.programs import run_captured


def test_a_program_that_does_not_answer_in_time_is_told_with_a_remedy() -> None:
    with pytest.raises(ProgramError, match=r"did not answer within 0\.001 s") as told:
        run_captured("convert", ["--help"], timeout_s=0.001)
    assert "less busy" in told.value.remedy
