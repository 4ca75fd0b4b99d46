"""The example trainings as processes, the way an agent starts them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

LOSS_LINE = re.compile(r"step (\d+)/\d+ loss (\S+)")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "examples.training.train", "--log-every", "1", "--batch-size", "8", *arguments]


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


def interrupt_after(step: int, arguments: list[str], variables: dict[str, str]) -> tuple[int, str]:
    """Send SIGTERM once `step` has been printed; returns exit code and output."""
    with subprocess.Popen(arguments, env=variables, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        output = ""
        for line in process.stdout:
            output += line
            if line.startswith(f"step {step}/"):
                process.send_signal(signal.SIGTERM)
        return process.wait(timeout=60), output


@pytest.mark.parametrize("model", ["lstm", "resnet"])
def test_a_terminated_training_checkpoints_leaves_with_85_and_continues_bit_by_bit(model: str, tmp_path: Path) -> None:
    arguments = command("--model", model, "--steps", "24")
    straight = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=100)

    code, output = interrupt_after(6, arguments, environment(tmp_path / "checkpoints"))
    manifest = json.loads((tmp_path / "checkpoints" / "cotenant_checkpoint.json").read_text())
    assert code == 85
    assert manifest["step"] == max(curve(output))
    assert all((tmp_path / "checkpoints" / name).exists() for name in manifest["files"])

    resumed = subprocess.run(
        arguments,
        env=environment(tmp_path / "second", COTENANT_RESUME=str(tmp_path / "checkpoints")),
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    assert min(curve(resumed.stdout)) == manifest["step"] + 1
    assert curve(output) | curve(resumed.stdout) == curve(straight.stdout)


def test_a_training_without_a_cluster_resumes_from_its_own_folder(tmp_path: Path) -> None:
    first = command("--model", "mlp", "--steps", "5", "--checkpoint-every", "2", "--checkpoint-dir", str(tmp_path))
    subprocess.run(first, check=True, capture_output=True, timeout=100)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000004.pt"]
    second = command("--model", "mlp", "--steps", "6", "--resume", "--checkpoint-dir", str(tmp_path))
    resumed = subprocess.run(second, check=True, capture_output=True, text=True, timeout=100)
    assert sorted(curve(resumed.stdout)) == [5, 6]
