"""A toy family that can be computed by hand: the rules, the document, and what is said about unusable files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cotenant_simulator.commands.program import main
from cotenant_simulator.errors import TraceError
from cotenant_simulator.pollux_rules.cluster import read_cluster_shape
from cotenant_simulator.pollux_rules.entry_point import run_pollux_rules
from cotenant_simulator.pollux_rules.errors import ClusterShapeError, PolluxRulesError, ProfileError, WorkloadError
from cotenant_simulator.pollux_rules.simulation import POLICIES
from cotenant_simulator.readers.pollux_profiles import find_profiles
from tests.support.pollux_family import TOY, times_of, write_toy, write_workload


def run_toy(tmp_path: Path, policy: str, *rows: str, cluster: str = "2x2") -> dict[str, object]:
    return run_pollux_rules(write_workload(tmp_path / "w.csv", *rows), write_toy(tmp_path / "toy"), policy, cluster)


def rows_of(found: dict[str, object], part: str) -> list[Any]:
    rows = found[part]
    assert isinstance(rows, list)
    return rows


@pytest.mark.parametrize("policy", ["tiresias", "fifo", "sjf", "fifo_skip", "sjf_skip"])
def test_a_job_takes_its_wait_for_the_tick_its_pause_and_its_steps(tmp_path: Path, policy: str) -> None:
    """Submitted at 61, seen at 120, pause until 150, 100 steps of 2 s."""
    found = run_toy(tmp_path, policy, "one,61,toy,2,20")
    assert times_of(found) == {"one": 150 + 200 - 61}
    (row,) = rows_of(found, "jobs")
    assert (row["first_started_at_ms"], row["finished_at_ms"], row["queueing_s"]) == (120_000, 350_000, 59)


def test_a_job_submitted_at_a_tick_is_seen_at_it(tmp_path: Path) -> None:
    assert times_of(run_toy(tmp_path, "fifo", "one,60,toy,1,10")) == {"one": 30 + 200}


def test_submit_times_may_be_dates(tmp_path: Path) -> None:
    """Seconds since 1970: nothing is simulated before the first job, and the gap to the next one costs nothing."""
    at = 1_700_000_001
    found = times_of(run_toy(tmp_path, "tiresias", f"one,{at},toy,2,20", f"two,{2 * at},toy,2,20"))
    seen = -(-at // 60) * 60
    assert found["one"] == seen + 230 - at
    assert found["two"] == -(-2 * at // 60) * 60 + 230 - 2 * at


def test_gpus_come_free_at_the_end_of_the_minute_in_which_a_job_ends(tmp_path: Path) -> None:
    """The first ends at 60 + 230 = 290; the second starts at 300."""
    found = times_of(run_toy(tmp_path, "fifo", "first,0,toy,4,20", "second,0,toy,4,20"))
    assert found == {"first": 290, "second": 300 + 230}


def test_strict_orders_wait_for_the_first_job_and_skipping_ones_pass_it(tmp_path: Path) -> None:
    rows = ("wide,0,toy,3,20", "wider,0,toy,4,20", "narrow,0,toy,1,10")
    assert times_of(run_toy(tmp_path, "fifo", *rows))["narrow"] == 300 + 240 + 230
    assert times_of(run_toy(tmp_path, "fifo_skip", *rows))["narrow"] == 290


def test_tiresias_demotes_a_job_after_sixteen_gpu_hours(tmp_path: Path) -> None:
    """4 GPUs x 14,400 s: the long job, running since 60, gives way to a later one at 14,460."""
    slow = [line.replace(",2.0,0.5", ",200.0,0.5") for line in TOY["placements.csv"]]
    profiles = write_toy(tmp_path / "toy", placements=slow)
    workload = write_workload(tmp_path / "w.csv", "long,0,toy,4,20", "late,600,toy,4,20")
    found = run_pollux_rules(workload, profiles, "tiresias", "2x2")
    starts = {row["job_id"]: row["first_started_at_ms"] for row in rows_of(found, "jobs")}
    assert starts == {"long": 60_000, "late": 14_460_000}


@pytest.mark.parametrize("policy", POLICIES)
def test_the_document_is_the_same_twice_and_its_sums_are_right(tmp_path: Path, policy: str) -> None:
    rows = ("a,0,toy,2,20", "b,5,toy,3,20", "c,400,toy,1,10")
    found = run_toy(tmp_path, policy, *rows)
    assert json.dumps(found) == json.dumps(run_toy(tmp_path, policy, *rows))
    assert (found["schema"], found["engine_rules"], found["cluster"]) == ("cotenant.simulate/1", "pollux", "2x2")
    (summary,), jobs = rows_of(found, "policies"), rows_of(found, "jobs")
    assert summary["jobs_finished"] == len(rows)
    assert summary["jct_s"]["mean"] == pytest.approx(sum(row["jct_s"] for row in jobs) / len(rows))
    assert summary["makespan_s"] == max(row["finished_at_ms"] for row in jobs) / 1_000
    assert 0 < summary["gpu_hours_used"] <= summary["gpu_hours_allocated"]
    assert all(row["jct_s"] >= row["queueing_s"] >= 0 for row in jobs)


def test_the_artifacts_own_column_names_are_read_too(tmp_path: Path) -> None:
    path = tmp_path / "w.csv"
    path.write_text("name,time,application,num_replicas,batch_size\none,61,toy,2,20\n", encoding="utf-8")
    assert times_of(run_pollux_rules(path, write_toy(tmp_path / "toy"), "tiresias", "2x2")) == {"one": 289}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (("x,0,resnet,1,10",), "job 'x' trains 'resnet', but the profiles know toy only"),
        (("x,0,toy,1,10", "x,1,toy,1,10"), "job ids must be unique"),
        (("x,soon,toy,1,10",), "something else than whole numbers"),
        (("x,-1,toy,1,10",), "needs a submit time from 0"),
        (("x,0,toy,0,10",), "at least 1 GPU"),
        (("x,0,toy,1,41",), "a batch size of 1 to 40"),
        (("x,0,toy,5,10",), "job 'x' needs 5 GPUs, but 2x2 are 4 only"),
        (("x,0,toy,1",), "row 2: 4 fields"),
        ((), "has no jobs"),
    ],
)
def test_unusable_workloads_are_refused_with_the_job_and_the_remedy(
    tmp_path: Path, rows: tuple[str, ...], message: str
) -> None:
    with pytest.raises(WorkloadError, match=message):
        run_toy(tmp_path, "tiresias", *rows)


@pytest.mark.parametrize(
    ("file", "lines", "message"),
    [
        ("applications", TOY["applications.csv"][:1], "names no application"),
        ("applications", [TOY["applications.csv"][0], "toy,10,40,5,20,3,8,"], "must be among the 2"),
        ("applications", [TOY["applications.csv"][0], "toy,ten,40,5,20,2,8,"], "invalid literal"),
        ("applications", [TOY["applications.csv"][0], "owl,10,40,5,20,2,8,"], "owl of applications.csv has no rows"),
        ("validation", [*TOY["validation.csv"][:2], "toy,10,3,9,9,0.1,1,0"], "must count from 1"),
        ("validation", [*TOY["validation.csv"][:3], "toy,40,1,50,50,0.1,1,0"], "another number of epochs"),
        ("validation", [*TOY["validation.csv"][:2], "toy,10,2,nan,9,0.1,1,0"], "must be finite"),
        ("validation", [*TOY["validation.csv"][:2], "toy,10,2,x,9,0.1,1,0"], "something else than numbers"),
        ("placements", ["a,b"], "must have the columns"),
        ("placements", [TOY["placements.csv"][0], "toy,2,5,fast,0"], "are no numbers"),
        ("placements", [TOY["placements.csv"][0], "toy,2,5,1.0,2.0"], "no sync time longer"),
        ("placements", [TOY["placements.csv"][0], "toy,2,5,1.0,0.5"], "not 10"),
        ("placements", TOY["placements.csv"][:1], "no step times for 'toy,2'"),
    ],
)
def test_unusable_profiles_are_refused_with_the_place(
    tmp_path: Path, file: str, lines: list[str], message: str
) -> None:
    profiles = write_toy(tmp_path / "toy", **{file: lines})
    with pytest.raises(ProfileError, match=message):
        run_pollux_rules(write_workload(tmp_path / "w.csv", "x,0,toy,2,20"), profiles, "tiresias", "2x2")


def test_profiles_are_the_nearest_above_the_workload_or_the_public_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    near = write_toy(tmp_path / "family" / "profiles")
    public = write_toy(tmp_path / "data" / "traces" / "pollux" / "profiles")
    monkeypatch.delenv("COTENANT_SHARED_DATA", raising=False)
    assert find_profiles(near.parent / "workloads" / "load-1.0" / "w.csv") == near
    assert find_profiles(near.parent / "w.csv") == near
    with pytest.raises(TraceError, match="name them with --profiles"):
        find_profiles(Path("/w.csv"))
    monkeypatch.setenv("COTENANT_SHARED_DATA", str(tmp_path / "data"))
    assert find_profiles(Path("/w.csv")) == public


def test_missing_files_unknown_policies_and_odd_clusters_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="cannot be read"):
        run_pollux_rules(tmp_path / "w.csv", tmp_path / "none", "tiresias")
    with pytest.raises(WorkloadError, match="is no file; name a workload"):
        run_pollux_rules(tmp_path / "w.csv", None, "tiresias")
    with pytest.raises(PolluxRulesError, match="no policy 'lottery'; there are tiresias, optimus"):
        run_toy(tmp_path, "lottery", "x,0,toy,1,10")
    for text in ("16", "0x4", "4x10", "x4", "5000x4"):
        with pytest.raises(ClusterShapeError):
            read_cluster_shape(text)


def simulate(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """The exit status of the command under these rules."""
    flags = ("--engine-rules", "pollux", "--cluster", "2x2", "-o", "json")
    monkeypatch.setattr(sys, "argv", ["cotenant_simulator", "simulate", *map(str, arguments), *flags])
    return main()


def test_the_command_prints_the_document_or_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    workload, profiles = write_workload(tmp_path / "w.csv", "x,0,toy,2,20"), write_toy(tmp_path / "toy")
    asked = (workload, "--profiles", profiles, "--policies")
    assert simulate(monkeypatch, *asked, "optimus") == 0
    assert json.loads(capsys.readouterr().out)["trace"]["jobs"] == 1
    assert simulate(monkeypatch, *asked, "lottery") == 2
    assert "no policy 'lottery'" in capsys.readouterr().err


def test_the_command_joins_the_documents_of_all_its_policies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    workload = write_workload(tmp_path / "w.csv", "x,0,toy,2,20", "y,0,toy,4,20")
    write_toy(tmp_path / "profiles")
    assert simulate(monkeypatch, workload, "--policies", "fifo,sjf", "--jobs", "all") == 0
    found = json.loads(capsys.readouterr().out)
    alone = [run_pollux_rules(workload, None, name, "2x2") for name in ("fifo", "sjf")]
    assert found["policies"] == [rows_of(document, "policies")[0] for document in alone]
    assert found["jobs"] == [row for document in alone for row in rows_of(document, "jobs")]
    assert simulate(monkeypatch, workload, "--policies", "fifo,sjf") == 0
    assert json.loads(capsys.readouterr().out) == {**found, "jobs": []}


def test_the_policies_of_the_file_need_no_library() -> None:
    """A run of Tiresias must not pay for numpy, whose import costs more than the run."""
    modules = "cotenant_simulator.commands.program, cotenant_simulator.pollux_rules.entry_point"
    script = f"import sys, {modules}; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
