"""Saves and restores everything that a bit-identical continuation needs."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import nn

PATTERN = "step-*.pt"


def save(folder: Path, network: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> Path:
    """Write a checkpoint under a name of its own, complete or not at all.

    Args:
        folder: An existing folder.
        network: Network whose parameters and buffers are kept.
        optimizer: Its optimizer.
        step: Optimizer steps done so far.

    Returns:
        The file written.
    """
    target = folder / f"step-{step:09d}.pt"
    temporary = target.with_suffix(".new")
    state = {
        "step": step,
        "network": network.state_dict(),
        "optimizer": optimizer.state_dict(),
        "random_state": torch.get_rng_state(),
    }
    with temporary.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(target)
    return target


def restore(folder: Path, network: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load the newest checkpoint of `folder` into network and optimizer.

    Returns:
        Optimizer steps done so far; 0 when there is no checkpoint.
    """
    files = sorted(folder.glob(PATTERN))
    if not files:
        return 0
    state = torch.load(files[-1], map_location="cpu", weights_only=True)
    network.load_state_dict(state["network"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["random_state"])
    return int(state["step"])


def remove_older(folder: Path, newest: Path) -> None:
    """Delete every checkpoint of `folder` but `newest`."""
    for file in folder.glob(PATTERN):
        if file != newest:
            file.unlink()
