from __future__ import annotations

import argparse
from pathlib import Path

import pytest
import torch

from examples.training import checkpoint
from examples.training.tasks import TASKS, batch_indices, sample_order
from examples.training.train import Training, accumulate_gradients, build_training, parse_arguments

# BatchNorm sees the sub-batch: the documented exception.
EXACT = sorted(set(TASKS) - {"resnet"})


def options(model: str, *more: str) -> argparse.Namespace:
    return parse_arguments(["--model", model, "--dtype", "float64", *more])


def gradients(
    model: str, batch_size: int, sub_batch: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[float, list[torch.Tensor]]:
    monkeypatch.setenv("COTENANT_SUB_BATCH", str(sub_batch))
    training = build_training(options(model))
    batch = (training.data.inputs[:batch_size], training.data.targets[:batch_size])
    loss = accumulate_gradients(training.network, training.task, batch)
    return loss, [parameter.grad for parameter in training.network.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("sub_batch", [4, 5])
@pytest.mark.parametrize("model", EXACT)
def test_accumulated_gradients_are_those_of_the_whole_batch(
    model: str, sub_batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole_loss, whole = gradients(model, 12, 12, monkeypatch)
    loss, parts = gradients(model, 12, sub_batch, monkeypatch)
    assert loss == pytest.approx(whole_loss, rel=1e-12)
    for expected, gradient in zip(whole, parts, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-12)


def test_batch_normalization_is_the_documented_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    whole_loss, _ = gradients("resnet", 12, 12, monkeypatch)
    loss, _ = gradients("resnet", 12, 4, monkeypatch)
    assert loss != pytest.approx(whole_loss, rel=1e-6)


def losses(training: Training, steps: int, batch_size: int) -> list[float]:
    return [training.take_step(batch_size) for _ in range(steps)]


@pytest.mark.parametrize("model", ["cnn", "transformer"])
def test_the_loss_curve_is_the_same_with_any_sub_batch(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTENANT_SUB_BATCH", "12")
    whole = losses(build_training(options(model)), 5, 12)
    monkeypatch.setenv("COTENANT_SUB_BATCH", "5")
    assert losses(build_training(options(model)), 5, 12) == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize("model", sorted(TASKS))
def test_every_training_learns(model: str) -> None:
    training = build_training(options(model, "--dtype", "float32"))
    curve = losses(training, 8, 32)
    assert min(curve[4:]) < curve[0]


def test_the_order_of_samples_depends_on_seed_and_position_only() -> None:
    stream = torch.cat([batch_indices(7, step, 5, 12) for step in range(12)])
    assert torch.equal(stream, torch.cat([batch_indices(7, step, 30, 12) for step in range(2)]))
    assert torch.equal(stream[:12], sample_order(7, 0, 12))
    assert sorted(stream[12:24].tolist()) == list(range(12))
    assert not torch.equal(stream[:12], sample_order(8, 0, 12))


@pytest.mark.parametrize("model", ["lstm", "resnet"])
def test_a_restored_training_goes_on_bit_by_bit(model: str, tmp_path: Path) -> None:
    straight = build_training(options(model, "--dtype", "float32"))
    losses(straight, 2, 8)
    checkpoint.save(tmp_path, straight.network, straight.optimizer, straight.step)
    restarted = build_training(options(model, "--dtype", "float32", "--seed", "0"))
    losses(restarted, 1, 8)
    restarted.step = checkpoint.restore(tmp_path, restarted.network, restarted.optimizer)
    assert losses(restarted, 3, 8) == losses(straight, 3, 8)


def test_the_newest_checkpoint_is_restored_and_older_ones_can_be_removed(tmp_path: Path) -> None:
    training = build_training(options("mlp"))
    files = [checkpoint.save(tmp_path, training.network, training.optimizer, step) for step in (9, 10, 1000)]
    assert checkpoint.restore(tmp_path, training.network, training.optimizer) == 1000
    checkpoint.remove_older(tmp_path, files[-1])
    assert list(tmp_path.iterdir()) == [files[-1]]


def test_an_empty_folder_restores_nothing(tmp_path: Path) -> None:
    training = build_training(options("mlp"))
    assert checkpoint.restore(tmp_path, training.network, training.optimizer) == 0


@pytest.mark.parametrize("wrong", [["--steps", "0"], ["--model", "gpt9"], ["--sub-batch", "-1"]])
def test_wrong_arguments_are_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse_arguments(["--model", "mlp", *wrong])
    assert "error" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="checks the answer on a machine without a GPU")
def test_a_missing_gpu_is_named_with_the_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(["--model", "mlp", "--device", "cuda"])
    assert "use --device cpu" in capsys.readouterr().err
