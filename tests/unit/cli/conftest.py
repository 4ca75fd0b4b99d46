"""One command line against fake services, on a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant import system_clock
from cotenant.cli.main import run
from tests.support.cli_cluster import NOW_MS, CommandLine, Outcome, sample_scheduler
from tests.support.fake_services import FakePredictor, FakeScheduler, serving


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings of the person who runs the tests, a fixed clock, 80 columns."""
    for name in ("COTENANT_SCHEDULER", "COTENANT_PREDICTOR", "COTENANT_OUTPUT", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("COTENANT_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("COTENANT_SHOWN_AS", "")
    monkeypatch.setattr(system_clock, "now_ms", lambda: NOW_MS)


@pytest.fixture
def cotenant(capfd: pytest.CaptureFixture[str]) -> CommandLine:
    def call(*arguments: str) -> Outcome:
        code = run(list(arguments))
        captured = capfd.readouterr()
        return Outcome(code=code, out=captured.out, err=captured.err)

    return call


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeScheduler]:
    fake = sample_scheduler()
    with serving(fake) as address:
        monkeypatch.setenv("COTENANT_SCHEDULER", address)
        yield fake


@pytest.fixture
def predictor(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakePredictor]:
    fake = FakePredictor()
    with serving(fake) as address:
        monkeypatch.setenv("COTENANT_PREDICTOR", address)
        yield fake
