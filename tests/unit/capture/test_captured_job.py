"""What a capture states about a job, and what it leaves to those who see more of it."""

from __future__ import annotations

import importlib.metadata
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from click.testing import CliRunner
from cotenant_profiler.convert_command import convert_command

from cotenant import programs
from cotenant.capture import captured_job, captured_notes
from cotenant.capture.captured_files import NO_PLANNED_STEPS, PlannedSteps, read_planned_steps, write_job
from cotenant.capture.in_script.step_export import EXPORT_FILE
from cotenant.capture.in_script.step_window import IN_A_LIST
from cotenant.capture.reasons import NotCapturedError
from cotenant.capture.script_run import ScriptOutcome, ScriptPlan
from cotenant.graph_file import read_graph
from cotenant.job_settings import INPUT_WAIT_MS_MAX

GRAPH = Path(__file__).parents[3] / "examples" / "jobs" / "graphs" / "mlp.onnx"
RESULT: dict[str, Any] = {
    "status": "captured",
    "torch_version": "2.13.0",
    "micro_batch_size": 4,
    "accumulation": 1,
    "world_size": 1,
    "optimizer": "adam",
    "optimizer_class": "Adam",
    "held_bytes": 0,
    "single_samples": 0,
    "pads_sequences": False,
    "is_double": False,
    "has_smaller_batches": False,
    "has_shorter_inputs": False,
    "optimizers": 1,
    "precision": "fp32",
    "recomputes": False,
    "is_sharded": False,
    "shards": 0,
    "gathered_ratio": 0.25,
    "differentiates_twice": False,
    "state_in_parts": False,
    "kept_numbers": [],
    "transforms": False,
    "planned_steps": 0,
    "wait_s": 0.0,
    "step_s": 1.0,
    "parameters": 10,
    "covered_ratio": 1.0,
    "is_batch_fixed": False,
    "batch_dimension": 0,
    "batch_fixed_at": "",
    "unseen_batch": 0,
    "frozen_parameters": 0,
    "asked_calls": 0,
    "frozen_inside": 0,
    "loaded_batch_size": 0,
    "closures": 1,
    "dropped_passes": 0,
    "loaded_batches": 0,
    "networks": ["Net"],
    "cuda_asked": False,
    "switched_off": False,
    "read_numbers": [],
    "batch_most": 0,
    "indexed_samples": 0,
    "has_gpu": False,
    "masks_by_code": False,
    "growing_lengths": "",
    "later_quantizer": "",
}


def outcome_with(changes: dict[str, Any], log: str = "") -> ScriptOutcome:
    """A script that was captured, with such figures."""
    return ScriptOutcome(
        result=RESULT | changes,
        status=0,
        has_started=True,
        has_torch=True,
        has_stepped=True,
        log=log,
        not_isolated="",
    )


def test_the_form_of_progress_is_left_to_the_agent_which_sees_the_whole_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # By its brackets alone a bar of images would count four for each step.
    log = "Epoch 1/5:   2%|# | 8/400 [00:01<00:40, 9.9img/s]\nValidation: 1/90 [00:01<00:09, 9.5it/s]\nstep 1\n"
    outcome = outcome_with({"progress": ""}, log=log)
    monkeypatch.setattr(programs, "require_programs", lambda *words: None)
    monkeypatch.setattr(captured_job, "run_script", lambda *words: outcome)
    monkeypatch.setattr(captured_job, "convert", lambda *words: read_graph(GRAPH))
    job = captured_job.capture_script(["python", "train.py"], directory=tmp_path, environment={})
    files = (tmp_path / "train.onnx", tmp_path / "train.yaml")
    write_job(job, ["python", "train.py"], tmp_path, files)
    written = yaml.safe_load(files[1].read_text())
    assert set(written) == {"name", "command", "working_directory", "graph", "settings"}


@pytest.mark.parametrize("steps", [0, 1_234])
def test_a_job_file_says_how_many_steps_were_planned_of_which_batch(steps: int, tmp_path: Path) -> None:
    job = replace(captured_job._as_job(outcome_with({}), read_graph(GRAPH)), batch_size=48, planned_steps=steps)
    files = (tmp_path / "train.onnx", tmp_path / "train.yaml")
    write_job(job, ["python", "train.py"], tmp_path, files)
    assert read_planned_steps(files[1]) == (PlannedSteps(steps, 48) if steps else NO_PLANNED_STEPS)
    files[1].write_text("name: own\nsteps: 900\n")
    assert read_planned_steps(files[1]) == NO_PLANNED_STEPS


def test_a_job_file_says_of_how_many_captured_processes_its_steps_are_and_an_older_one_of_one(tmp_path: Path) -> None:
    outcome = outcome_with({"world_size": 2, "micro_batch_size": 24, "planned_steps": 900})
    files = (tmp_path / "train.onnx", tmp_path / "train.yaml")
    write_job(captured_job._as_job(outcome, read_graph(GRAPH)), ["torchrun", "train.py"], tmp_path, files)
    assert read_planned_steps(files[1]) == PlannedSteps(900, 48, 2)
    files[1].write_text("# captured by cotenant: batch 48, adam, fp32, 900 steps planned\nsteps: 900\n")
    assert read_planned_steps(files[1]) == PlannedSteps(900, 48)


@pytest.mark.parametrize("is_captured", [True, False])
def test_a_script_that_ends_where_there_is_no_gpu_is_run_again_as_with_one(
    is_captured: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    ended = replace(outcome_with({}, log="needs a GPU\n"), result={}, status=1, has_stepped=False, has_asked_gpu=True)

    def run(plan: ScriptPlan, folder: Path) -> ScriptOutcome:
        asked.append(plan.has_gpu)
        told = outcome_with({"cuda_asked": True, "has_gpu": True})
        return told if plan.has_gpu and is_captured else replace(ended, log=f"{ended.log}{'again' * plan.has_gpu}")

    monkeypatch.setattr(programs, "require_programs", lambda *words: None)
    monkeypatch.setattr(captured_job, "run_script", run)
    monkeypatch.setattr(captured_job, "convert", lambda *words: read_graph(GRAPH))
    if is_captured:
        job = captured_job.capture_script(["python", "train.py"], directory=tmp_path, environment={})
        assert job.notes[-1].endswith("was seen as with one, for it ends where there is none")
    else:
        with pytest.raises(NotCapturedError, match="step: needs a GPU\n"):
            captured_job.capture_script(["python", "train.py"], directory=tmp_path, environment={})
    assert asked == [False, True]


@pytest.mark.parametrize(
    "end",
    [
        {"has_asked_gpu": False},
        {"status": 2},
        {"log": "Traceback\nFileNotFoundError: [Errno 2] No such file or directory: 'x.bin'\n"},
        {"has_stepped": True},
    ],
)
def test_a_script_that_fails_for_another_reason_than_a_missing_gpu_is_run_once(
    end: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def run(plan: ScriptPlan, folder: Path) -> ScriptOutcome:
        asked.append(plan.has_gpu)
        usual: dict[str, Any] = {"result": {}, "status": 1, "has_stepped": False, "has_asked_gpu": True}
        return replace(outcome_with({}), **(usual | end))

    monkeypatch.setattr(programs, "require_programs", lambda *words: None)
    monkeypatch.setattr(captured_job, "run_script", run)
    with pytest.raises(NotCapturedError):
        captured_job.capture_script(["python", "train.py"], directory=tmp_path, environment={})
    assert asked == [False]


@pytest.mark.parametrize(
    ("wait_s", "step_s", "told_ms"),
    [
        (0.0, 0.0, 0.0),
        (0.00009, 0.001, 0.0),
        (0.0049, 1.0, 0.0),
        (0.0051, 1.0, 5.0),
        (0.0241, 0.3, 25.0),
        (0.0262, 0.1, 25.0),
        (2.4, 2.5, 2_500.0),
        (1e9, 1e9, 3_600_000.0),
    ],
)
def test_a_wait_is_told_in_milliseconds_that_another_capture_tells_as_well(
    wait_s: float, step_s: float, told_ms: float
) -> None:
    assert captured_job._steady_ms(1_000 * wait_s, 1_000 * step_s) == pytest.approx(told_ms, rel=0.15)
    assert captured_job._steady_ms(1_000 * wait_s, 1_000 * step_s) <= INPUT_WAIT_MS_MAX


def test_a_job_that_waits_is_written_down_with_its_milliseconds() -> None:
    outcome = outcome_with({"wait_s": 0.026, "step_s": 0.5})
    job = captured_job._as_job(outcome, read_graph(GRAPH))
    assert job.settings()["input_wait_ms"] == 25.0
    assert "input was waited for some 25 ms of a step here, a larger part of a step on a GPU" in job.notes


@pytest.mark.parametrize(
    ("accumulation", "loaded", "keys"),
    [
        (2, 2, {"accumulation": 2}),
        (4, 0, {"accumulation": 4}),  # batches that no loader of torch hands out
        (2, 1, {}),  # two backward passes over one batch of the loader
        (4, 2, {"accumulation": 2}),
        (1, 2, {}),  # two loaders at once
        (None, 1, {}),
    ],
)
def test_batches_of_a_step_are_those_that_a_loop_over_a_loader_counts(
    accumulation: int | None, loaded: int, keys: dict[str, int], tmp_path: Path
) -> None:
    outcome = outcome_with({"accumulation": accumulation, "loaded_batches": loaded})
    job = captured_job._as_job(outcome, read_graph(GRAPH))
    write_job(job, ["python", "train.py"], tmp_path, (tmp_path / "job.onnx", tmp_path / "job.yaml"))
    written = yaml.safe_load((tmp_path / "job.yaml").read_text())
    assert {name: value for name, value in written.items() if name == "accumulation"} == keys == job.progress_keys()


@pytest.mark.parametrize(
    ("told", "ranks"),
    [
        ({"is_sharded": True, "world_size": 4}, 4),
        ({"is_sharded": True, "world_size": 8, "shards": 2}, 2),  # copies of two parts
        ({"is_sharded": True, "world_size": 1}, 0),
        ({"is_sharded": False, "world_size": 4}, 0),
    ],
)
def test_the_ranks_among_which_weights_are_divided_become_a_setting(told: dict[str, Any], ranks: int) -> None:
    outcome = outcome_with(told)
    job = captured_job._as_job(outcome, read_graph(GRAPH))
    assert job.settings().get("sharded_ranks", 0) == ranks
    assert job.settings().get("gathered_ratio", 0) == (0.25 if ranks else 0)
    assert any(f"lie in {ranks} parts" in note for note in job.notes) is (ranks > 0)


def test_what_is_held_besides_the_graph_is_said() -> None:
    notes = captured_notes.notes_of({**RESULT, "held_bytes": 3_000_000}, 0.0)

    assert [note for note in notes if note.startswith("3.0 M bytes that no network in the graph shows are counted")]
    assert not [note for note in captured_notes.notes_of(RESULT, 0.0) if "bytes" in note]


def test_alike_networks_are_named_once() -> None:
    notes = captured_notes.notes_of({**RESULT, "networks": ["Coupling", "Head", *["Coupling"] * 5]}, 0.0)
    assert "6 x Coupling, Head are in one graph; code between them is not" in notes


def test_weights_that_do_not_learn_are_told() -> None:
    notes = captured_notes.notes_of({**RESULT, "frozen_inside": 1_400_000}, 0.0)

    assert [note for note in notes if note.startswith("1.4 M of these parameters do not learn")]
    assert not [note for note in captured_notes.notes_of(RESULT, 0.0) if "do not learn" in note]


def test_numbers_that_were_taken_as_they_were_are_named() -> None:
    (note,) = captured_notes.notes_of({**RESULT, "kept_numbers": ["queue_ptr", "count"]}, 0.0)
    assert note.startswith("the network reads queue_ptr, count as a number, which it keeps and changes")


def test_calls_without_gradients_are_told_since_no_prediction_has_them() -> None:
    (note,) = captured_notes.notes_of({**RESULT, "asked_calls": 17}, 0.0)
    assert note.startswith("until its second step the network was called 17 times without gradients (a rollout, a")


def test_a_batch_that_is_no_batch_of_the_loader_is_told_in_rows() -> None:
    (note,) = captured_notes.notes_of({**RESULT, "micro_batch_size": 374, "loaded_batch_size": 32}, 0.0)

    assert note.startswith("a batch is 374 rows of the network's inputs, where the loader's batches have 32 samples")


def test_names_of_what_changes_later_are_told() -> None:
    told = captured_notes.notes_of({**RESULT, "growing_lengths": "curriculum", "later_quantizer": "prepare_qat"}, 0.0)
    assert [one.partition(":")[0] for one in told] == [
        "the script names curriculum",
        "the script names prepare_qat of torch's quantization",
    ]


@pytest.mark.parametrize(
    ("fact", "note"),
    [
        ("pads_sequences", "packed sequences are predicted as padded"),
        ("is_double", "the network computes in double precision, which is predicted as fp32"),
        ("state_in_parts", "the optimizer's state, and at stage 2 gradients, lie in parts"),
        ("differentiates_twice", "gradients are differentiated themselves"),
        ("masks_by_code", "FlexAttention is predicted as attention to everything"),
        ("transforms", "what vmap and grad of torch.func compute now and then is not counted"),
        ("is_sharded", "weights would lie in parts on several GPUs, and one process does not tell on how many"),
        (
            "has_smaller_batches",
            "steps have batches of different sizes: the largest of the first two is told;",
        ),
        ("has_shorter_inputs", "inputs of the first two steps have different lengths or sizes: predicted with the"),
    ],
)
def test_what_is_predicted_as_something_simpler_is_told(fact: str, note: str) -> None:
    told = captured_notes.notes_of({**RESULT, fact: True}, 0.0)
    assert [one.startswith(note) for one in told] == [True]
    assert not captured_notes.notes_of(RESULT, 0.0)


@pytest.mark.parametrize(
    ("version", "advised"),
    [
        ("{here}", "export it by hand"),
        ("{here}+cu130", "export it by hand"),
        ("1.0", "install the script's torch"),
    ],
)
def test_another_torch_is_advised_only_where_the_script_has_another_one(
    version: str, advised: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = subprocess.CompletedProcess[str]([], 1, "", "error: cannot convert export.pt2: no such operator\n")
    monkeypatch.setattr(programs, "run_captured", lambda *_, **__: refused)
    here = importlib.metadata.version("torch").partition("+")[0]
    with pytest.raises(NotCapturedError, match="no such operator") as caught:
        captured_job.convert(tmp_path, version.format(here=here))
    assert caught.value.remedy.startswith(advised)


class _Spectral(torch.nn.Module):
    """One layer of a Fourier neural operator."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(2, 2, 3, dtype=torch.cfloat))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        known = torch.fft.rfft(values)
        made = torch.zeros_like(known)
        made[..., :3] = torch.einsum("bcm,com->bom", known[..., :3], self.weight)
        answer: torch.Tensor = torch.fft.irfft(made)
        return answer


def test_complex_numbers_are_named_and_no_export_by_hand_is_advised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(verb: str, arguments: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        done = CliRunner().invoke(convert_command, arguments, standalone_mode=False)
        return subprocess.CompletedProcess([verb], 1, "", f"error: {done.exception}\n")

    torch.export.save(torch.export.export(_Spectral(), (torch.randn(2, 2, 8),)), tmp_path / EXPORT_FILE)
    monkeypatch.setattr(programs, "run_captured", run)
    with pytest.raises(NotCapturedError, match="computes with complex numbers") as caught:
        captured_job.convert(tmp_path, importlib.metadata.version("torch"))
    assert "by hand" not in caught.value.remedy


@pytest.mark.parametrize("place", ["", "train.py:42"])
def test_a_graph_for_one_batch_only_is_told_with_the_line_that_fixed_it_and_what_keeps_it_open(place: str) -> None:
    [note] = captured_notes.notes_of(RESULT | {"is_batch_fixed": True, "batch_fixed_at": place}, 0.0)
    assert ("because of train.py:42:" in note) is bool(place)
    assert "FIXED_BATCH" in note
    assert "x.shape[0]" in note


def test_images_in_a_list_are_told_what_can_be_done_about_another_batch() -> None:
    (note,) = captured_notes.notes_of({**RESULT, "is_batch_fixed": True, "batch_dimension": IN_A_LIST}, 0.0)
    assert "images in a list" in note
    assert "FIXED_BATCH" in note
    assert "capture the script with that batch" in note
    assert "x.shape" not in note  # no list has it


@pytest.mark.parametrize("batch", [4, 0])
def test_a_graph_of_one_batch_is_told_with_that_batch_where_its_inputs_do_not_show_it(batch: int) -> None:
    outcome = outcome_with({"is_batch_fixed": True, "unseen_batch": batch, "accumulation": 2})
    settings = captured_job._as_job(outcome, read_graph(GRAPH)).settings()
    assert settings["batch_size"] == 8
    assert settings.get("dimension_bindings") == ({"batch": 4} if batch else None)


@pytest.mark.parametrize(("name", "count"), [("dropped_passes", 7), ("asked_calls", 1)])
def test_calls_that_no_step_is_predicted_with_are_told_with_their_number(name: str, count: int) -> None:
    [note] = captured_notes.notes_of({**RESULT, name: count}, 0.0)
    assert f" {count} {'time' if count == 1 else 'times'} " in note
    assert "longer than predicted" in note
