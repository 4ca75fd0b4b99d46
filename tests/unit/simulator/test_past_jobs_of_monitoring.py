"""shadow: past jobs out of DCGM's series, Ray's tasks and observed windows; what is no job is counted by its reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cotenant_simulator.commands.shadow import shadow
from cotenant_simulator.errors import TraceError
from cotenant_simulator.readers.accounting import Accounting
from cotenant_simulator.readers.assumed_jobs import assume
from cotenant_simulator.readers.device_series import read_device_series
from cotenant_simulator.readers.measured_jobs import read_measured_jobs
from cotenant_simulator.readers.observed_jobs import read_observed_jobs
from cotenant_simulator.readers.ray_tasks import read_ray_tasks
from cotenant_simulator.readers.requests import Consent

MEASURED = Path(__file__).parents[3] / "datasets" / "cpu_standin"
GIB = 2**30
START_S = 1_772_323_200
UTIL, MEMORY = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED"
Row = dict[str, Any]


def series(minutes: range | list[int], *, name: str = UTIL, value: str = "40", **labels: str) -> Row:
    values = [[START_S + 60 * minute, value] for minute in minutes]
    return {"metric": {"__name__": name, **labels}, "values": values}


def of_pod(pod: str, gpu: str, minutes: range | list[int], **more: str) -> Row:
    return series(minutes, UUID=gpu, exported_namespace="team", exported_pod=pod, namespace="gpu-operator", **more)


def answer(folder: Path, *rows: Row) -> Path:
    return written(folder, {"status": "success", "data": {"resultType": "matrix", "result": rows}})


def written(folder: Path, document: object) -> Path:
    path = folder / "told.json"
    path.write_text(json.dumps(document))
    return path


def spans_min(found: Accounting) -> dict[str, tuple[float, float]]:
    return {
        job.job_id: ((job.started_at_ms / 1e3 - START_S) / 60, (job.ended_at_ms / 1e3 - START_S) / 60)
        for job in found.jobs
    }


def test_a_job_lasts_from_its_first_to_its_last_sample_with_what_it_used(tmp_path: Path) -> None:
    path = answer(
        tmp_path,
        of_pod("train-x7k2p", "GPU-1", range(2, 12), value="30"),
        of_pod("train-x7k2p", "GPU-2", range(2, 12), value="50"),
        of_pod("train-x7k2p", "GPU-1", range(2, 12), name=MEMORY, value="8192"),
        series(range(4, 8), UUID="GPU-3", hpc_job="4711"),
        series(range(20), UUID="GPU-4"),
    )
    found = read_device_series(path)
    assert spans_min(found) == {"team/train-x7k2p": (2, 12), "slurm/4711": (4, 8)}
    pod = found.jobs[0]
    assert (pod.name, pod.user, pod.gpus) == ("train", "team", 2)
    assert pod.utilization_ratio == pytest.approx(0.4)
    assert pod.memory_bytes == 8 * GIB
    assert found.skipped == {"series of a GPU without a job's labels": 1}
    assert not found.tells_submissions


def test_a_gap_of_one_job_ends_it_and_a_gap_of_the_monitoring_ends_none(tmp_path: Path) -> None:
    gone, failed, dark = [*range(5), *range(30, 35)], [*range(5), *range(8, 35)], [*range(5), *range(300, 305)]
    others = series([*range(35), *range(300, 305)], UUID="GPU-9")
    path = answer(
        tmp_path, of_pod("a", "GPU-1", gone), of_pod("b", "GPU-2", failed), of_pod("c", "GPU-3", dark), others
    )
    assert spans_min(read_device_series(path)) == {
        "team/a": (0, 5),
        "team/a.1": (30, 35),
        "team/b": (0, 35),
        # While c was away the others were told for half an hour: it is another job afterwards.
        "team/c": (0, 5),
        "team/c.1": (300, 305),
    }
    path = answer(tmp_path, of_pod("c", "GPU-3", dark))
    assert spans_min(read_device_series(path)) == {"team/c": (0, 305)}


def test_jobs_at_the_ends_of_what_was_asked_about_are_cut_there_and_counted(tmp_path: Path) -> None:
    path = answer(tmp_path, of_pod("a", "GPU-1", range(10)), of_pod("b", "GPU-2", range(3, 6)))
    assert read_device_series(path).doubts == (
        "1 jobs are in the first or the last sample: they count from and to there",
    )


def test_series_that_tell_no_job_with_a_gpu_to_itself_are_counted_with_their_reason(tmp_path: Path) -> None:
    path = answer(
        tmp_path,
        of_pod("good", "GPU-1", range(3)),
        of_pod("one", "GPU-2", range(3)),
        of_pod("other", "GPU-2", range(2, 5)),
        of_pod("part", "GPU-3", range(3), GPU_I_ID="1"),
        of_pod("hot", "GPU-4", range(3), name="DCGM_FI_DEV_GPU_TEMP"),
        series(range(3), exported_pod="nowhere", exported_namespace="team"),
        {
            "metric": {"__name__": UTIL, "UUID": "GPU-5", "pod": "odd"},
            "values": [[START_S, "NaN"], ["x", "1"], 7, None],
        },
        {"values": "none"},
        7,  # type: ignore[arg-type]  # that is the point
    )
    found = read_device_series(path)
    assert [job.job_id for job in found.jobs] == ["team/good"]
    assert found.skipped == {
        "jobs that shared a GPU already": 2,
        "series of a part of a GPU (MIG), shared already": 1,
        f"series of another name than {UTIL} and {MEMORY}": 3,
        "series without a GPU's labels": 1,
        "samples without an instant and a number": 4,
    }


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        ({"status": "error", "error": "query timed out"}, "is no range of samples .query timed out.; write it with"),
        ({"data": {"resultType": "vector", "result": []}}, "it holds vector"),
        ({"data": {"resultType": "matrix", "result": []}}, "tells of no job with a GPU to itself .no series."),
        ([], "no resultType"),
        (None, "no resultType"),
    ],
)
def test_an_answer_without_jobs_is_refused_with_the_remedy(document: object, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=complaint):
        read_device_series(written(tmp_path, document))


def task(
    task_id: str,
    *,
    kind: str = "NORMAL_TASK",
    gpus: object = 1.0,
    minutes: tuple[int | None, ...] = (0, 1, 9),
    **more: object,
) -> Row:
    created, began, ended = (None if at is None else (START_S + 60 * at) * 1_000 for at in minutes)
    return {
        "task_id": task_id,
        "attempt_number": 0,
        "type": kind,
        "func_or_class_name": "train",
        "job_id": "02000000",
        "required_resources": {"CPU": 1.0} | ({"GPU": gpus} if gpus else {}),
        "creation_time_ms": created,
        "start_time_ms": began,
        "end_time_ms": ended,
        **more,
    }


def test_tasks_and_actors_of_ray_that_had_whole_gpus_are_read_with_their_waits(tmp_path: Path) -> None:
    group = {"GPU_group_0_ab12": 2.0, "GPU_group_ab12": 2.0, "bundle_group_ab12": 0.001}
    path = written(
        tmp_path,
        [
            task("t1"),
            task("t2", minutes=(0, 3, 5), required_resources=group),
            task("c", kind="ACTOR_CREATION_TASK", minutes=(0, 2, 3), actor_id="a1"),
            task("m1", kind="ACTOR_TASK", gpus=0, minutes=(0, 4, 20), actor_id="a1"),
            task("m2", kind="ACTOR_TASK", gpus=0, minutes=(0, 21, 30), actor_id="a1"),
        ],
    )
    found = read_ray_tasks(path)
    assert spans_min(found) == {"t1": (1, 9), "t2": (3, 5), "a1": (2, 30)}
    assert {job.job_id: job.gpus for job in found.jobs} == {"t1": 1, "t2": 2, "a1": 1}
    assert {(job.started_at_ms - job.submitted_at_ms) / 60e3 for job in found.jobs} == {1, 2, 3}
    assert [doubt.split(":")[0] for doubt in found.doubts] == ["actors count until their last task ended"]


def test_what_a_real_ray_told_is_read() -> None:
    found = read_ray_tasks(Path(__file__).parent / "recorded" / "ray_tasks_2_60.json")
    # Two tasks, one in a placement group, an actor with two calls that was killed, and a task that raised.
    lasted_s = [(job.name, job.gpus, round((job.ended_at_ms - job.started_at_ms) / 1e3)) for job in found.jobs]
    assert lasted_s == [("whole", 1, 22), ("whole", 1, 21), ("two", 2, 12), ("Actor.__init__", 1, 7), ("fails", 1, 4)]
    assert found.skipped == {"a part of a GPU, shared already": 1, "no GPUs": 2, "not begun": 2}


def test_rows_of_ray_that_are_no_jobs_are_counted_with_their_reason(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        [
            task("good"),
            task("good"),
            task("part", gpus=0.5),
            task("cpu", gpus=0),
            task("waits", minutes=(0, None, None)),
            task("runs", minutes=(0, 1, None)),
            task("back", minutes=(0, 9, 1)),
            task("c", kind="ACTOR_CREATION_TASK", actor_id="a1"),
            task("m", kind="ACTOR_TASK", gpus=0, minutes=(0, 1, None), actor_id="a1"),
            task("lost", kind="ACTOR_TASK", gpus=0, actor_id="a2"),
            task("odd", gpus="many"),
            {"type": "NORMAL_TASK"},
            None,
        ],
    )
    found = read_ray_tasks(path)
    assert [job.job_id for job in found.jobs] == ["good"]
    assert found.skipped == {
        "told twice": 1,
        "a part of a GPU, shared already": 1,
        "no GPUs": 2,
        "not begun": 1,
        "not ended": 2,
        "no time with GPUs": 1,
        "tasks of actors whose creation is not told": 1,
        "no task's id and type": 2,
    }


def window(
    job_id: object, ended_min: object, *, minutes: float = 2, others: list[str] | None = None, **more: object
) -> Row:
    ended = (START_S + 60 * ended_min) * 1_000 if isinstance(ended_min, int) else ended_min
    found = {"machine": "n1", "job_id": job_id, "ended_at_ms": ended, "window_ms": minutes * 60_000}
    return {**found, "co_located_job_ids": others or [], "utilization_ratio": 0.5, "memory_peak_bytes": GIB, **more}


def test_observed_windows_are_jobs_from_the_first_to_the_last_of_each_machine(tmp_path: Path) -> None:
    rows = [
        window("group/7", 2, utilization_ratio=0.2),
        window("group/7", 30, minutes=6, utilization_ratio=0.6, memory_peak_bytes=3 * GIB),
        window("group/7", 9, machine="n2"),
        window("group/8", 9, others=["group/9"]),
        window("group/9", None),
        window(7, 9),
    ]
    path = tmp_path / "observed.jsonl"
    path.write_text("\n".join([*map(json.dumps, rows), "{", ""]))
    found = read_observed_jobs(path)
    assert spans_min(found) == {"n1:group/7": (0, 30), "n2:group/7": (7, 9)}
    assert found.jobs[0].utilization_ratio == pytest.approx(0.5)
    assert found.jobs[0].memory_bytes == 3 * GIB
    assert found.skipped == {"no job's window with its time": 3, "jobs that shared a GPU already": 1}


@pytest.mark.parametrize("read", [read_device_series, read_ray_tasks, read_observed_jobs])
def test_other_files_are_refused_with_the_command_that_writes_the_right_one(
    read: Callable[[Path], Accounting], tmp_path: Path
) -> None:
    path = tmp_path / "file"
    for content in (b"", b"\xff\xfe\0", b"JobIDRaw|JobName\n", b"[" * 5_000, b"{}", b"[{}]", b"null", b"1e999"):
        path.write_bytes(content)
        with pytest.raises(TraceError, match=r"write it with|query"):
            read(path)
    with pytest.raises(TraceError, match="cannot be read"):
        read(tmp_path)


def test_a_job_whose_demands_were_measured_is_taken_for_one_that_is_about_as_busy(tmp_path: Path) -> None:
    measured = read_measured_jobs(MEASURED)
    idle = min(job.kind.utilization_ratio for job in measured.jobs)
    path = answer(
        tmp_path,
        of_pod("a", "GPU-1", range(60), value=f"{100 * idle:.2f}"),
        of_pod("a", "GPU-1", range(60), name=MEMORY, value="700"),
        of_pod("a2", "GPU-2", range(60), name=MEMORY, value="700"),
    )
    keys = {job.key: job.kind for job in measured.jobs}
    for seed in range(20):
        trace = assume(read_device_series(path).jobs, measured, Consent(), seed=seed)
        kind = trace.truth.kind(trace.jobs[0].request.key, measured.device)
        assert kind is not None
        assert kind.memory_bytes == 700 * 2**20
        assert kind.utilization_ratio == pytest.approx(idle, abs=1e-4)
        assert keys[trace.jobs[0].request.key.partition(" ")[0]].utilization_ratio <= idle + 0.1 + 1e-4
        # Its slowdowns are those of the measured job.
        victim, other = (job.request.key for job in trace.jobs)
        known = measured.slowdowns.get((victim.partition(" ")[0], other.partition(" ")[0], measured.device))
        assert trace.truth.measured_slowdown_ratio(victim, other, measured.device) == known


def report(*flags: str) -> Result:
    arguments = [*flags, "--measured", str(MEASURED), "--seeds", "2", "-o", "json"]
    return CliRunner().invoke(shadow, arguments, catch_exceptions=False)


def test_the_report_of_series_says_what_they_do_not_tell(tmp_path: Path) -> None:
    rows = [of_pod(f"p{n}", f"GPU-{n}", range(n, 60), value="20") for n in range(6)]
    memory = [of_pod(f"p{n}", f"GPU-{n}", range(n, 60), name=MEMORY, value="6144") for n in range(6)]
    page = tmp_path / "page.html"
    flags = ("--dcgm", str(answer(tmp_path, *rows, *memory)), "--max-slowdown", "1", "--report", str(page))
    found = json.loads(report(*flags, "--cluster", "1x2", "--gpu-memory-gib", "4").stdout)
    assert [text.split(":")[0] for text in found["warnings"]] == [
        "6 jobs are in the first or the last sample",
        "on 2026-03-01 00",
        "a job took 6.0 GiB of a GPU, but those of --cluster have 4.0",
    ]
    assert found["mean_wait_s"]["accounted"] is None
    assert found["jobs_with_measured_demands"] == 6
    assert "not told" in page.read_text()
    assert "Utilization and memory of 6 jobs were measured" in page.read_text()
    # Two of them fit on a GPU of 16 GiB, as their memory was measured, and on one of 8 GiB none.
    roomy, narrow = (
        json.loads(report(*flags, "--cluster", "1x2", "--gpu-memory-gib", size).stdout) for size in ("80", "8")
    )
    assert roomy["gpu_hours_saved"]["mean"] > 0
    assert narrow["gpu_hours_saved"]["upper"] == 0
