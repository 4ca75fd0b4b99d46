"""submit reads the graph off a script where that leaves nothing behind, and accepts the job in any case."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from google.rpc import code_pb2  # type: ignore[import-untyped]

from cotenant.capture.captured_job import CapturedJob
from cotenant.capture.reasons import NotCapturedError, OverlayRefusedError
from cotenant.cli import capture_command, submit_capture
from cotenant.client import PredictorClient
from cotenant.graph_file import graph_sha256, read_graph
from cotenant.v1 import prediction_pb2, resources_pb2, scheduling_pb2
from tests.support.cli_cluster import CommandLine, Outcome
from tests.support.fake_services import FakePredictor, FakeScheduler

GRAPH = Path(__file__).parents[3] / "examples" / "jobs" / "graphs" / "mlp.onnx"
FOUND = CapturedJob(
    graph=read_graph(GRAPH),
    batch_size=32,
    accumulation=4,
    optimizer="adam",
    precision="fp16",
    input_wait_ms=2.5,
    activation_checkpointing=False,
    parameters=11_200_000,
    covered_ratio=1.0,
    notes=("two networks",),
    batches_per_step=4,
)
TORCH = "import torch\n"
Capture = Callable[..., CapturedJob]


@dataclass(frozen=True)
class Submission:
    """The command line in a folder with a script, and the services that it talks to."""

    cotenant: CommandLine
    scheduler: FakeScheduler
    script: Path
    monkeypatch: pytest.MonkeyPatch

    def submit(self, *words: str) -> Outcome:
        return self.cotenant("submit", *words)

    def capture_by(self, capture: Capture) -> None:
        """Let this function stand for running the script."""
        for module in (submit_capture, capture_command):
            self.monkeypatch.setattr(module, "capture_script", capture)

    def captured_commands(self, planned_steps: int = 0, processes: int = 1) -> list[tuple[list[str], dict[str, str]]]:
        """Let every capture succeed; returns their commands and environments, as they come."""
        seen: list[tuple[list[str], dict[str, str]]] = []
        for module in (submit_capture, capture_command):
            self.monkeypatch.setattr(module, "with_python_of_here", lambda command, _: list(command))

        def capture(command: list[str], *, environment: dict[str, str], **named: object) -> CapturedJob:
            seen.append((command, environment))
            return replace(FOUND, planned_steps=planned_steps, processes=processes)

        self.capture_by(capture)
        return seen

    def spec(self) -> scheduling_pb2.JobSpec:
        """What the scheduler was given; a validation is none."""
        (request,) = [
            one
            for one in self.scheduler.seen
            if isinstance(one, scheduling_pb2.SubmitJobRequest) and not one.validate_only
        ]
        return request.spec


@pytest.fixture
def submission(
    cotenant: CommandLine,
    scheduler: FakeScheduler,
    predictor: FakePredictor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Submission:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text("import sys\nfrom torch import nn\n")
    return Submission(cotenant, scheduler, script, monkeypatch)


def fail_with(error: Exception) -> Capture:
    def capture(*words: object, **named: object) -> CapturedJob:
        raise error

    return capture


def test_what_was_captured_becomes_the_job_and_flags_win(submission: Submission) -> None:
    submission.capture_by(lambda *words, **named: FOUND)
    outcome = submission.submit("--steps", "5", "--optimizer", "sgd", "--", "python", "train.py")
    assert outcome.code == 0
    assert "batch 32, adam, fp16, accumulation 4, 11.2 M parameters, covered 100 %" in outcome.err
    spec = submission.spec()
    assert spec.graph_sha256 == graph_sha256(FOUND.graph)
    assert spec.settings.global_batch_size == 32
    assert spec.settings.optimizer == resources_pb2.OPTIMIZER_SGD
    assert spec.settings.precision == resources_pb2.PRECISION_FP16
    assert spec.batches_per_step == 4


@pytest.mark.parametrize("unseen_batch", [0, 6])
def test_the_batch_of_a_graph_is_told_by_the_capture_alone_where_the_graph_does_not_show_it(
    unseen_batch: int, submission: Submission
) -> None:
    own = PredictorClient.upload_graph

    def upload_graph(client: PredictorClient, graph: bytes) -> prediction_pb2.UploadGraphResponse:
        answer = own(client, graph)
        for code in ("FIXED_BATCH", "UNSHAPED_NODES"):
            answer.warnings.add(code=code, message="as the graph alone shows it")
        return answer

    submission.monkeypatch.setattr(PredictorClient, "upload_graph", upload_graph)
    submission.capture_by(lambda *words, **named: replace(FOUND, unseen_batch=unseen_batch))
    outcome = submission.submit("--", "python", "train.py")
    assert ("FIXED_BATCH" in outcome.err) is not bool(unseen_batch)
    assert "UNSHAPED_NODES" in outcome.err


def test_batches_of_a_step_that_are_stated_win_over_those_that_were_captured(submission: Submission) -> None:
    submission.capture_by(lambda *words, **named: FOUND)
    assert submission.submit("--accumulation", "2", "--", "python", "train.py").code == 0
    assert submission.spec().batches_per_step == 2


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        ((), 900),
        (("--steps", "5"), 5),
        (("--ranks", "2"), 900),
        (("--gpus", "2"), 0),
        (("--gpus", "1..4"), 0),
        (("--gpus", "1", "--batch-size", "32"), 900),
        (("--batch-size", "64"), 0),
    ],
)
def test_steps_that_the_script_plans_are_those_of_the_job_that_was_captured(
    submission: Submission, words: tuple[str, ...], steps: int
) -> None:
    found = replace(FOUND, planned_steps=900)
    submission.capture_by(lambda *words, **named: found)
    outcome = submission.submit(*words, "--", "python", "train.py")
    assert (outcome.code, submission.spec().steps_total) == (0, steps)
    assert "covered 100 %, 900 steps planned" in outcome.err


@pytest.mark.parametrize(
    ("words", "steps"),
    [(("--gpus", "2"), 900), ((), 900), (("--gpus", "3"), 0), (("--gpus", "1..2"), 0)],
)
@pytest.mark.parametrize("from_file", [False, True])
def test_planned_steps_of_two_captured_ranks_are_kept_on_two_gpus(
    submission: Submission, tmp_path: Path, words: tuple[str, ...], steps: int, from_file: bool
) -> None:
    command = ("torchrun", "--nproc-per-node=2", "train.py")
    submission.captured_commands(900, processes=2)
    job: tuple[str, ...] = ("--", *command)
    if from_file:
        submission.cotenant("capture", "--out", str(tmp_path / "job.onnx"), "--", *command)
        job = (str(tmp_path / "job.yaml"),)
    outcome = submission.submit(*words, *job)
    assert (outcome.code, submission.spec().steps_total) == (0, steps)


@pytest.mark.parametrize(
    ("words", "steps", "told"),
    [
        ((), 900, ""),
        (("--batch-size", "32", "--gpus", "1"), 900, ""),
        (("--batch-size", "64"), 0, "batch 64"),
        (("--gpus", "2"), 0, "2 GPUs"),
        (("--gpus", "1..2"), 0, "1..2 GPUs"),
        (("--ranks", "2"), 0, "2 ranks"),
        (("--batch-size", "64", "--steps", "450"), 450, ""),
        (("--", "python", "train.py", "--epochs", "9"), 0, "another command"),
    ],
)
def test_planned_steps_of_a_captured_job_file_are_those_of_the_captured_job_only(
    submission: Submission, tmp_path: Path, words: tuple[str, ...], steps: int, told: str
) -> None:
    submission.captured_commands(900)
    submission.cotenant("capture", "--out", str(tmp_path / "job.onnx"), "--", "python", "train.py")
    options, command = (words, ()) if words[:1] != ("--",) else ((), words)
    outcome = submission.submit(*options, str(tmp_path / "job.yaml"), *command)
    assert (outcome.code, submission.spec().steps_total) == (0, steps)
    said = f"note: the 900 steps of {tmp_path / 'job.yaml'} are those that were planned as it was captured, with batch "
    assert (f"{said}32, and this job has {told}: its steps are unknown" in outcome.err) == (told != "")


def test_a_captured_job_file_that_allows_several_numbers_of_gpus_plans_no_steps(
    submission: Submission, tmp_path: Path
) -> None:
    submission.captured_commands(900)
    submission.cotenant("capture", "--out", str(tmp_path / "job.onnx"), "--", "python", "train.py")
    with (tmp_path / "job.yaml").open("a") as file:
        file.write("allowed_gpus: [1, 2]\n")
    outcome = submission.submit(str(tmp_path / "job.yaml"))
    assert submission.spec().steps_total == 0
    assert "this job has several numbers of GPUs" in outcome.err


def test_steps_that_were_written_into_a_captured_job_file_stay(submission: Submission, tmp_path: Path) -> None:
    submission.captured_commands(900)
    submission.cotenant("capture", "--out", str(tmp_path / "job.onnx"), "--", "python", "train.py")
    job_file = tmp_path / "job.yaml"
    job_file.write_text(job_file.read_text().replace("steps: 900", "steps: 901"))
    submission.submit("--batch-size", "64", str(job_file))
    assert submission.spec().steps_total == 901


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (NotCapturedError("61 % of the parameters"), "measured instead\n"),
        (NotCapturedError("the variable A is not set", remedy="submit: --env A=1"), "\n  remedy: submit: --env A=1\n"),
        (OverlayRefusedError("no name spaces"), "--capture"),
    ],
)
def test_a_job_that_cannot_be_captured_is_accepted_without_a_graph(
    submission: Submission, error: Exception, told: str
) -> None:
    submission.capture_by(fail_with(error))
    outcome = submission.submit("--steps", "5", "--", "python", "train.py")
    assert outcome.code == 0
    assert told in outcome.err
    assert "or submit it without a graph" not in outcome.err
    assert submission.spec().graph_sha256 == ""


@pytest.mark.parametrize("words", [(), ("--capture",), ("--array", "1-3")])
def test_what_is_refused_in_any_case_is_refused_before_it_is_captured(
    submission: Submission, words: tuple[str, ...]
) -> None:
    submission.capture_by(fail_with(AssertionError("it was run")))
    submission.scheduler.refusals["SubmitJob"] = (code_pb2.FAILED_PRECONDITION, "2 GPUs, not 9", "NO_NODE_RUNS_IT", "")
    outcome = submission.submit("--gpus", "9", *words, "--", "python", "train.py")
    assert outcome.code == 4
    assert "2 GPUs, not 9" in outcome.err
    assert "captur" not in outcome.err


@pytest.mark.parametrize(
    "words",
    [
        ("--no-capture", "--", "python", "train.py"),
        ("--", "python", "absent.py"),
        ("--", "bash", "train.py"),
        ("--", "python", "train.py", "--sub-batch", "{sub_batch}"),
        ("--graph", str(GRAPH), "--batch-size", "8", "--", "python", "train.py"),
    ],
)
def test_nothing_is_run_that_was_not_meant_to_be(submission: Submission, words: tuple[str, ...]) -> None:
    submission.capture_by(fail_with(AssertionError("it was run")))
    assert submission.submit("--steps", "5", *words).code == 0


def test_a_job_with_ranks_is_captured_with_all_its_ranks(submission: Submission) -> None:
    seen = submission.captured_commands()
    assert submission.submit("--ranks", "2", "--", "python", "train.py", "--lr", "1").code == 0
    launcher = ["python", "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    assert [command for command, _ in seen] == [[*launcher, "train.py", "--lr", "1"]]
    spec = submission.spec()
    assert (list(spec.command), spec.ranks) == (["python", "train.py", "--lr", "1"], 2)
    assert (spec.graph_sha256, spec.settings.global_batch_size) == (graph_sha256(FOUND.graph), 32)


@pytest.mark.parametrize(
    "words",
    [
        ("--ranks", "9", "--", "python", "train.py"),
        ("--ranks", "2", "--", "bash", "-c", "python train.py"),
        ("--ranks", "2", "--", "python", "-I", "train.py"),
        ("--sweep", "runs.csv", "--", "python", "train.py", "--batch-size", "{batch}"),
    ],
)
def test_many_ranks_launchers_and_the_rows_of_a_sweep_are_not_captured_unasked(
    submission: Submission, words: tuple[str, ...]
) -> None:
    submission.script.with_name("runs.csv").write_text("batch\n8\n16\n")
    seen = submission.captured_commands()
    outcome = submission.submit(*words)
    assert (outcome.code, seen) == (0, [])
    assert ("--capture reads the graph off the first, for all" in outcome.err) == ("--sweep" in words)


@pytest.mark.parametrize(
    ("words", "first"),
    [
        (("--array", "3-5", "--"), (["python", "train.py", "--seed", "3"], {"COTENANT_ARRAY_INDEX": "3"})),
        (
            ("--sweep", "runs.csv", "--capture", "--env", "LR={lr}", "--"),
            (["python", "train.py", "--seed", "1"], {"COTENANT_ARRAY_INDEX": "1", "LR": "0.1"}),
        ),
    ],
)
def test_an_array_is_captured_by_its_first_task(
    submission: Submission, words: tuple[str, ...], first: tuple[list[str], dict[str, str]]
) -> None:
    submission.script.with_name("runs.csv").write_text("lr\n0.1\n0.2\n")
    seen = submission.captured_commands(planned_steps=900)
    outcome = submission.submit(*words, "python", "train.py", "--seed", "{index}")
    assert (outcome.code, seen) == (0, [first])
    assert "all tasks are predicted as it" in outcome.err
    (request,) = [one for one in submission.scheduler.seen if isinstance(one, scheduling_pb2.SubmitArrayRequest)]
    assert request.spec.graph_sha256 == graph_sha256(FOUND.graph)
    assert list(request.spec.command) == ["python", "train.py", "--seed", "{index}"]
    assert request.spec.steps_total == (0 if "--sweep" in words else 900), "a row of a sweep may train for longer"
    # What is asked before the capture is a submission: the scheduler refuses names that the node gives.
    checks = [one for one in submission.scheduler.seen if isinstance(one, scheduling_pb2.SubmitJobRequest)]
    assert [name for one in checks for name in one.spec.environment if name.startswith("COTENANT_")] == []
    assert [one.validate_only for one in checks] == [True]


def test_a_capture_beside_a_graph_is_wrong_use(submission: Submission) -> None:
    outcome = submission.submit("--steps", "5", "--graph", str(GRAPH), "--capture", "--", "python", "train.py")
    assert outcome.code == 2
    assert "leave out --graph or --capture" in outcome.err


@pytest.mark.parametrize(("planned_steps", "steps"), [(0, " --steps N"), (900, "")])
def test_a_capture_says_how_its_job_is_asked_about_and_how_it_is_submitted(
    submission: Submission, tmp_path: Path, planned_steps: int, steps: str
) -> None:
    """The graph beside its job file are two jobs for `predict`."""
    submission.captured_commands(planned_steps)
    told = submission.cotenant("capture", "--out", str(tmp_path / "my graph.onnx"), "--", "python", "train.py").err
    for words in ("predict {} --device TYPE", f"submit {{}}{steps}"):
        assert f"`cotenant {words.format(shlex.quote(str(tmp_path / 'my graph.yaml')))}`" in told


@pytest.mark.parametrize(
    ("rows", "is_whole", "words"),
    [
        (("cut.py",), False, ()),
        (("cut.py", "again.py"), False, ()),
        (("cut.py", "plain.py"), True, ()),
        (("plain.py",), True, ()),
        (("cut", "again"), False, ("-m",)),
        (("cut", "plain"), True, ("-m",)),
    ],
)
def test_a_sweep_that_names_its_scripts_cuts_its_batches_where_all_of_them_do(
    rows: tuple[str, ...], is_whole: bool, words: tuple[str, ...], submission: Submission
) -> None:
    cutting = "from cotenant import job\nparts = job.sub_batches(batch)\n"
    for name, text in (("cut.py", cutting), ("again.py", cutting), ("plain.py", "")):
        submission.script.with_name(name).write_text(text)
    sweep = submission.script.with_name("runs.csv")
    sweep.write_text("script,lr\n" + "".join(f"{name},{lr}\n" for name in rows for lr in (0.1, 0.2)))
    outcome = submission.submit("--sweep", "runs.csv", "--", "python", *words, "{script}", "--lr", "{lr}")
    assert outcome.code == 0
    (request,) = [one for one in submission.scheduler.seen if isinstance(one, scheduling_pb2.SubmitArrayRequest)]
    assert request.spec.takes_whole_batch is is_whole
