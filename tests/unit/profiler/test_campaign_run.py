from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner
from cotenant_profiler import commands, system_clock
from cotenant_profiler.bench import Load, Measurement
from cotenant_profiler.campaign import Method
from cotenant_profiler.campaign_run import CampaignDriver, judged, wait_ms
from cotenant_profiler.errors import OutOfMemoryError
from cotenant_profiler.journal import Journal, Record, open_journal
from cotenant_profiler.plan import Kind, build_plan

from tests.support.profiler import LENET, LENET_WAIT, RECOMMENDER, FakeBench, record, small_campaign

HEADER = {"campaign": "test", "device": "cpu-standin", "framework": "torch-x", "held_by": "nothing"}


class KilledError(Exception):
    """Stands for a kill in the middle of a campaign."""


def carry_out(folder: Path, bench: FakeBench, *, end_ns: int | None = None, kill_after: int | None = None) -> Journal:
    journal = open_journal(folder, HEADER)

    def listen(_record: Record) -> None:
        if kill_after is not None and len(journal.records) == kill_after:
            raise KilledError

    CampaignDriver(bench, journal, LENET, end_ns, listen).carry_out(build_plan(small_campaign()))
    return journal


def test_every_planned_run_is_carried_out_once(tmp_path: Path) -> None:
    journal = carry_out(tmp_path, FakeBench())
    planned = [run.run_id for run in build_plan(small_campaign())]
    assert [item.run_id for item in journal.records] == planned


@pytest.mark.parametrize("kill_after", [1, 5, 11])
def test_a_killed_campaign_resumes_with_the_same_runs_and_none_twice(tmp_path: Path, kill_after: int) -> None:
    with pytest.raises(KilledError):
        carry_out(tmp_path, FakeBench(), kill_after=kill_after)
    journal = carry_out(tmp_path, FakeBench())
    ids = [item.run_id for item in journal.records]
    assert sorted(ids) == sorted(run.run_id for run in build_plan(small_campaign()))


def test_a_run_under_foreign_load_is_kept_as_rejected_and_repeated(tmp_path: Path) -> None:
    journal = carry_out(tmp_path, FakeBench(foreign_ratios=[0.2]))
    first = journal.records[0]
    attempts = [item for item in journal.records if item.run_id == first.run_id]
    assert [(item.status, item.attempt) for item in attempts] == [("rejected", 0), ("ok", 1)]
    assert first.flags == ("foreign_load",)


def test_a_run_during_which_the_machine_changed_its_speed_is_rejected(tmp_path: Path) -> None:
    journal = carry_out(tmp_path, FakeBench(speed_change=1.2))
    measured = [item for item in journal.records if item.kind is not Kind.MEMORY]
    assert {item.flags for item in measured} == {("speed_changed",)}
    assert {item.status for item in measured} == {"rejected"}


def test_the_line_of_a_rejected_run_says_why(tmp_path: Path) -> None:
    journal = carry_out(tmp_path, FakeBench(speed_change=1.2))
    lines = {item.status: commands.progress_line(item) for item in journal.records}
    assert "(speed_changed; foreign load " in lines["rejected"]
    assert "speed_changed" not in lines["ok"]


def test_runs_of_which_no_attempt_was_accepted_are_not_called_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign = tmp_path / "campaign.toml"
    campaign.write_text("")
    journal = carry_out(tmp_path / "out", FakeBench(speed_change=1.2))
    monkeypatch.setattr(commands, "read_campaign", lambda _path: small_campaign())
    monkeypatch.setattr(commands, "run_campaign", lambda *_places, **_flags: journal)
    planned = build_plan(small_campaign())
    memory = sum(run.kind is Kind.MEMORY for run in planned)
    told = CliRunner().invoke(commands.main, ["run", str(campaign), "--out", str(tmp_path / "out")])
    assert told.exit_code == 0
    assert f"{memory} of {len(planned)} runs measured" in told.stderr
    assert f"{len(planned) - memory} runs were given up" in told.stderr
    assert "another --out" in told.stderr


def test_a_run_alone_is_rejected_when_its_anchor_deviates_from_all_before() -> None:
    method = small_campaign().method
    earlier = [record(Kind.SOLO, LENET, alone_ms=10.0) for _ in range(5)]
    measurement = Measurement(figures=({"step_ms_mean": 5.0},), references_ms=((12.0, 12.5),))
    fresh = record(Kind.SOLO, RECOMMENDER, references_ms=())
    assert judged(fresh, measurement, method, earlier).flags == ("anchor_drift",)
    assert judged(fresh, measurement, method, earlier[:4]).status == "ok"


def test_groups_are_compared_with_their_jobs_alone_and_single_jobs_with_the_anchor(tmp_path: Path) -> None:
    bench = FakeBench()
    carry_out(tmp_path, bench)
    for jobs, references in zip(bench.measured, bench.references, strict=True):
        assert references == (jobs if len(jobs) > 1 else (LENET,))


def test_a_job_that_does_not_fit_is_a_result_and_not_tried_again(tmp_path: Path) -> None:
    class SmallBench(FakeBench):
        def measure(self, loads: Sequence[Load], references: Sequence[Load], method: Method) -> Measurement:
            if RECOMMENDER in {load.job for load in loads}:
                raise OutOfMemoryError("80 GiB wanted, 40 GiB there")
            return super().measure(loads, references, method)

    journal = carry_out(tmp_path, SmallBench())
    beyond = [item for item in journal.records if RECOMMENDER in item.jobs and item.kind is not Kind.MEMORY]
    assert {item.status for item in beyond} == {"out_of_memory"}
    assert len({item.run_id for item in beyond}) == len(beyond)


def test_a_run_is_given_up_after_the_attempts_allowed(tmp_path: Path) -> None:
    journal = carry_out(tmp_path, FakeBench(foreign_ratios=[1.0] * 1000))
    planned = [run for run in build_plan(small_campaign()) if run.kind is not Kind.MEMORY]
    rejected = [item for item in journal.records if item.kind is not Kind.MEMORY]
    assert len(rejected) == 3 * len(planned)
    assert {item.status for item in rejected} == {"rejected"}


def test_a_crashed_worker_is_a_failed_row_and_the_rest_goes_on(tmp_path: Path) -> None:
    bench = FakeBench(failing=[RECOMMENDER])
    journal = carry_out(tmp_path, bench)
    failed = [item for item in journal.records if item.status == "failed"]
    assert bench.closed == len(failed) > 0
    assert {item.error for item in failed} == {"the worker died"}
    assert any(item.jobs == (LENET, LENET) and item.status == "ok" for item in journal.records)


def test_no_run_begins_that_would_end_after_the_deadline(tmp_path: Path) -> None:
    journal = carry_out(tmp_path, FakeBench(), end_ns=system_clock.now_ns() + 100_000_000)
    assert journal.records == []


def test_a_wait_follows_from_the_first_accepted_run_without_it(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, HEADER)
    journal.append(record(Kind.SOLO, LENET, step_ms=50.0, status="rejected"))
    journal.append(record(Kind.SOLO, LENET, step_ms=4.0))
    assert wait_ms(journal, LENET) == 0
    assert wait_ms(journal, LENET_WAIT) == pytest.approx(6.0)


def test_a_wait_stays_the_same_for_the_whole_campaign(tmp_path: Path) -> None:
    journal = carry_out(tmp_path, FakeBench())
    waits = {item.waits_ms[item.jobs.index(LENET_WAIT)] for item in journal.records if LENET_WAIT in item.jobs}
    assert waits == {9.0}
