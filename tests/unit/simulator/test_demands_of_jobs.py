"""What readers give jobs so that policies can be told apart: numbers of GPUs, measured demands, profiles by a flag."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cotenant_simulator.commands.program import main
from cotenant_simulator.errors import TraceError
from cotenant_simulator.readers.chosen_counts import with_gpu_counts
from cotenant_simulator.readers.measured_demands import with_measured_demands
from cotenant_simulator.readers.measured_jobs import read_measured_jobs
from cotenant_simulator.readers.pollux import read_pollux
from cotenant_simulator.readers.requests import Consent
from cotenant_simulator.readers.trace_file import read_trace
from cotenant_simulator.report.comparability import caveats_of_trace
from cotenant_simulator.truth.kinds import EVERY_DEVICE, Kind
from cotenant_simulator.truth.trace import GIB, Trace
from scheduler_service.core.records import Share
from tests.support.shared_data import shared_data
from tests.support.simulated_runs import ends_s, run, trace_job, trace_of

DATASETS = Path(__file__).resolve().parents[3] / "datasets"
DURATIONS = "job_id,submit_time_s,duration_s,num_gpus\n" + "".join(
    f"{number},{9 * number},{60 + 40 * number},{2 if number == 5 else 1}\n" for number in range(12)
)


@pytest.fixture
def durations(tmp_path: Path) -> Path:
    file = tmp_path / "durations.csv"
    file.write_text(DURATIONS)
    return file


def pollux_family(folder: Path) -> tuple[Path, Path]:
    """Write a workload, and its profiles elsewhere."""
    profiles, file = folder / "profiles elsewhere", folder / "workloads" / "workload-1.csv"
    profiles.mkdir()
    file.parent.mkdir()
    bounds = "application,init_batch_size,max_local_batch_size,min_local_batch_size,forced_max_gpus\n"
    (profiles / "applications.csv").write_text(f"{bounds}x,8,8,2,\ny,8,8,2,1\n")
    work = "application,batch_size,epochs_to_finish,iterations_to_finish\n"
    (profiles / "work.csv").write_text(f"{work}x,8,2,100\ny,8,2,100\n")
    times = "local_batch_size,step_time_s,sync_time_s\n"
    rows = "x,1,8,0.8,0\nx,2,4,0.5,0.1\nx,11,4,9,0\nx,4,2,0.3,0.1\nx,44,1,0.2,0.1\ny,1,8,1,0\ny,2,4,1,0\n"
    (profiles / "placements.csv").write_text(f"application,placement,{times}{rows}")
    (profiles / "scalability.csv").write_text(f"application,num_nodes,num_replicas,{times}")
    file.write_text("job_id,submit_time_s,application,num_gpus,batch_size\nx-0,3,x,2,8\ny-0,3,y,1,8\n")
    return file, profiles


def simulated(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["cotenant_simulator", *map(str, words)])
    return main()


def test_profiles_are_named_under_live_rules_as_the_error_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COTENANT_SHARED_DATA", raising=False)
    file, profiles = pollux_family(tmp_path)
    assert simulated(monkeypatch, "simulate", file) == 2
    assert "or name them with --profiles" in capsys.readouterr().err.replace("\n", " ")
    flags = ("simulate", file, "--cluster", "1x2", "--policies", "fifo", "--profiles", profiles, "-o", "json")
    assert simulated(monkeypatch, *flags) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["policies"][0]["jobs_finished"] == 2


def test_profiles_of_another_format_are_refused(
    durations: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulated(monkeypatch, "simulate", durations, "--profiles", tmp_path) == 2
    assert "is of the format elasticflow-itp, which has no profiles; leave --profiles out" in capsys.readouterr().err


def test_shadow_takes_the_profiles_that_its_error_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cotenant_simulator.commands.shadow_draws import read_past_jobs

    monkeypatch.delenv("COTENANT_SHARED_DATA", raising=False)
    file, profiles = pollux_family(tmp_path)
    with pytest.raises(TraceError, match="name them with --profiles"):
        read_past_jobs({"--trace": file})
    assert len(read_past_jobs({"--trace": file}, profiles).jobs) == 2


def test_pollux_jobs_allow_the_numbers_of_gpus_that_were_measured(tmp_path: Path) -> None:
    file, profiles = pollux_family(tmp_path)
    trace = read_trace(file, Consent(), profiles=profiles)
    free, bound = trace.jobs
    # Eight GPUs would have one sample each, fewer than the two that the profiles allow; y is bound to one GPU.
    assert (free.request.allowed_gpus, bound.request.allowed_gpus) == ((1, 2, 4), (1,))
    kind = trace.truth.kinds[free.request.key, EVERY_DEVICE]
    assert kind.step_ms_by_gpus == {1: pytest.approx(800), 2: pytest.approx(500), 4: pytest.approx(300)}
    assert [kind.memory_at_bytes(samples) for samples in (8, 4, 2)] == [6 * GIB] * 3
    assert caveats_of_trace(trace, ["elastic", "optimus"]) == []
    rigid = read_pollux(file, Consent(), profiles=profiles, is_elastic=False)
    assert [job.request.allowed_gpus for job in rigid.jobs] == [(2,), (1,)]
    assert rigid.truth.kinds[free.request.key, EVERY_DEVICE].step_ms_by_gpus == {2: pytest.approx(500)}


def test_public_pollux_jobs_can_be_reshaped() -> None:
    file = shared_data("traces", "pollux", "workloads", "load-0.5", "workload-1.csv")
    trace = read_trace(file, Consent())
    few = replace(trace, jobs=trace.jobs[:12])
    assert sum(job.reshapes for job in run(few, policy="optimus", cluster="2x4").jobs) > 0


def test_assumed_counts_leave_a_job_at_its_own_count_as_it_was() -> None:
    kind = Kind(step_ms_by_gpus={4: 100.0}, batch=32, memory_bytes=8 * GIB)
    jobs = [trace_job(f"j{number}", gpus=4, seconds=300 - 90 * number) for number in range(3)]
    rigid = trace_of(*jobs, kinds={"kind": kind})
    free = with_gpu_counts(rigid, [1, 2, 8])
    assert {job.request.allowed_gpus for job in free.jobs} == {(1, 2, 4, 8)}
    found = free.truth.kinds["kind", EVERY_DEVICE]
    assert found.step_ms_by_gpus == {1: pytest.approx(303.14, abs=0.01), 2: pytest.approx(174.11, abs=0.01)} | {
        4: 100.0,
        8: pytest.approx(57.43, abs=0.01),
    }
    for samples in (1, 4, 8):
        assert found.memory_at_bytes(samples) == pytest.approx(kind.memory_at_bytes(samples), abs=1)
    assert found.memory_at_bytes(32) > 8 * GIB
    for policy in ("fifo", "sjf"):
        assert ends_s(run(free, policy=policy, cluster="1x8")) == ends_s(run(rigid, policy=policy, cluster="1x8"))
    assert caveats_of_trace(free, ["elastic"]) == []


def test_an_elastic_policy_uses_assumed_counts() -> None:
    jobs = [trace_job(f"j{number}", at_s=number, seconds=600, global_batch_size=8) for number in range(2)]
    rigid = trace_of(*jobs, kinds={"kind": Kind(step_ms_by_gpus={1: 1_000.0}, batch=8, memory_bytes=GIB)})
    ended = {
        name: max(ends_s(run(trace, policy="elastic", cluster="1x8")).values())
        for name, trace in (("rigid", rigid), ("free", with_gpu_counts(rigid, [1, 2, 4])))
    }
    assert ended["free"] < 0.7 * ended["rigid"]


def measured_trace(file: Path, *, folder: str = "cpu_standin", seed: int = 0) -> Trace:
    known = read_measured_jobs(DATASETS / folder)
    return with_measured_demands(file, read_trace(file, Consent()), known, seed=seed)


def test_jobs_of_a_list_of_durations_are_taken_for_measured_ones(durations: Path) -> None:
    plain, trace = read_trace(durations, Consent()), measured_trace(durations)
    assert [job.submitted_at_ms for job in trace.jobs] == [job.submitted_at_ms for job in plain.jobs]
    for before, job in zip(plain.jobs, trace.jobs, strict=True):
        kind = trace.truth.kind(job.request.key, trace.device)
        assert kind is not None
        length_ms = job.request.steps_total * kind.step_ms(gpus=job.request.gpus)
        assert length_ms == pytest.approx(before.request.steps_total * 1_000, rel=0.2)
        assert len(job.graph_sha256) == 64
        assert job.settings is not None
        assert job.settings.global_batch_size == job.request.global_batch_size == kind.batch
    gang = trace.jobs[5].request
    assert (gang.gpus, gang.share) == (2, Share.NEVER)
    assert len(set(trace.truth.slowdowns.values())) > 100
    assert caveats_of_trace(trace, ["horus", "obp"]) == []


def test_another_seed_draws_other_demands_and_another_list_changes_no_other_job(durations: Path) -> None:
    keys = [job.request.key for job in measured_trace(durations).jobs]
    assert keys == [job.request.key for job in measured_trace(durations).jobs]
    assert keys != [job.request.key for job in measured_trace(durations, seed=1).jobs]
    durations.write_text("\n".join(DURATIONS.splitlines()[:-3]) + "\n")
    assert keys[:9] == [job.request.key for job in measured_trace(durations).jobs]


def test_public_sets_without_graphs_give_pairs_too(durations: Path) -> None:
    trace = measured_trace(durations, folder="public/gavel")
    assert trace.truth.slowdowns
    assert {job.graph_sha256 for job in trace.jobs} == {""}
    assert all(kind.memory_bytes > 0 for kind in trace.truth.kinds.values())


def test_policies_that_a_list_of_durations_cannot_distinguish_differ_with_measured_demands(
    durations: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("simulate", durations, "--cluster", "1x2", "--policies", "sjf_bsbf,horus,obp", "-o", "json")
    assert simulated(monkeypatch, *flags) == 0
    before = json.loads(capsys.readouterr().out)
    assert {"NOBODY_SHARES", "PAIRS_ALIKE"} <= {warning["code"] for warning in before["warnings"]}
    assert simulated(monkeypatch, *flags, "--measured", DATASETS / "cpu_standin", "--max-slowdown", "0.5") == 0
    after = json.loads(capsys.readouterr().out)
    assert not {"NOBODY_SHARES", "PAIRS_ALIKE"} & {warning["code"] for warning in after["warnings"]}
    assert max(policy["slowdown_ratio"]["max"] for policy in after["policies"]) > 0


def test_a_trace_with_measurements_of_its_own_keeps_them(tmp_path: Path) -> None:
    file = tmp_path / "drawn.toml"
    file.write_text(f"jobs = 3\ndataset = {json.dumps(str(DATASETS / 'cpu_standin'))}\n[[classes]]\n")
    with pytest.raises(TraceError, match="has measured jobs of its own"):
        measured_trace(file)


def test_a_folder_without_usable_rows_is_named(durations: Path) -> None:
    with pytest.raises(TraceError, match="is no folder of measurements"):
        read_measured_jobs(durations.parent)
    with pytest.raises(TraceError, match="holds no row with status ok and a step time"):
        read_measured_jobs(DATASETS / "public" / "isacpp")
