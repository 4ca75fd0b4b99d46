"""`simulate`: flags, exit statuses, the JSON's keys, the table's width, the page."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cotenant_simulator.commands.program import main
from cotenant_simulator.errors import ClusterError
from cotenant_simulator.truth.cluster import read_cluster

ROOT = Path(__file__).resolve().parents[3]
WORKLOAD = """
jobs = 12
[arrival]
mean_s = 20.0
[[classes]]
gpus = [1, 2]
mean_s = 120.0
step_ms = 100.0
"""
POLICY_KEYS = [
    "policy",
    "parameters",
    "jobs_submitted",
    "jobs_finished",
    "jct_s",
    "run_s",
    "queueing_s",
    "first_wait_s",
    "makespan_s",
    "gpu_hours_used",
    "gpu_hours_allocated",
    "gpu_allocated_ratio",
    "gpu_utilization_ratio",
    "slowdown_ratio",
    "finish_time_fairness_rho",
    "preemptions",
    "migrations",
    "reshapes",
    "out_of_memory",
    "held_reasons",
]
JOB_KEYS = [
    "policy",
    "job_id",
    "submitted_at_ms",
    "first_started_at_ms",
    "finished_at_ms",
    "gpus",
    "jct_s",
    "queueing_s",
    "slowdown_ratio",
    "restarts",
    "out_of_memory",
]


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("simulate") / "workload.toml"
    file.write_text(WORKLOAD)
    return file


def simulate(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cotenant_simulator", "simulate", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=110)


def report(*arguments: object) -> dict[str, Any]:
    done = simulate(*arguments, "-o", "json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_json_has_the_keys_that_were_promised(workload: Path) -> None:
    found = report(workload, "--cluster", "2x2", "--policies", "fifo,srtf", "--jobs", "all")
    assert list(found) == [
        "schema",
        "trace",
        "cluster",
        "engine_rules",
        "predictions",
        "seed",
        "policies",
        "jobs",
        "warnings",
    ]
    assert found["schema"] == "cotenant.simulate/1"
    assert list(found["trace"]) == ["path", "sha256", "jobs"]
    assert [list(policy) for policy in found["policies"]] == [POLICY_KEYS] * 2
    assert [list(job) for job in found["jobs"]] == [JOB_KEYS] * 24
    for name in ("jct_s", "run_s", "queueing_s", "first_wait_s", "finish_time_fairness_rho"):
        assert list(found["policies"][0][name]) == ["mean", "p50", "p95", "p99", "max"]
    assert list(found["policies"][0]["slowdown_ratio"]) == ["mean", "p95", "max"]


def test_the_first_simulation_of_the_readme_prints_the_table_of_the_readme(tmp_path: Path) -> None:
    page = (ROOT / "README.md").read_text()
    line = next(text for text in page.splitlines() if "cotenant simulate examples" in text)
    arguments = line.split()[2:]
    arguments[arguments.index("report.html")] = str(tmp_path / "report.html")
    done = simulate(*arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(" 200 ") == 3
    assert [line.strip() for line in done.stdout.splitlines()] == [
        text.strip() for text in page.partition(line)[2].split("\n\n")[1].splitlines()
    ]
    assert "<svg" in (tmp_path / "report.html").read_text()


def test_the_sums_fit_the_jobs(workload: Path) -> None:
    found = report(workload, "--cluster", "2x2", "--policies", "fifo", "--jobs", "all")
    (policy,), jobs = found["policies"], found["jobs"]
    ends = [job["finished_at_ms"] for job in jobs]
    assert policy["jct_s"]["mean"] == pytest.approx(sum(job["jct_s"] for job in jobs) / len(jobs), abs=1e-5)
    assert policy["jct_s"]["max"] == max(job["jct_s"] for job in jobs)
    assert policy["makespan_s"] == (max(ends) - min(job["submitted_at_ms"] for job in jobs)) / 1_000
    hours = sum(job["gpus"] * (job["jct_s"] - job["queueing_s"]) for job in jobs) / 3_600
    assert policy["gpu_hours_allocated"] == pytest.approx(hours, abs=1e-5)


def test_two_runs_print_the_same_bytes(workload: Path) -> None:
    arguments = (workload, "--cluster", "2x2", "--policies", "sjf_bsbf", "--predictions", "error:0.4", "-o", "json")
    assert simulate(*arguments).stdout == simulate(*arguments).stdout


def test_the_table_fits_a_terminal(workload: Path) -> None:
    done = simulate(workload, "--cluster", "2x2", "--policies", "fifo,termination_elastic,kubernetes_default")
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "terminatio" in done.stdout


def test_the_page_holds_everything_and_fetches_nothing(workload: Path, tmp_path: Path) -> None:
    file, timings = tmp_path / "page.html", tmp_path / "timings.json"
    done = simulate(workload, "--cluster", "2x2", "--policies", "fifo,sjf_bsbf", "--report", file, "--timings", timings)
    assert done.returncode == 0, done.stderr
    text = file.read_text()
    assert text.count("<svg") == 7
    assert "sjf_bsbf against fifo, job by job" in text
    assert not re.search(r"""(?:src|href|@import|url\()\s*=?\s*["']?(?:https?:|//)""", text)
    assert "<script" not in text
    assert set(json.loads(timings.read_text())) == {"read", "fifo", "sjf_bsbf", "process_cpu_s"}


def test_unfinished_jobs_are_counted_and_fail_the_command(workload: Path) -> None:
    done = simulate(
        workload, "--cluster", "4x1", "--policies", "fifo", "--parameter", "fifo.overtaking=true", "-o", "json"
    )
    assert done.returncode in {0, 1}
    wide = simulate(
        workload, "--cluster", "1x1", "--policies", "fifo", "--parameter", "fifo.overtaking=true", "-o", "json"
    )
    missing = sum(job["jobs_submitted"] - job["jobs_finished"] for job in json.loads(wide.stdout)["policies"])
    assert missing > 0
    assert wide.returncode == 1
    assert f"fifo: {missing} of 12 jobs did not finish" in wide.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--cluster", "huge"], "cluster 'huge' is no cluster; write NODESxGPUS"),
        (["--cluster", ""], "cluster '' is no cluster; write NODESxGPUS"),
        (["--cluster", "0x4"], "cluster '0x4' has no GPU; write NODESxGPUS such as 16x4"),
        (["--cluster", "4x0"], "cluster '4x0' has no GPU; write NODESxGPUS such as 16x4"),
        (["--cluster", "own"], "the trace names no machines of its own"),
        (["--cluster", "none.toml"], "none.toml cannot be read: No such file or directory; write"),
        (["--policies", "fastest"], "there is no policy 'fastest'"),
        (["--policies", ","], "--policies names no policy"),
        (["--parameter", "fifo.speed=1"], "policy fifo has no parameter 'speed'"),
        (["--parameter", "fast"], "is not POLICY.NAME=VALUE of one of fifo"),
        (["--predictions", "noise:x"], "predictions 'noise:x' are not known; write oracle"),
        (["--predictions", "error:1"], "predictions 'error:1' are not known"),
        (["--predictions", "trained"], "have no graphs, so nothing can be predicted of them"),
        (["--timings", "/nowhere/t.json"], "cannot be written"),
        (["--report", "/nowhere/r.html"], "cannot be written"),
        (["--launch-s", "nan"], "'nan' is not a number"),
        (["--node-failure-hours", "nan"], "'nan' is not a number"),
        (["--policies", "horus", "--parameter", "horus.utilization_max_ratio=NaN"], "must be number, not nan"),
        (["--policies", "horus", "--parameter", "horus.utilization_max_ratio=1" + "0" * 400], "must be number"),
        (["--policies", "horus", "--parameter", "horus.locality_gpus=" + "9" * 5_000], "must be integer"),
        (["--policies", "horus", "--parameter", "horus.curves=" + "[" * 100_000], "must be object"),
        (
            ["--engine-rules", "pollux", "--report", "x.html"],
            "--report needs --engine-rules live: pollux keeps",
        ),
        (["--engine-rules", "pollux", "--learn-speeds"], "--learn-speeds needs --engine-rules live: pollux knows"),
    ],
)
def test_a_wrong_flag_is_named_with_its_remedy(
    arguments: list[str],
    complaint: str,
    workload: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["cotenant_simulator", "simulate", str(workload), *arguments])
    assert main() == 2
    captured = capsys.readouterr()
    assert complaint in captured.err.replace("\n", " ")
    assert captured.out == ""


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("nodes = [3]", "entry 1 of nodes is no table"),
        ("[[nodes]]\ncpu_cores = 'many'", "cpu_cores must be a positive number"),
        ("[[nodes]]\nhost_memory_gib = inf", "host_memory_gib must be a positive number"),
        ("[[nodes]]\ngpu_memory_gib = 1e308", "gpu_memory_gib must be a positive number"),
        ("[[nodes]]\nspeed_ratio = nan", "speed_ratio must be a positive number"),
        ("nodes = " + "9" * 5_000, "cannot be read"),
    ],
)
def test_machines_that_cannot_be_are_refused(text: str, complaint: str, tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(text)
    with pytest.raises(ClusterError, match=complaint):
        read_cluster(str(file), device="any")


def test_a_policy_that_finishes_nothing_has_no_times_to_compare(tmp_path: Path) -> None:
    file = tmp_path / "wide.toml"
    file.write_text("jobs = 2\n[[classes]]\ngpus = [8]\n")
    page = tmp_path / "report.html"
    done = simulate(file, "--cluster", "1x1", "--policies", "fifo", "--report", page)
    assert done.returncode == 1
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", page.read_text())
    assert cells[1:8] == ["0 of 2", *["-"] * 5, "0 %"]
    assert done.stdout.splitlines()[-1].split() == ["fifo", "0/2", "-", "-", "-", "-", "0", "0", "%", "0", "0"]
    assert re.fullmatch(r"fifo: 2 of 2 jobs did not finish; what jobs were first held for: [A-Z_]+ \d+\n", done.stderr)
    policy = json.loads(simulate(file, "--cluster", "1x1", "--policies", "fifo", "-o", "json").stdout)["policies"][0]
    assert (policy["makespan_s"], policy["gpu_allocated_ratio"]) == (0.0, 0.0)


def test_a_file_that_is_not_there_is_named() -> None:
    done = simulate("nowhere.csv")
    assert done.returncode == 2
    assert "nowhere.csv: is no file; name a trace" in done.stderr
