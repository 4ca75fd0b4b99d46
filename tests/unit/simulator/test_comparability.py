"""What a comparison cannot show is said: on stderr, in the JSON, on the page."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from cotenant.v1 import scheduling_pb2
from cotenant_simulator.commands.program import main
from cotenant_simulator.readers.requests import Consent
from cotenant_simulator.readers.trace_file import read_trace
from cotenant_simulator.report.comparability import caveats_of_outcomes, caveats_of_trace, fate_of
from cotenant_simulator.truth.kinds import EVERY_DEVICE
from scheduler_service.core.records import DEFAULT_MAX_SLOWDOWN_RATIO, JobRequest, Share
from scheduler_service.grpc_api.jobs import translate_jobs
from tests.support.shared_data import shared_data
from tests.support.simulated_runs import kind, run, trace_job, trace_of

DURATIONS = "job_id,submit_time_s,duration_s,num_gpus\n" + "".join(f"{n},{n},{60 + 40 * n},1\n" for n in range(6))
SHARING = ["sjf_bsbf", "horus", "obp"]


@pytest.fixture
def durations(tmp_path: Path) -> Path:
    file = tmp_path / "durations.csv"
    file.write_text(DURATIONS)
    return file


def reported(
    file: Path, *flags: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[dict[str, Any], str]:
    monkeypatch.setattr(sys, "argv", ["cotenant_simulator", "simulate", str(file), *flags, "-o", "json"])
    assert main() == 0
    captured = capsys.readouterr()
    found: dict[str, Any] = json.loads(captured.out)
    return found, captured.err


def test_simulated_jobs_consent_to_what_live_jobs_consent_to_that_say_nothing(
    durations: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert Consent().max_slowdown_ratio == JobRequest(job_id="j").max_slowdown_ratio == DEFAULT_MAX_SLOWDOWN_RATIO
    live = translate_jobs.job_request("job-1", scheduling_pb2.JobSpec())
    assert live.max_slowdown_ratio == DEFAULT_MAX_SLOWDOWN_RATIO
    flags = ("--cluster", "1x1", "--policies", "obp", "--slowdown", "0.3")
    plain, _ = reported(durations, *flags, monkeypatch=monkeypatch, capsys=capsys)
    stated, _ = reported(
        durations, *flags, "--max-slowdown", str(DEFAULT_MAX_SLOWDOWN_RATIO), monkeypatch=monkeypatch, capsys=capsys
    )
    free, _ = reported(durations, *flags, "--max-slowdown", "1", monkeypatch=monkeypatch, capsys=capsys)
    assert plain["policies"][0]["slowdown_ratio"]["max"] == 0
    assert plain == stated
    assert free["policies"][0]["slowdown_ratio"]["max"] > 0


def test_a_trace_of_durations_is_said_not_to_distinguish_sharing_policies(
    durations: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found, err = reported(
        durations, "--cluster", "1x2", "--policies", "fifo,horus,obp", monkeypatch=monkeypatch, capsys=capsys
    )
    codes = [warning["code"] for warning in found["warnings"]]
    assert codes == ["NOBODY_SHARES", "PAIRS_ALIKE", "SAME_OUTCOME"]
    assert {"horus", "obp"} <= set(found["warnings"][2]["policies"])
    lines = [line.removeprefix("warning: ") for line in err.splitlines()]
    assert lines == [warning["message"] for warning in found["warnings"]]


def test_the_page_says_it_too(
    durations: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    reported(durations, "--policies", "obp,horus", "--report", str(page), monkeypatch=monkeypatch, capsys=capsys)
    assert "cannot distinguish them" in page.read_text()


def test_measured_pairs_and_one_sharing_policy_need_no_warning() -> None:
    kinds = {"a": kind(utilization_ratio=0.2), "b": kind(utilization_ratio=0.9)}
    jobs = [trace_job(f"j{key}", key=key, max_slowdown_ratio=0.2) for key in kinds]
    slowdowns = {("a", "b", EVERY_DEVICE): 0.1, ("b", "a", EVERY_DEVICE): 0.3}
    trace = trace_of(*jobs, kinds=kinds, slowdowns=slowdowns)
    assert caveats_of_trace(trace, ["fifo", "srtf", *SHARING]) == []
    alike = trace_of(*jobs, slowdown_ratio=0.1)
    assert [one.code for one in caveats_of_trace(alike, SHARING)] == ["PAIRS_ALIKE"]
    assert caveats_of_trace(alike, ["fifo", "sjf", "sjf_bsbf"]) == []


def test_errors_and_unknown_pairs_may_let_jobs_share_after_all() -> None:
    jobs = [trace_job(f"j{number}", max_slowdown_ratio=0.2, share=Share.ANY) for number in range(2)]
    refused = trace_of(*jobs, slowdown_ratio=0.3)
    assert [one.code for one in caveats_of_trace(refused, ["obp"])] == ["NOBODY_SHARES"]
    assert caveats_of_trace(refused, ["obp"], is_truth_predicted=False) == []
    measured = {("kind", "kind", EVERY_DEVICE): 0.3}
    unknown = trace_of(*jobs, slowdowns=measured, predicts_unmeasured=False)
    assert caveats_of_trace(unknown, ["obp"]) == []


def test_jobs_that_share_on_trial_are_not_said_to_share_with_nobody() -> None:
    known: dict[str, Any] = {"slowdowns": {("kind", "kind", EVERY_DEVICE): 0.3}, "predicts_unmeasured": False}
    jobs = [trace_job(f"j{number}", max_slowdown_ratio=0.2) for number in range(2)]
    assert caveats_of_trace(trace_of(*jobs, **known), ["obp"]) == []
    refusing = [trace_job(f"j{number}", max_slowdown_ratio=0.2, no_trial=True) for number in range(2)]
    assert [one.code for one in caveats_of_trace(trace_of(*refusing, **known), ["obp"])] == ["NOBODY_SHARES"]


def test_rigid_jobs_are_named_to_policies_that_choose_numbers_of_gpus() -> None:
    rigid = trace_of(trace_job("a"), trace_job("b"))
    (caveat,) = caveats_of_trace(rigid, ["fifo", "elastic", "optimus"])
    assert (caveat.code, caveat.policies) == ("JOBS_RIGID", ("elastic", "optimus"))
    free = trace_of(trace_job("a", allowed_gpus=(1, 2)), trace_job("b"))
    assert caveats_of_trace(free, ["elastic"]) == []
    assert caveats_of_trace(trace_of(), ["elastic", *SHARING]) == []


def test_outcomes_are_the_same_only_where_every_job_fared_alike() -> None:
    trace = trace_of(*(trace_job(f"j{number}", seconds=300 - 90 * number) for number in range(3)))
    by_order, by_length, again = (run(trace, policy=policy) for policy in ("fifo", "sjf", "tetris"))
    fifo, sjf, tetris = ([fate_of(result)] for result in (by_order, by_length, again))
    (caveat,) = caveats_of_outcomes({"fifo": fifo, "sjf": sjf, "tetris": tetris})
    assert (caveat.code, caveat.policies) == ("SAME_OUTCOME", ("sjf", "tetris"))
    assert caveats_of_outcomes({"fifo": fifo, "sjf": sjf}) == []
    assert caveats_of_outcomes({"fifo": fifo}) == []
    # Of several seeds one difference is enough.
    assert caveats_of_outcomes({"sjf": [*sjf, *fifo], "tetris": [*tetris, *sjf]}) == []


def test_jobs_that_never_wait_are_said_to_distinguish_no_orders() -> None:
    trace = trace_of(*(trace_job(f"j{number}", at_s=number) for number in range(3)))
    idle = {policy: [fate_of(run(trace, policy=policy, cluster="1x4"))] for policy in ("fifo", "sjf")}
    assert [one.code for one in caveats_of_outcomes(idle)] == ["NO_CONTENTION", "SAME_OUTCOME"]
    busy = {policy: [fate_of(run(trace, policy=policy, cluster="1x2"))] for policy in ("fifo", "sjf")}
    assert "NO_CONTENTION" not in [one.code for one in caveats_of_outcomes(busy)]
    assert caveats_of_outcomes({"fifo": idle["fifo"]}) == []


def test_seeds_that_draw_nothing_are_said_to_be_one() -> None:
    trace = trace_of(*(trace_job(f"j{number}", seconds=300 - 90 * number) for number in range(3)))
    fifo, sjf = (fate_of(run(trace, policy=policy)) for policy in ("fifo", "sjf"))
    (caveat,) = caveats_of_outcomes({"fifo": [fifo, fifo], "sjf": [sjf, sjf]})
    assert (caveat.code, caveat.policies) == ("SEEDS_ALIKE", ("fifo", "sjf"))
    assert caveats_of_outcomes({"fifo": [fifo, fifo], "sjf": [sjf, fifo]}) == []


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        ("elasticflow-itp/cluster10.csv", ["NOBODY_SHARES", "PAIRS_ALIKE"]),
        ("pollux/workloads/load-1.5/workload-6.csv", ["NOBODY_SHARES", "PAIRS_ALIKE"]),
        ("gavel/jobs_max_min_fairness.csv", []),
    ],
)
def test_public_job_lists_say_what_they_lack(name: str, codes: list[str]) -> None:
    trace = read_trace(shared_data("traces", *name.split("/")), Consent())
    assert [one.code for one in caveats_of_trace(trace, SHARING)] == codes
