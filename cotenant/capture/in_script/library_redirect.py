"""Libraries that look at the machine before they train: what they would do on a GPU, they do on the CPU.

They refuse a GPU that is not there, or leave half precision out without a word; then nothing is captured, or fp32.
"""

# ruff: noqa: ANN401 (the libraries are the script's own: they are handed in, and nothing of them has a type here)
from __future__ import annotations

import contextlib
import functools
import sys
from typing import Any

from .absent_gpu import Ignored
from .sharding_redirect import SHARDING_LIBRARIES

_HALF_OF_LIGHTNING = ("16", "16-mixed")


def redirect_library(module: Any, requested: Any) -> None:
    """Changes one of `LIBRARIES` that has just been loaded; a release with other names in it is left as it is.

    Args:
        module: It.
        requested: What is remembered of the script's wishes.
    """
    with contextlib.suppress(AttributeError):
        LIBRARIES[module.__name__](module, requested)


def _redirect_trainer(module: Any, requested: Any) -> None:
    """Lets transformers take bf16 and tf32, which it asks the GPU about."""
    for name in ("is_torch_bf16_gpu_available", "is_torch_tf32_available"):
        if hasattr(module, name):
            setattr(module, name, lambda *args, **named: True)


def _redirect_accelerator(module: Any, requested: Any) -> None:
    """Lets accelerate run its networks in fp16, which it leaves out on a CPU; a scaler it has none."""
    own = module.Accelerator.prepare_model

    @functools.wraps(own)
    def prepare_model(self: Any, *args: Any, **named: Any) -> Any:
        before = self.native_amp
        self.native_amp = before or self.mixed_precision == "fp16"
        try:
            return own(self, *args, **named)
        finally:
            self.native_amp = before

    module.Accelerator.prepare_model = prepare_model


def _redirect_lightning(module: Any, requested: Any) -> None:
    """Lets Lightning train on as many processors as it was to train on GPUs; of fp16 it makes bf16 by itself."""
    connector = getattr(module, "_AcceleratorConnector", None) or module._Connector
    own = connector.__init__

    @functools.wraps(own)
    def init(self: Any, *args: Any, **named: Any) -> None:
        if named.get("accelerator") in ("gpu", "cuda"):
            requested.cuda_named = True
            named.update(accelerator="cpu", devices=_count(named.get("devices")))
        if str(named.get("precision")) in _HALF_OF_LIGHTNING:
            requested.stated = "fp16"
        own(self, *args, **named)

    connector.__init__ = init


def _redirect_flexible_attention(module: Any, requested: Any) -> None:
    """Lets attention with a mask of code, which has no gradients on a CPU, cost what all of it does without the mask.

    What a block mask leaves out is thus counted, and so is nothing of what changes the scores.
    """
    usual = sys.modules["torch"].nn.functional.scaled_dot_product_attention

    @functools.wraps(module.flex_attention)
    def flex_attention(
        query: Any,
        key: Any,
        value: Any,
        *args: Any,
        scale: Any = None,
        return_lse: bool = False,
        return_aux: Any = None,
        **named: Any,
    ) -> Any:
        requested.masks_by_code = True
        groups = query.shape[-3] // key.shape[-3]
        key, value = (each.repeat_interleave(groups, -3) if groups > 1 else each for each in (key, value))
        answer = usual(query, key, value, scale=scale)
        if return_aux is not None:
            asked = {name: answer.sum(-1) if wanted else None for name, wanted in return_aux._asdict().items()}
            return answer, module.AuxOutput(**asked)
        return (answer, answer.sum(-1)) if return_lse else answer

    module.flex_attention = flex_attention
    module.create_block_mask = lambda *args, **named: Ignored()


def _count(devices: Any) -> int:
    """How many devices are meant by a number, by their numbers, or by all that there are."""
    if isinstance(devices, str) and "," in devices:
        devices = [each for each in devices.split(",") if each.strip()]
    if isinstance(devices, (list, tuple)):
        return max(len(devices), 1)
    return max(int(devices), 1) if str(devices).isdigit() else 1


LIBRARIES = {
    **SHARDING_LIBRARIES,
    "torch.nn.attention.flex_attention": _redirect_flexible_attention,
    "transformers.training_args": _redirect_trainer,
    "accelerate.accelerator": _redirect_accelerator,
    "lightning.pytorch.trainer.connectors.accelerator_connector": _redirect_lightning,
    "pytorch_lightning.trainer.connectors.accelerator_connector": _redirect_lightning,
    "lightning.fabric.connector": _redirect_lightning,
    "lightning_fabric.connector": _redirect_lightning,
}
"""What is changed in each, by the module that holds it."""
