"""The example trainings as processes, with what an agent gives them."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest

from tests.support.cases import sampled
from tests.support.loaded_programs import run_program, start_program

PROGRAM = "examples.training.train"
LOSS_LINE = re.compile(r"step (\d+)/\d+ loss (\S+)")


def flags(*more: str) -> list[str]:
    return ["--log-every", "1", "--batch-size", "8", *more]


def train(folder: Path, arguments: list[str], variables: dict[str, str] | None = None) -> str:
    """Trains to the end; returns what was printed."""
    environment = dict(os.environ) if variables is None else variables
    done = run_program(PROGRAM, arguments, folder=folder, environment=environment, timeout_s=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


def environment(checkpoint_directory: Path, **more: str) -> dict[str, str]:
    return {
        **os.environ,
        "COTENANT_JOB_ID": "job-1",
        "COTENANT_FENCE": "1",
        "COTENANT_CHECKPOINT_DIR": str(checkpoint_directory),
        **more,
    }


def curve(output: str) -> dict[int, str]:
    return {int(step): loss for step, loss in LOSS_LINE.findall(output)}


def interrupt_after(step: int, folder: Path, arguments: list[str], variables: dict[str, str]) -> tuple[int, str]:
    """Send SIGTERM once `step` has been printed; returns exit code and output."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as ours, (folder / "errors").open("wb") as errors:
        process = start_program(PROGRAM, arguments, folder=folder, environment=variables, output=ours, errors=errors)
    output = ""
    with os.fdopen(reading) as lines:
        for line in lines:
            output += line
            if line.startswith(f"step {step}/"):
                process.send_signal(signal.SIGTERM)
    return process.wait(timeout=60), output


@pytest.mark.parametrize("model", sampled(["resnet", "lstm"], 1))
def test_a_terminated_training_checkpoints_leaves_with_85_and_continues_bit_by_bit(model: str, tmp_path: Path) -> None:
    arguments = flags("--model", model, "--steps", "24")
    straight = train(tmp_path, arguments)

    code, output = interrupt_after(6, tmp_path, arguments, environment(tmp_path / "checkpoints"))
    manifest = json.loads((tmp_path / "checkpoints" / "cotenant_checkpoint.json").read_text())
    assert code == 85
    assert manifest["step"] == max(curve(output))
    assert all((tmp_path / "checkpoints" / name).exists() for name in manifest["files"])

    variables = environment(tmp_path / "second", COTENANT_RESUME=str(tmp_path / "checkpoints"))
    resumed = train(tmp_path, arguments, variables)
    assert min(curve(resumed)) == manifest["step"] + 1
    assert curve(output) | curve(resumed) == curve(straight)


def test_a_training_without_a_cluster_resumes_from_its_own_folder(tmp_path: Path) -> None:
    own = ["--checkpoint-dir", str(tmp_path / "own")]
    train(tmp_path, flags("--model", "mlp", "--steps", "5", "--checkpoint-every", "2", *own))
    assert [path.name for path in (tmp_path / "own").iterdir()] == ["step-000000004.pt"]
    resumed = train(tmp_path, flags("--model", "mlp", "--steps", "6", "--resume", *own))
    assert sorted(curve(resumed)) == [5, 6]
