"""What people see, letter by letter; the files in golden/ were read by a person."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from rich.cells import cell_len

from cotenant.cli import session
from cotenant.cli.job_views import job_columns, job_rows
from cotenant.cli.queue_views import queue_notes
from cotenant.cli.tables import Column, Row, render_labelled, render_table
from cotenant.v1 import scheduling_pb2
from tests.support.cli_cluster import CommandLine
from tests.support.fake_services import FakePredictor, FakeScheduler

GOLDEN = Path(__file__).parent / "golden"
GRAPH = str(Path(__file__).parents[3] / "examples/jobs/graphs/cnn.onnx")

PAGES = {
    "ps": ("ps",),
    "describe": ("describe", "job-000001"),
    "explain": ("explain", "resnet"),
    "nodes": ("nodes",),
    "gpus": ("gpus",),
    "policies_list": ("policies", "list"),
    "policies_describe": ("policies", "describe", "horus"),
    "pairs": ("pairs",),
    "predict": ("predict", GRAPH, "--batch-size", "64"),
}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_reads_as_reviewed(
    page: str, cotenant: CommandLine, scheduler: FakeScheduler, predictor: FakePredictor
) -> None:
    outcome = cotenant(*PAGES[page])
    assert outcome.out == (GOLDEN / f"{page}.txt").read_text(encoding="utf-8")
    assert (outcome.code, outcome.err) == (0, "")


@pytest.mark.parametrize("page", PAGES)
def test_no_line_is_wider_than_the_terminal(
    page: str, cotenant: CommandLine, scheduler: FakeScheduler, predictor: FakePredictor
) -> None:
    lines = cotenant(*PAGES[page]).out.splitlines()
    assert [line for line in lines if len(line) > 80] == []


def test_a_sentence_goes_on_below_where_it_would_be_cut() -> None:
    columns = (Column(title="NAME", shrinks=True), Column(title="MEANING", wraps=True))
    rows = [Row(cells=("a", "one sentence that needs more than one line")), Row(cells=("b", ""))]
    assert render_table(columns, rows, 30).plain.splitlines() == [
        "NAME  MEANING",
        "a     one sentence that needs",
        "      more than one line",
        "b",
    ]


def test_a_heading_goes_on_below_where_it_would_be_cut() -> None:
    columns = (Column(title="JOB"), Column(title="SHARES WITH", wraps=True))
    assert render_table(columns, [Row(cells=("job-1000", "vgg"))], 18).plain.splitlines() == [
        "JOB       SHARES",
        "          WITH",
        "job-1000  vgg",
    ]


def test_what_may_stand_below_does_so_where_the_table_is_too_wide_and_nothing_of_it_is_cut() -> None:
    columns = (
        Column(title="DEVICE", wraps=True),
        Column(title="BASED ON", goes_below=True),
        Column(title="FITS"),
    )
    row = Row(cells=("NVIDIA A100-SXM4-80GB", "fallback, OUT OF DOMAIN", "NO"), styles=((1, "dim"), (2, "red")))
    assert render_table(columns, [row], 60).plain.splitlines()[1].split("  ") == list(row.cells)
    narrow = render_table(columns, [row, Row(cells=("cpu-standin", "-", "yes"), note="idle")], 40)
    assert narrow.plain.splitlines() == [
        "DEVICE                 FITS",
        "NVIDIA A100-SXM4-80GB  NO",
        "  └ based on: fallback, OUT OF DOMAIN",
        "cpu-standin            yes",
        "  └ idle",
    ]
    assert [narrow.plain[span.start : span.end].strip() for span in narrow.spans if span.style == "red"] == ["NO"]


def test_a_name_that_somebody_types_goes_on_below_instead_of_being_cut() -> None:
    columns = (Column(title="GPU", wraps=True), Column(title="UTIL", right=True))
    row = Row(cells=("gpu-node-17.example.com/GPU-7a1b,gpu-node-17.example.com/GPU-7a1c", "83 %"))
    shown = render_table(columns, [row], 34).plain
    assert "…" not in shown
    assert "".join(line[:28].strip() for line in shown.splitlines()[1:]) == row.cells[0]


@pytest.mark.parametrize("page", ["ps", "gpus", "predict_several"])
def test_names_of_devices_and_what_a_prediction_is_based_on_are_whole_at_80_columns(
    page: str, cotenant: CommandLine, scheduler: FakeScheduler, predictor: FakePredictor
) -> None:
    words = {"ps": ("ps",), "gpus": ("gpus",)}.get(page, ("predict", GRAPH, "--batch-size", "16,64"))
    lines = [line for line in cotenant(*words).out.splitlines() if "lstm-waiti" not in line]
    assert [line for line in lines if "…" in line] == []


def test_a_wide_terminal_cuts_nothing(
    cotenant: CommandLine, scheduler: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    out = cotenant("ps", "-o", "wide").out
    assert "…" not in out
    assert "PLACED_SHARED: shares node-a/standin-0 with lstm-waiting" in out


@pytest.mark.parametrize("text", ["训练数据集" * 20, "слово " * 30, "a" * 200, "训练 data 集" * 12])
def test_wide_characters_are_wrapped_by_the_cells_that_they_take(text: str) -> None:
    shown = render_labelled([("command", text)], 80).plain
    assert max(cell_len(line) for line in shown.splitlines()) <= 80
    assert "".join(shown.removeprefix("command").split()) == "".join(text.split())
    table = render_table([Column(title="A", shrinks=True)], [Row(cells=[text], note=text)], 80)
    assert max(cell_len(line) for line in table.plain.splitlines()) <= 80


def test_a_command_is_shown_as_it_would_be_typed(cotenant: CommandLine, scheduler: FakeScheduler) -> None:
    scheduler.jobs["job-000003"].spec.command[:] = ["python", "my script.py", "--name", "a b"]
    assert "python 'my script.py' --name 'a b'" in cotenant("describe", "job-000003").out


LISTED = (
    Column(title="JOB"),
    Column(title="NAME", shrinks=True, least=12),
    Column(title="SHARES WITH", wraps=True, leaves=2),
    Column(title="TENANT", leaves=1),
)
LISTED_ROWS = [
    Row(cells=("job-1", "bert-finetune-seed-41", "resnet-with-a-long-name", "vision")),
    Row(cells=("job-2", "bert-finetune-seed-42", "-", "-"), note="waits"),
]


def listed(width: int) -> list[str]:
    return render_table(LISTED, LISTED_ROWS, width).plain.splitlines()


def test_names_that_differ_at_their_ends_can_be_told_apart_where_they_are_cut() -> None:
    assert listed(52)[1].startswith("job-1  bert-finet…d-41  ")
    assert listed(52)[3].startswith("job-2  bert-finet…d-42  ")


def test_columns_leave_one_by_one_where_even_the_narrowest_table_is_too_wide() -> None:
    assert listed(44) == [
        "JOB    NAME             SHARES WITH",
        "job-1  bert-finet…d-41  resnet-with-a-long-n",
        "                        ame",
        "  └ tenant: vision",
        "job-2  bert-finet…d-42  -",
        "  └ waits",
    ]
    assert listed(24)[:2] == ["JOB    NAME", "job-1  bert-finetu…ed-41"]
    assert " ".join(line.strip() for line in listed(24)[2:5]).endswith("tenant: vision")


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("width", [80, 100, 200])
def test_a_list_of_jobs_with_long_names_on_real_gpus_fits_any_terminal(width: int, wide: bool) -> None:
    jobs = [
        scheduling_pb2.Job(job_id=f"job-{number}", phase=scheduling_pb2.JOB_PHASE_RUNNING, steps_done=number * 1234)
        for number in range(30)
    ]
    for number, job in enumerate(jobs):
        job.spec.name, job.spec.steps_total = f"imagenet-resnet50-augmented-seed-{number:02}", 120_000
        job.assignments.add(gpu_id=f"GPU-4b1c1f{number:02x}-1111-2222-3333-444455556666")
        job.co_located_jobs.add(job_id=f"job-{number ^ 1}")
        job.predicted_slowdown_ratio, job.measured_slowdown_ratio = 0.12, 1.08
    text = render_table(job_columns(wide=wide), job_rows(jobs, wide=wide, at_ms=0), width).plain
    assert [line for line in text.splitlines() if cell_len(line) > width] == []
    for number in range(30):
        row = next(line for line in text.splitlines() if line.startswith(f"job-{number} "))
        assert f"ed-{number:02} " in row
        assert f"GPU-4b1c1f{number:02x}" in row


@pytest.mark.parametrize(
    ("at_ms", "missed_ms", "said"),
    [
        (50_000, 31_000, "will miss its deadline by 31s at least"),
        (160_000, 60_000, "its deadline passed 1m00s ago"),
        (160_000, 90_000, "its deadline passed 1m00s ago and it needs 30s more at least"),
    ],
)
def test_a_deadline_that_has_passed_is_told_as_passed(at_ms: int, missed_ms: int, said: str) -> None:
    job = scheduling_pb2.Job(job_id="job-1", phase=scheduling_pb2.JOB_PHASE_RUNNING, deadline_missed_by_ms=missed_ms)
    job.spec.deadline_at_ms = 100_000
    assert queue_notes(job, at_ms) == [said]


PIPED = {
    **PAGES,
    "ps_wide": ("ps", "-o", "wide"),
    "predict_several": ("predict", GRAPH, "--batch-size", "16,64"),
    "predict_largest": ("predict", GRAPH, "--device", "a100,l4", "--max-batch"),
    "submit_dry_run": ("submit", str(Path(GRAPH).parents[1] / "1-cnn.yaml"), "--dry-run"),
    "config_list": ("config", "list"),
}


@pytest.mark.parametrize("page", PIPED)
def test_every_page_goes_into_a_pipe_as_onto_a_terminal_without_edges(
    page: str,
    cotenant: CommandLine,
    scheduler: FakeScheduler,
    predictor: FakePredictor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for job in scheduler.jobs.values():
        job.spec.name += "-of-a-network-with-a-very-long-name" * 6
        job.reason.message = " ".join([job.reason.message or "all GPUs that it could have are taken"] * 12)
    predictor.answer.warnings.add(code="OUT_OF_DOMAIN", message="unlike every job that was measured: " + "depth " * 60)
    monkeypatch.setenv("COLUMNS", "100000")
    endless = cotenant(*PIPED[page])
    monkeypatch.delenv("COLUMNS")
    piped = cotenant(*PIPED[page])
    assert (piped.code, piped.out) == (endless.code, endless.out)
    assert "…" not in piped.out


def test_every_table_asks_how_wide_the_output_of_its_verb_may_be() -> None:
    """Those of the demo are told to people as it runs; all others would be folded in a pipe."""
    folder = Path(session.__file__).parent
    calls = [
        (path.name, node.args[-1])
        for path in sorted(folder.glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in {"render_table", "render_labelled"}
    ]
    assert len(calls) > 20
    assert [name for name, width in calls if ast.unparse(width) != "session.width"] == []


def test_a_row_that_goes_into_a_pipe_is_one_line(
    cotenant: CommandLine, scheduler: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    name = "training-of-a-network-with-a-very-long-name-" * 4
    job = scheduler.jobs["job-000003"]
    job.spec.name, reason = name, job.reason
    reason.code, reason.message = "NO_FREE_GPU", " ".join(["all GPUs that it could have are taken"] * 12)
    for words in (("ps", "-o", "wide"), ("ps",)):
        [row] = [line for line in cotenant(*words).out.splitlines() if name in line]
        assert "…" not in row
        assert job.job_id in row


def test_keys_of_jobs_go_whole_into_a_pipe(
    cotenant: CommandLine, predictor: FakePredictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert f"{'cd' * 4} x16" in cotenant("pairs").out
    monkeypatch.delenv("COLUMNS")
    assert f"{'cd' * 32} x16" in cotenant("pairs").out


def test_what_is_said_of_a_deadline_goes_on_behind_a_reason_without_its_full_stop() -> None:
    job = scheduling_pb2.Job(job_id="job-1", phase=scheduling_pb2.JOB_PHASE_PENDING, deadline_missed_by_ms=31_000)
    job.reason.code, job.reason.message = "HELD", "The job is held."
    assert (
        job_rows([job], wide=False, at_ms=0)[0].note == "HELD: The job is held; will miss its deadline by 31s at least"
    )
    job.ClearField("deadline_missed_by_ms")
    assert job_rows([job], wide=False, at_ms=0)[0].note == "HELD: The job is held."
