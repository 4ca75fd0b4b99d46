"""`simulate --seeds`: intervals of means, comparisons seed by seed, the same figures as JSON, CSV, Parquet, table."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from cotenant_simulator.commands.program import main
from cotenant_simulator.comparison import runs
from cotenant_simulator.comparison.figures import policy_rows, run_row
from cotenant_simulator.comparison.intervals import interval_of, paired_difference, paired_ratio

T_OF_TWO = 4.302652729749464
"""97.5 % quantile of Student's t with two degrees of freedom, as printed in any table."""
WORKLOAD = """
jobs = 8
seed = 1
[arrival]
mean_s = 20.0
[[classes]]
gpus = [1, 2]
mean_s = 120.0
step_ms = 100.0
"""


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    file = tmp_path / "workload.toml"
    file.write_text(WORKLOAD)
    return file


class Printed:
    """Runs the command in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *words: object, status: int = 0) -> tuple[str, str]:
        self._monkeypatch.setattr(sys, "argv", ["cotenant_simulator", "simulate", *map(str, words)])
        assert main() == status
        captured = self._capsys.readouterr()
        return captured.out, captured.err


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Printed:
    return Printed(monkeypatch, capsys)


def test_the_interval_of_a_mean_is_students() -> None:
    values = [3.0, 5.0, 10.0]
    found = interval_of(values)
    assert found is not None
    half = T_OF_TWO * stdev(values) / 3**0.5
    assert (found.mean, found.low, found.high) == pytest.approx((6.0, 6.0 - half, 6.0 + half))
    alone = interval_of([7.0])
    assert alone is not None
    assert (alone.mean, alone.low, alone.high, alone.count) == (7.0, None, None, 1)
    assert interval_of([]) is None


def test_comparisons_are_made_seed_by_seed() -> None:
    ratio, difference = paired_ratio([2.0, 20.0], [1.0, 10.0]), paired_difference([2.0, 20.0], [1.0, 10.0])
    assert ratio is not None
    assert difference is not None
    assert (ratio.mean, ratio.low, ratio.high) == (2.0, 2.0, 2.0)
    assert difference.mean == 5.5
    assert paired_ratio([1.0, 1.0], [0.0, 1.0]) is None
    one = paired_ratio([None, 3.0], [1.0, 2.0])
    assert one is not None
    assert (one.mean, one.count) == (1.5, 1)


def test_every_seed_is_a_run_and_every_figure_has_an_interval(workload: Path, printed: Printed) -> None:
    out, _ = printed(workload, "--cluster", "2x2", "--policies", "fifo,srtf", "--seeds", 3, "-o", "json")
    found: dict[str, Any] = json.loads(out)
    assert (found["schema"], found["seeds"], found["compared_with"]) == ("cotenant.simulate_seeds/1", [0, 1, 2], "fifo")
    assert [(run["seed"], run["policy"]) for run in found["runs"]] == [
        (seed, policy) for seed in range(3) for policy in ("fifo", "srtf")
    ]
    means = {
        name: [run["jct_s"]["mean"] for run in found["runs"] if run["policy"] == name] for name in ("fifo", "srtf")
    }
    assert len(set(means["fifo"])) == 3, "each seed draws a workload of its own, the file's own seed or not"
    row = next(row for row in found["policies"] if (row["policy"], row["figure"]) == ("srtf", "jct_mean_s"))
    half = T_OF_TWO * stdev(means["srtf"]) / 3**0.5
    assert (row["mean"], row["low"], row["high"]) == pytest.approx(
        (fmean(means["srtf"]), fmean(means["srtf"]) - half, fmean(means["srtf"]) + half), abs=2e-6
    )
    ratios = [one / other for one, other in zip(means["srtf"], means["fifo"], strict=True)]
    assert row["ratio"] == pytest.approx(fmean(ratios), abs=2e-6)
    assert row["ratio_low"] < row["ratio"] < row["ratio_high"]


def test_one_seed_of_several_is_the_run_of_that_seed_alone(workload: Path, printed: Printed) -> None:
    flags = (workload, "--cluster", "2x2", "--policies", "fifo,sjf", "--predictions", "noise:0.5", "-o", "json")
    several = json.loads(printed(*flags, "--seed", 2, "--seeds", 2)[0])["runs"]
    alone = json.loads(printed(*flags, "--seed", 3)[0])["policies"]
    assert [{name: run[name] for name in alone[0]} for run in several if run["seed"] == 3] == alone


def test_all_jobs_are_in_csv_and_parquet_as_they_are_in_json(
    workload: Path, tmp_path: Path, printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = (workload, "--cluster", "2x2", "--policies", "fifo,sjf", "--jobs", "all")
    jobs = json.loads(printed(*flags, "--seeds", 2, "-o", "json")[0])["jobs"]
    assert len(jobs) == 2 * 2 * 8
    rows = list(csv.DictReader(io.StringIO(printed(*flags, "--seeds", 2, "-o", "csv")[0])))
    assert [{name: str(value) for name, value in job.items()} for job in jobs] == rows
    one_seed = list(csv.DictReader(io.StringIO(printed(*flags, "--seed", 1, "-o", "csv")[0])))
    assert {row["seed"] for row in one_seed} == {"1"}
    import pandas

    with (tmp_path / "jobs.parquet").open("wb") as file:
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(file, write_through=True))
        printed(*flags, "--seeds", 2, "-o", "parquet")
    frame = pandas.read_parquet(tmp_path / "jobs.parquet")
    assert frame.to_dict("records") == jobs


def test_figures_over_seeds_are_in_csv(workload: Path, printed: Printed) -> None:
    flags = (workload, "--cluster", "2x2", "--policies", "fifo,sjf")
    rows = list(csv.DictReader(io.StringIO(printed(*flags, "--seeds", 2, "-o", "csv")[0])))
    (stay,) = [row for row in rows if (row["policy"], row["figure"]) == ("sjf", "jct_mean_s")]
    assert float(stay["low"]) < float(stay["mean"]) < float(stay["high"])
    (single,) = [
        row
        for row in csv.DictReader(io.StringIO(printed(*flags, "-o", "csv")[0]))
        if (row["policy"], row["figure"]) == ("sjf", "jct_mean_s")
    ]
    assert (single["seeds"], single["low"], single["ratio_low"]) == ("1", "", "")
    assert float(single["ratio"]) > 0


def test_tables_of_seeds_and_jobs_fit_a_terminal_and_steer_none(tmp_path: Path, printed: Printed) -> None:
    file = tmp_path / "jobs.csv"
    names = ["ünïcode 任务 🚀", "a\x1b[31mred", "long" * 30]
    lines = [f"{name},0,{60 + place},1" for place, name in enumerate(names)]
    file.write_text("\n".join(["job_id,submit_time_s,duration_s,num_gpus", *lines]) + "\n", encoding="utf-8")
    flags = (file, "--cluster", "1x1", "--policies", "termination_elastic,kubernetes_default", "--jobs", "all")
    for more in ((), ("--seeds", 2, "--predictions", "noise:0.5")):
        out, _ = printed(*flags, *more)
        assert max(map(len, out.splitlines())) <= 80
        assert "\x1b" not in out
        assert sum("kube" in line for line in out.splitlines()) >= 3


def test_where_no_job_finished_there_is_no_time() -> None:
    spread = dict.fromkeys(("mean", "p50"), 0.0)
    policy = {"policy": "fifo", "jobs_submitted": 2, "jobs_finished": 0, "jct_s": spread, "preemptions": 0}
    row = run_row(0, policy)
    assert (row["jct_mean_s"], row["preemptions"], row["jobs_finished"]) == (None, 0, 0)
    figures = {row["figure"]: row for row in policy_rows([row])}
    assert (figures["jct_mean_s"]["seeds"], figures["jct_mean_s"]["mean"]) == (0, None)


def test_jobs_that_did_not_finish_are_named_with_their_seed_and_fail_the_command(
    workload: Path, printed: Printed
) -> None:
    flags = (workload, "--cluster", "1x1", "--policies", "fifo", "--parameter", "fifo.overtaking=true", "--seeds", 2)
    _, err = printed(*flags, status=1)
    assert "fifo, seed 0: 3 of 8 jobs did not finish; what jobs were first held for: " in err
    assert "jobs did not finish" in err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--seeds", "0"], "0 is not in the range 1<=x<=1000"),
        (["--seeds", "1000000000"], "is not in the range 1<=x<=1000"),
        (["--seeds", "2", "--report", "page.html"], "--report draws one seed; leave --seeds out"),
        (["--gpu-counts", "0,2"], "--gpu-counts holds a number outside 1 to 100,000; write for instance 1,2,4,8"),
        (["--speedup-power", "nan"], "'nan' is not a number"),
        (["--measured", "nowhere"], "nowhere: is no folder of measurements (No such file or directory); name one with"),
        (["--engine-rules", "pollux", "--seeds", "2"], "--seeds needs --engine-rules live: pollux draws nothing"),
        (["--engine-rules", "pollux", "--gpu-counts", "1,2"], "--gpu-counts needs --engine-rules live"),
    ],
)
def test_what_cannot_be_compared_is_refused(words: list[str], complaint: str, workload: Path, printed: Printed) -> None:
    out, err = printed(workload, *words, status=2)
    assert complaint in err.replace("\n", " ")
    assert out == ""


def test_parquet_is_not_written_to_a_terminal(
    workload: Path, printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    _, err = printed(workload, "-o", "parquet", status=2)
    assert "-o parquet is for a file; write for instance -o parquet > jobs.parquet" in err


def test_more_rows_than_memory_holds_are_refused_before_any_run(
    workload: Path, printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "JOB_ROWS_MAX", 31)
    _, err = printed(workload, "--policies", "fifo,sjf", "--seeds", 2, "--jobs", "all", status=2)
    assert "8 jobs under 2 policies and 2 seeds are 32 rows, more than 31; name fewer policies or seeds" in err
    printed(workload, "--cluster", "2x2", "--policies", "fifo,sjf", "--seeds", 2)


def test_a_policy_that_is_named_twice_is_run_once(workload: Path, printed: Printed) -> None:
    out, _ = printed(workload, "--cluster", "2x2", "--policies", "fifo,fifo", "-o", "json")
    assert [policy["policy"] for policy in json.loads(out)["policies"]] == ["fifo"]
