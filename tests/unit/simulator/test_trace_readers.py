"""Every trace format is read, and what is wrong is said with file, line and remedy."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from cotenant_simulator.commands.simulate import simulate
from cotenant_simulator.errors import TraceError
from cotenant_simulator.readers.requests import Consent
from cotenant_simulator.readers.rows import read_header
from cotenant_simulator.readers.trace_file import FORMATS, read_trace
from cotenant_simulator.run.records import OverheadCosts
from cotenant_simulator.truth.kinds import DOES_NOT_FIT
from cotenant_simulator.truth.trace import GIB
from scheduler_service.core import commands, events
from scheduler_service.core.codec import encode_event
from scheduler_service.core.queue.lanes import PLAIN_LANE, name_lane
from scheduler_service.core.queue_events import JobReleased
from scheduler_service.core.records import Share
from tests.support.shared_data import shared_data
from tests.support.simulated_runs import drawn, ends_s, run

MURI = (
    "job_id,num_gpu,submit_time_s,iterations,model_name,batch_size,duration_s,interval_s,iteration_time_ms,stage0_ms,"
    "stage1_ms,stage2_ms,priority\n"
)
PHILLY = "submit_time,duration_s,num_gpus,gpu_time_s,virtual_cluster\n"
GAVEL = "job_id,model,batch_size,total_steps,num_gpus,priority_weight,slo,submit_time_s\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"

GOOD: dict[str, tuple[str, list[tuple[str, int, int, int]]]] = {
    "muri": (MURI + "7,2,10.5,300,vgg16,16,60,0,200,1,2,3,0\n", [("job-7", 10_500, 2, 300)]),
    "tiresias": (
        "job_id,num_gpu,submit_time_s,iterations,model_name,duration_s,interval_s\n0,8,30,100,vgg,50,1\n",
        [("job-0", 30_000, 8, 100)],
    ),
    "philly": (
        PHILLY + "2017-10-09 07:01:55,66.0,1,66,a\n2017-10-09 07:00:55,2.4,4,9,b\n",
        [("job-000002", 0, 4, 2), ("job-000001", 60_000, 1, 66)],
    ),
    "elasticflow-itp": ("job_id,submit_time_s,duration_s,num_gpus\n3,5,7,64\n", [("job-3", 5_000, 64, 7)]),
    "alibaba-gpu-2023": (
        PODS
        + "whole,1,1,2,1000,,LS,Running,10,100,20\npart,1,1,1,250,,BE,Running,0,5,1\n"
        + "none,1,1,0,0,,LS,Running,0,9,1\nnever,1,1,1,1000,,LS,Pending,0,9,\n",
        [("part", 0, 1, 4), ("whole", 10_000, 2, 80)],
    ),
}


@pytest.mark.parametrize("form", GOOD)
def test_a_format_is_recognized_by_its_columns(form: str, tmp_path: Path) -> None:
    text, expected = GOOD[form]
    file = tmp_path / "trace.csv"
    file.write_text(text)
    trace = read_trace(file, Consent())
    found = [(job.request.job_id, job.submitted_at_ms, job.request.gpus, job.request.steps_total) for job in trace.jobs]
    assert (trace.format, found) == (form, expected)


def test_a_pod_with_a_part_of_a_gpu_shares_and_others_never_do(tmp_path: Path) -> None:
    file = tmp_path / "pods.csv"
    file.write_text(GOOD["alibaba-gpu-2023"][0])
    trace = read_trace(file, Consent())
    assert [job.request.share for job in trace.jobs] == [Share.SAFE, Share.NEVER]
    part = trace.truth.kind(trace.jobs[0].request.key, "any")
    assert part is not None
    assert (part.utilization_ratio, part.memory_bytes) == (0.25, 4 * GIB)
    assert trace.skipped == {"needs no GPU": 1, "never ran": 1}


def test_gavel_jobs_take_their_rates_from_the_tables_next_to_them(tmp_path: Path) -> None:
    file = tmp_path / "jobs.csv"
    file.write_text(GAVEL + "0,A,128,100,1,1,-1,0\n1,B,64,50,1,1,-1,5\n")
    rates = "gpu_type,consolidated,model,batch_size,num_gpus,steps_per_s\nv100,1,A,128.0,1,4\nv100,1,B,64,1,2\n"
    (tmp_path / "throughput_isolated.csv").write_text(rates + "k80,1,A,128,1,1\nv100,0,A,128,1,2\n")
    pairs = "gpu_type,model_a,batch_size_a,num_gpus_a,model_b,batch_size_b,num_gpus_b,slowdown_a,slowdown_b\n"
    (tmp_path / "throughput_colocated.csv").write_text(pairs + "v100,A,128,1,B,64,1,1.5,2\nv100,B,64,1,B,64,1,,\n")
    trace = read_trace(file, Consent())
    one, two = (job.request.key for job in trace.jobs)
    kind = trace.truth.kind(one, "v100")
    assert kind is not None
    assert (kind.step_ms(gpus=1), kind.step_ms(gpus=1, is_spread=True)) == (250.0, 500.0)
    assert trace.truth.measured_slowdown_ratio(one, two, "v100") == pytest.approx(0.5)
    assert trace.truth.measured_slowdown_ratio(two, two, "v100") == DOES_NOT_FIT
    assert trace.truth.measured_slowdown_ratio(one, one, "v100") is None
    assert trace.truth.kind(two, "k80") is None


def test_pollux_jobs_do_the_steps_of_their_batch(tmp_path: Path) -> None:
    profiles, folder = tmp_path / "profiles", tmp_path / "workloads" / "load-1.0"
    profiles.mkdir()
    folder.mkdir(parents=True)
    (profiles / "applications.csv").write_text("application,init_batch_size,max_local_batch_size\nx,8,2\n")
    (profiles / "work.csv").write_text("application,batch_size,epochs_to_finish,iterations_to_finish\nx,8,2,100\n")
    times = "local_batch_size,step_time_s,sync_time_s\n"
    (profiles / "placements.csv").write_text(f"application,placement,{times}x,2,2,0.4,0.1\nx,11,2,9,0\n")
    (profiles / "scalability.csv").write_text(f"application,num_nodes,num_replicas,{times}")
    file = folder / "workload-1.csv"
    file.write_text("job_id,submit_time_s,application,num_gpus,batch_size\nx-0,3,x,2,8\n")
    (job,) = read_trace(file, Consent()).jobs
    kind = read_trace(file, Consent()).truth.kind(job.request.key, "any")
    assert kind is not None
    # Four samples per GPU in two passes of two, of which only the last waits for the other GPU.
    assert job.request.steps_total == 100
    assert kind.step_ms(gpus=2) == pytest.approx(700.0)
    file.write_text("job_id,submit_time_s,application,num_gpus,batch_size\nx-0,3,y,2,8\n")
    with pytest.raises(TraceError, match=r"workload-1\.csv:2: application 'y' has no profile; there are x"):
        read_trace(file, Consent())


BAD: dict[str, tuple[str, str]] = {
    "no file": ("", "is empty"),
    "unknown columns": ("a,b\n1,2\n", "is of no known format; its columns are a, b; known are muri"),
    "other columns": ("start,runtime\n1,2\n", "a list of your own needs submit_time_s, duration_s, num_gpus"),
    "accounting": ("JobID|User|Submit\n1|a|b\n", "of Slurm's sacct. `cotenant shadow` reads that"),
    "a date": (
        "submit_time_s,duration_s,num_gpus\n2026-01-02T03:04:05,1,1\n",
        r"not a number \(a date or a clock\? write seconds, of submissions since any instant\)",
    ),
    "a day": (
        "submit_time_s,duration_s,num_gpus\n2026-01-02,1,1\n",
        r"not a number \(a date or a clock\? write seconds",
    ),
    "semicolons": ("a;b\n1;2\n", "its columns are a;b .parted by something else than commas"),
    "another kind of file": ("\0" * 2_500_000, "has a line of 1000000 characters"),
    "one endless row": (MURI + "7" * 2_500_000, "has a line of 1000000 characters"),
    "a word": (MURI + "7,two,1,3,v,16,6,0,2,1,2,3,0\n", r":2: num_gpu is 'two', not a number; correct or remove"),
    "no GPU": (MURI + "7,0,1,3,v,16,6,0,2,1,2,3,0\n", r":2: num_gpu is 0, outside 1 to"),
    "half a GPU": (MURI + "7,0.5,1,3,v,16,6,0,2,1,2,3,0\n", r":2: num_gpu is 0.5, outside"),
    "infinite": (MURI + "7,1,inf,3,v,16,6,0,2,1,2,3,0\n", r":2: submit_time_s is inf, outside"),
    "negative time": (PHILLY + "2017-10-09 07:01:55,-1,1,66,a\n", r":2: duration_s is -1, outside 0"),
    "no date": (PHILLY + "yesterday,1,1,66,a\n", r":2: submit_time is 'yesterday', not YYYY"),
    "twice": (MURI + "7,1,1,3,v,16,6,0,2,1,2,3,0\n" * 2, r":3: job 'job-7' stands in line 2 too"),
    "short line": (MURI + "7,1\n", r":2: has 2 cells where the header has 13"),
    "a decimal comma": (
        'submit_time_s,duration_s,num_gpus\n0,"6,5",1\n',
        r"duration_s is '6,5', not a number .a decimal c",
    ),
    "no job": (PHILLY, "holds no job that needs a GPU"),
    "no tables": (GAVEL + "0,A,128,100,1,1,-1,0\n", r"throughput_isolated\.csv: is missing"),
    "no times": ("name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1,1,1,1\n", "lacks the column creation_time"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_trace_is_refused_with_place_and_remedy(case: str, tmp_path: Path) -> None:
    text, complaint = BAD[case]
    file = tmp_path / "trace.csv"
    file.write_text(text)
    with pytest.raises(TraceError, match=complaint):
        read_trace(file, Consent())


def test_a_text_that_is_not_in_utf_8_is_refused_with_the_remedy(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(GOOD["elasticflow-itp"][0], encoding="utf-16")
    with pytest.raises(TraceError, match=r"is no text in UTF-8; save it as such .in Excel: CSV UTF-8"):
        read_trace(file, Consent())


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (gzip.compress(b"submit_time_s,duration_s,num_gpus\n"), "is packed by gzip; unpack it first: gunzip --keep"),
        (b"PK\x03\x04\xff\xff", "is a workbook or another zip file; save its table as CSV"),
        (b"PAR1\x15\xff\xff", "is a parquet file; read it by pandas"),
    ],
    ids=["gzip", "zip", "parquet"],
)
def test_a_packed_table_is_named_for_what_it_is(content: bytes, complaint: str, tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_bytes(content)
    with pytest.raises(TraceError, match=complaint):
        read_trace(file, Consent())


def test_columns_are_looked_at_in_time_that_grows_with_their_number(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(",".join(f"c{number}" for number in range(120_000)) + "\n1\n")
    begin_s = time.process_time()
    assert len(read_header(file)) == 120_000
    assert time.process_time() - begin_s < 20.0  # a tenth; with the square of their number it is minutes


def test_a_column_that_is_there_twice_is_refused_since_no_one_knows_which_counts(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("submit_time_s,duration_s,num_gpus,num_gpus\n0,5,1,4\n")
    with pytest.raises(TraceError, match=r"trace\.csv: has the column num_gpus twice; give each a name of its own"):
        read_trace(file, Consent())


def test_an_own_list_of_times_and_gpus_needs_no_ids_and_may_begin_with_excels_mark(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("submit_time_s,duration_s,num_gpus\n0,5,1\n2,7,4\n", encoding="utf-8-sig")
    found = [(job.request.job_id, job.request.gpus) for job in read_trace(file, Consent()).jobs]
    assert found == [("job-000001", 1), ("job-000002", 4)]


def test_every_format_has_a_test_here() -> None:
    assert set(GOOD) | {"gavel", "pollux"} == set(FORMATS)


SHARED = {
    "alibaba-gpu-2023/openb_pod_list_default.csv": ("alibaba-gpu-2023", 6_203),
    "elasticflow-itp/cluster01.csv": ("elasticflow-itp", 1_595),
    "gavel/jobs_max_min_fairness.csv": ("gavel", 96),
    "muri/trace3.csv": ("muri", 992),
    "philly/philly_jobs.csv": ("philly", 82_247),
    "pollux/workloads/load-1.5/workload-6.csv": ("pollux", 240),
    "tiresias/60_job.csv": ("tiresias", 60),
}


@pytest.mark.parametrize("name", SHARED)
def test_the_public_traces_are_read_whole(name: str) -> None:
    trace = read_trace(shared_data("traces", *name.split("/")), Consent())
    assert (trace.format, len(trace.jobs)) == SHARED[name]


def test_jobs_that_never_wait_take_what_the_tiresias_simulator_says() -> None:
    trace = read_trace(shared_data("traces", "tiresias", "60_job.csv"), Consent())
    stays = [(job.finished_at_ms - job.submitted_at_ms) / 1_000 for job in run(trace, cluster="16x8").jobs]
    assert round(sum(stays) / len(stays), 1) == 178.4


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("jobs = [", "cannot be read as TOML"),
        ("jobs = " + "9" * 5_000, "cannot be read as TOML"),
        ("jobs = " + "[" * 5_000, "cannot be read as TOML"),
        ("jobs = 5", r"has no \[\[classes\]\] table"),
        ("[[classes]]\nspeed = 1", r"\[\[classes\]\] table 1 has unknown 'speed'"),
        ("jobs = 0\n[[classes]]", "jobs must be a number from 1"),
        ('[[classes]]\ngpus = "2"', "gpus of .* must be a list of positive counts"),
        ('[[classes]]\nlength = "long"', "length 'long' is not exponential, fixed or uniform"),
        ('[[classes]]\n[arrival]\nkind = "now"', "arrival kind 'now' is not"),
        ('dataset = "nowhere"\n[[classes]]', "is no folder of measurements"),
    ],
)
def test_a_bad_description_of_a_workload_is_refused(text: str, complaint: str, tmp_path: Path) -> None:
    file = tmp_path / "workload.toml"
    file.write_text(text)
    with pytest.raises(TraceError, match=complaint):
        read_trace(file, Consent())


def test_a_workload_is_drawn_anew_with_another_seed(tmp_path: Path) -> None:
    file = tmp_path / "workload.toml"
    file.write_text("jobs = 5\nseed = 3\n[[classes]]\nmean_s = 10.0\nstep_ms = 1.0\n")
    own, same, other = (read_trace(file, Consent(), seed=seed).jobs for seed in (None, 3, 4))
    assert own == same
    assert own != other


def test_our_measurements_are_a_workload_with_graphs(tmp_path: Path) -> None:
    folder = Path(__file__).resolve().parents[3] / "datasets" / "cpu_standin"
    file = tmp_path / "workload.toml"
    file.write_text(f'jobs = 20\ndataset = "{folder}"\n[[classes]]\nmean_s = 60.0\n')
    trace = read_trace(file, Consent())
    assert trace.device == "cpu-standin"
    assert all(len(job.graph_sha256) == 64 and job.settings for job in trace.jobs)
    assert len({job.request.key for job in trace.jobs}) > 5
    assert trace.truth.slowdowns


def _exported(tmp_path: Path) -> Path:
    lines: list[str] = []

    def note(event: events.Event, orders: Sequence[commands.Command]) -> None:
        lines.append(json.dumps({"sequence": len(lines) + 1, **encode_event(event)}))

    run(
        drawn(jobs=20, classes=[{"step_ms": 500.0, "mean_s": 100.0}]),
        cluster="2x2",
        observe=note,
        charges=OverheadCosts(),
    )
    file = tmp_path / "log.jsonl"
    file.write_text("\n".join(lines) + "\n")
    return file


def test_what_was_learned_together_is_the_same_workload(tmp_path: Path) -> None:
    file = _exported(tmp_path)
    singly = read_trace(file, Consent())
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps({**line, "is_followed": True}) + "\n" for line in lines))
    assert read_trace(file, Consent()) == singly


def test_an_exported_log_is_yesterday_again(tmp_path: Path) -> None:
    trace = read_trace(_exported(tmp_path), Consent())
    first = run(drawn(jobs=20, classes=[{"step_ms": 500.0, "mean_s": 100.0}]), cluster="2x2", charges=OverheadCosts())
    began_s = first.jobs[0].submitted_at_ms / 1_000
    again = run(trace, cluster="2x2", charges=OverheadCosts())
    assert trace.format == "event-log"
    assert [len(node.gpus) for node in trace.nodes] == [2, 2]
    expected = {job_id: end_s - began_s for job_id, end_s in ends_s(first).items()}
    assert ends_s(again) == pytest.approx(expected, abs=0.002)


def test_an_exported_log_runs_on_its_own_machines_unless_stated_otherwise(tmp_path: Path) -> None:
    for flags, cluster in (([], "own"), (["--cluster", "1x4"], "1x4")):
        done = CliRunner().invoke(simulate, [str(_exported(tmp_path)), *flags, "-o", "json"], catch_exceptions=False)
        assert json.loads(done.stdout)["cluster"] == cluster


def test_a_job_that_was_submitted_held_comes_when_it_was_released(tmp_path: Path) -> None:
    file = _exported(tmp_path)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    held = next(line for line in lines if line["kind"] == "JobSubmitted")
    job_id, released_ms = held["request"]["job_id"], held["at_ms"] + 7_000
    held["request"]["terms"] = {**held["request"].get("terms", {}), "is_held": True}
    released = {"sequence": len(lines) + 1, **encode_event(JobReleased(at_ms=released_ms, job_id=job_id))}
    file.write_text("\n".join(map(json.dumps, [*lines, released])) + "\n")
    trace = read_trace(file, Consent())
    [job] = [job for job in trace.jobs if job.request.job_id == job_id]
    assert job.submitted_at_ms == 7_000
    assert job_id in ends_s(run(trace, cluster="2x2", charges=OverheadCosts()))


def test_an_unmeasured_job_fits_the_machine_that_took_it(tmp_path: Path) -> None:
    file = _exported(tmp_path)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        for gpu in line.get("node", {}).get("gpus", ()):
            gpu["memory_bytes"] = 2**30
    kept = [line for line in lines if line["kind"] in {"NodeJoined", "JobSubmitted"}]
    file.write_text("\n".join(map(json.dumps, kept)) + "\n")
    trace = read_trace(file, Consent())
    assert {kind.memory_bytes for kind in trace.truth.kinds.values()} == {2**30}


def test_a_job_of_which_no_step_was_counted_is_as_long_as_it_ran(tmp_path: Path) -> None:
    file = _exported(tmp_path)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    ended = next(line for line in lines if line["kind"] == "JobFinished")
    started = next(line for line in lines if line["kind"] == "JobStarted" and line["job_id"] == ended["job_id"])
    kept = [line for line in lines if line["kind"] != "JobProgressed"]
    for line in kept:
        line["steps_done"] = 0 if "steps_done" in line else None
        if line["kind"] == "JobSubmitted":
            line["request"]["steps_total"] = 0
    file.write_text("\n".join(json.dumps({k: v for k, v in one.items() if v is not None}) for one in kept) + "\n")
    trace = read_trace(file, Consent())
    job = next(job for job in trace.jobs if job.request.job_id == ended["job_id"])
    kind = trace.truth.kinds[job.request.key, trace.device]
    alone_ms = job.request.steps_total * kind.step_ms_by_gpus[job.request.gpus]
    ran_ms = ended["at_ms"] - started["at_ms"]
    assert ran_ms > 10_000
    assert alone_ms == pytest.approx(ran_ms, abs=1_000)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"kind": "JobVanished", "format": 1}', "unknown kind of event"),
        ('{"kind": ' + "9" * 5_000 + "}", "Exceeds the limit"),
        ('{"kind": ' + "[" * 100_000, "recursion depth"),
    ],
)
def test_a_broken_line_of_a_log_is_named(line: str, complaint: str, tmp_path: Path) -> None:
    file = _exported(tmp_path)
    lines = file.read_text().splitlines()
    lines[4] = line
    file.write_text("\n".join(lines) + "\n")
    with pytest.raises(TraceError, match=rf"log\.jsonl:5: is no event of this version: .*{complaint}"):
        read_trace(file, Consent())


def test_a_job_list_may_say_tenants_and_classes(tmp_path: Path) -> None:
    header = "job_id,submit_time_s,duration_s,num_gpus,tenant,priority\n"
    file = tmp_path / "jobs.csv"
    file.write_text(header + "1,0,5,1,ann,high\n2,0,5,1,,\n3,0,5,1,bob,-7.0\n")
    requests = [job.request for job in read_trace(file, Consent()).jobs]
    assert [(one.tenant, one.terms.priority) for one in requests] == [("ann", 100), ("", 0), ("bob", -7)]
    classes = "not low, normal, high or a whole number from -1000 to 1000"
    for wrong, told in (
        ("x y,0", "tenant"),
        *((f"ann,{one}", classes) for one in ("urgent", "1001", "0.5", "nan", "inf")),
    ):
        file.write_text(f"{header}1,0,5,1,{wrong}\n")
        with pytest.raises(TraceError, match=rf"jobs\.csv:2: .*{told}"):
            read_trace(file, Consent())


def test_the_priority_of_muris_lists_is_no_class_and_leaves_one_lane(tmp_path: Path) -> None:
    file = tmp_path / "muri.csv"
    file.write_text(MURI + "7,2,10.5,300,vgg16,16,60,0,200,1,2,3,0\n8,1,10.5,300,vgg16,16,60,0,200,1,2,3,1\n")
    lanes = {name_lane(job.request, by_tenant=False) for job in read_trace(file, Consent()).jobs}
    assert lanes == {PLAIN_LANE}
