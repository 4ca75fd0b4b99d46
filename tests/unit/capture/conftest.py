"""What no test of a capture leaves behind in torch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def no_recorder_stays() -> Iterator[None]:
    """Its hooks stay until its process ends: in a later test's step one would end that of the tests, with status 0."""
    before = [dict(hooks) for hooks in _hooks_of_optimizers()] or [{}, {}]
    yield
    for hooks, own in zip(_hooks_of_optimizers(), before, strict=False):  # none as long as nobody imports torch
        hooks.clear()
        hooks.update(own)


def _hooks_of_optimizers() -> list[dict[int, Any]]:
    optimizers = sys.modules.get("torch.optim.optimizer")
    if optimizers is None:
        return []
    return [optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks]
