"""`cotenant doctor` names calibrations of this machine that cannot be read, with what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cotenant.calibration_files import calibration_path
from cotenant.cli import doctor_command
from tests.support.cli_cluster import CommandLine


@pytest.mark.parametrize("content", ["{", None])
def test_a_calibration_that_cannot_be_read_is_a_warning(
    cotenant: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    monkeypatch.setattr(doctor_command, "CHECKS", (doctor_command.check_calibrations,))
    file = calibration_path(tmp_path / "state", "NVIDIA L4", "1")
    if content is not None:
        file.parent.mkdir(parents=True)
        file.write_text(content)
    outcome = cotenant("doctor", "-o", "json")
    found = json.loads(outcome.out)["findings"]
    assert outcome.code == 0
    assert [(one["state"], str(file) in one["found"], "calibrate" in one["remedy"]) for one in found] == (
        [("warning", True, True)] if content else []
    )
