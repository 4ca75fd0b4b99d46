"""Which stored models read the vectors that this program writes."""

from __future__ import annotations

from typing import Final

from predictor_service.features.devices import DeviceType
from predictor_service.features.job_features import FEATURE_VERSION

_BEFORE_TF32: Final = 4
_BEFORE_AUTOGRAD: Final = 5
_BEFORE_UNFOLDED: Final = 6


def means_the_same(feature_version: int, device: DeviceType | None) -> bool:
    """Whether the vectors of a feature version mean on this device what this program's mean.

    Version 5 times convolutions of 32 bits in TF32 where that is the default; other devices' vectors stayed. Version 6
    counts what attention, activations, normalizations and mixed precision keep as autograd does; most vectors stayed,
    and a model that learned before is served for the moment in which it is learned anew (`LEARNING_VERSION`). Version 7
    has two more features, by names that no model of before asks for.

    Args:
        feature_version: That a model was trained with.
        device: The type that the model is of; None = one that the table lacks.
    """
    if feature_version in (_BEFORE_AUTOGRAD, _BEFORE_UNFOLDED, FEATURE_VERSION):
        return True
    return feature_version == _BEFORE_TF32 and (device is None or device.convolution_precision("fp32") == "fp32")
