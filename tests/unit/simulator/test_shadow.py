"""shadow: past jobs out of accounting, and what sharing would have done to them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cotenant_simulator.commands.shadow import shadow
from cotenant_simulator.errors import InputError, TraceError
from cotenant_simulator.readers.accounting import read_accounting
from cotenant_simulator.report.shadow_page import as_page, as_text

HEAD = "JobIDRaw|JobName|User|Submit|Start|End|State|AllocTRES"
MEASURED = Path(__file__).parents[3] / "datasets" / "cpu_standin"
GPU = "billing=1,cpu=1,gres/gpu:a100=1,gres/gpu=1"


def row(job_id: str, *, at: str = "00:00", ended: str = "01:00", tres: str = GPU, name: str = "train") -> str:
    return f"{job_id}|{name}|ann|2026-03-01T{at}:00|2026-03-01T{at}:30|2026-03-01T{ended}:00|COMPLETED|{tres}"


def table(folder: Path, *rows: str, head: str = HEAD) -> Path:
    path = folder / "sacct.txt"
    path.write_text("\n".join((head, *rows)) + "\n")
    return path


def test_jobs_with_gpus_that_have_ended_are_read_in_order(tmp_path: Path) -> None:
    path = table(
        tmp_path,
        row("2", at="00:30"),
        row("1", tres="cpu=1,gres/gpu:a100=2,gres/gpu:h100=1"),
        row("3", tres="cpu=4"),
        "4|n|ann|2026-03-01T00:00:00|Unknown|Unknown|PENDING|gres/gpu=1",
        row("5", name="a|b"),
        row("6", ended="00:00"),
        "7|n|ann|yesterday|2026-03-01T00:00:00|2026-03-01T01:00:00|COMPLETED|gres/gpu=1",
        row("2"),
        row("2"),
    )
    found = read_accounting(path)
    # It was requeued: each time that it ran counts, and a row that is there twice once.
    assert [(job.job_id, job.gpus) for job in found.jobs] == [("1", 3), ("2", 1), ("2.1", 1)]
    assert found.skipped == {
        "told twice": 1,
        "no GPUs": 1,
        "not ended": 1,
        "another number of cells than the header": 1,
        "no time with GPUs": 1,
        "no time": 1,
    }
    assert found.jobs[0].started_at_ms - found.jobs[0].submitted_at_ms == 30_000


def test_odd_rows_of_sacct_are_read_or_counted_with_their_reason(tmp_path: Path) -> None:
    times = "2026-03-01T00:00:00|2026-03-01T00:00:30|2026-03-01T01:00:00"
    path = table(
        tmp_path,
        f"10|array|ann|{times}|COMPLETED|{GPU}",
        f"11|array|ann|{times}|CANCELLED by 1000|gres/gpu:nvidia_a100=1,gres/gpu:nvidia_h100=2",
        f"10.batch|batch||{times}|COMPLETED|{GPU}",
        f"10.extern|extern||{times}|COMPLETED|{GPU}",
        f"10.0|python||{times}|COMPLETED|{GPU}",
        f"12|never|ann|2026-03-01T00:00:00|None|2026-03-01T01:00:00|CANCELLED by 1000|{GPU}",
        f"13|epoch|ann|1772323200|1772323260|1772323860|TIMEOUT|{GPU}",
        f"14|zone|ann|2026-03-01T01:00:00+01:00|2026-03-01T01:01:00+01:00|2026-03-01T01:11:00+01:00|COMPLETED|{GPU}",
        f"15|relative|ann|Ystday 10:00|Ystday 10:01|UNLIMITED|COMPLETED|{GPU}",
        f"16|mig|ann|{times}|COMPLETED|gres/gpu:a100_1g.5gb=1,gres/gpu=1",
        f"17|mps|ann|{times}|COMPLETED|cpu=1,gres/mps=50",
        f"18|lent|ann|{times}|COMPLETED|gres/gpu=0",
    )
    found = read_accounting(path)
    read = {job.job_id: (job.gpus, (job.ended_at_ms - job.started_at_ms) / 60e3) for job in found.jobs}
    assert read == {"10": (1, 59.5), "11": (3, 59.5), "13": (1, 10), "14": (1, 10)}
    assert found.skipped == {
        "a step of a job, or no job's number": 3,
        "not ended": 1,
        "no time": 1,
        "a part of a GPU (MIG), shared already": 1,
        "a part of a GPU (gres/shard), shared already": 1,
        "no GPUs": 1,
    }


@pytest.mark.parametrize(
    ("head", "rows", "complaint"),
    [
        ("JobID|User", (), "lacks the column JobIDRaw; write it with --parsable2"),
        (
            HEAD,
            (row("1", tres="cpu=1"),),
            "holds no ended job with GPUs; 1 rows: no GPUs. AllocTRES must name gres/gpu",
        ),
        (HEAD, (row("1").replace("T", " at "),), "1 rows: no time. .* .SLURM_TIME_FORMAT=standard."),
        ("", (), "lacks the column"),
    ],
)
def test_a_table_without_jobs_is_refused_with_the_remedy(
    tmp_path: Path, head: str, rows: tuple[str, ...], complaint: str
) -> None:
    with pytest.raises(TraceError, match=complaint):
        read_accounting(table(tmp_path, *rows, head=head))


def report(path: Path, *flags: str) -> Result:
    arguments = ["--sacct", str(path), "--measured", str(MEASURED), "--gpu-memory-gib", "2", "-o", "json", *flags]
    return CliRunner().invoke(shadow, arguments, catch_exceptions=False)


def crowd(folder: Path) -> Path:
    return table(folder, *(row(str(number), at=f"00:{number:02}", name=f"n{number % 5}") for number in range(8)))


def test_sharing_saves_gpu_hours_and_waits_where_gpus_are_short(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    flags = ("--cluster", "1x2", "--max-slowdown", "1", "--seeds", "4", "--report", str(page))
    first, second = (report(crowd(tmp_path), *flags) for _ in range(2))
    found = json.loads(first.stdout)
    assert first.stdout == second.stdout
    assert "seed" not in first.stderr, "how far it is belongs on a terminal"
    assert (found["schema"], found["jobs"], [day["day"] for day in found["days"]]) == (
        "cotenant.shadow/1",
        8,
        ["2026-03-01"],
    )
    saved, shared = found["gpu_hours_saved"], found["mean_wait_s"]["shared"]
    assert 0 <= saved["lower"] < saved["mean"] < saved["upper"] < found["gpu_hours_exclusive"]["mean"]
    assert found["days"][0]["gpu_hours_saved"]["mean"] == pytest.approx(saved["mean"], rel=0.01)
    assert shared["mean"] < found["mean_wait_s"]["exclusive"]["mean"]
    assert found["slowdown_ratio"]["max"]["upper"] > 0
    assert [user["user"] for user in found["users"]] == ["ann"]
    text = page.read_text()
    assert "No accounting tells what jobs demand" in text
    assert "http" not in text


def test_where_gpus_are_free_or_nobody_consents_nothing_is_saved(tmp_path: Path) -> None:
    for flags in (("--cluster", "1x8", "--max-slowdown", "1"), ("--cluster", "1x2", "--max-slowdown", "0")):
        found = json.loads(report(crowd(tmp_path), *flags, "--seeds", "2").stdout)
        assert found["gpu_hours_saved"]["upper"] == 0


def test_names_of_jobs_and_users_are_text_on_the_page(tmp_path: Path) -> None:
    hostile = row("1").replace("ann", "<script>alert(1)</script>")
    page = tmp_path / "page.html"
    report(table(tmp_path, hostile), "--cluster", "1x1", "--seeds", "2", "--report", str(page))
    assert "<script>" not in page.read_text()


def test_one_source_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="name one of --sacct FILE, --dcgm FILE"):
        report(crowd(tmp_path), "--trace", "x.csv", "--cluster", "1x1")


def test_a_cluster_with_fewer_gpus_than_were_in_use_is_doubted(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    flags = ("--cluster", "1x2", "--seeds", "2", "--report", str(page))
    found = json.loads(report(crowd(tmp_path), *flags).stdout)
    doubt = "on 2026-03-01 00:07 8 GPUs were in use, but --cluster 1x2 has 2"
    assert [text.startswith(doubt) for text in found["warnings"]] == [True]
    assert doubt in page.read_text()
    assert json.loads(report(crowd(tmp_path), "--cluster", "1x8", "--seeds", "2").stdout)["warnings"] == []


def test_gpus_that_are_handed_on_at_once_are_counted_once(tmp_path: Path) -> None:
    path = table(tmp_path, *(row(str(n), at=f"0{n}:00", ended=f"0{n + 1}:00") for n in range(3)))
    text = path.read_text().replace(":30|", ":00|")
    path.write_text(text)
    assert json.loads(report(path, "--cluster", "1x1", "--seeds", "2").stdout)["warnings"] == []


def test_waits_of_days_are_told_in_days(tmp_path: Path) -> None:
    found = json.loads(report(crowd(tmp_path), "--cluster", "1x8", "--seeds", "2").stdout)
    found["mean_wait_s"]["shared"] = {"mean": 541_490.0, "lower": 59.0, "upper": 7_260.0}
    for text in (as_text(found), as_page(found)):
        assert "by the order in which sjf_bsbf starts them" in text
        assert "6d6h (59.0 s to 2h1m)" in text
        assert "541,490" not in text


def test_days_of_a_trace_that_counts_from_0_are_numbered_and_bear_no_dates(tmp_path: Path) -> None:
    found = json.loads(report(crowd(tmp_path), "--cluster", "1x8", "--seeds", "2").stdout)
    counted = {**found, "days": [{**found["days"][0], "day": day} for day in ("1970-01-01", "1970-01-24")]}
    # On a narrow page no line ends inside of a day.
    for show, blank in ((as_text, " "), (as_page, "\u00a0")):
        assert "2026-03-01" in show(found)
        assert "1970" not in show(counted)
        assert f"day{blank}1" in show(counted)
        assert f"day{blank}24" in show(counted)


def test_nothing_saved_is_no_negative_zero(tmp_path: Path) -> None:
    found = json.loads(report(crowd(tmp_path), "--cluster", "1x8", "--seeds", "2").stdout)
    found["gpu_hours_saved"] = {"mean": -0.001, "lower": -0.04, "upper": 0.0}
    assert "-0.0" not in as_text(found)
