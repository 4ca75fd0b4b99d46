"""Which stored models read the vectors that this program writes."""

from __future__ import annotations

from typing import Final

from predictor_service.features.devices import DeviceType
from predictor_service.features.job_features import FEATURE_VERSION

_BEFORE_TF32: Final = 4


def means_the_same(feature_version: int, device: DeviceType | None) -> bool:
    """Whether the vectors of a feature version mean on this device what this program's mean.

    Version 5 times convolutions of 32 bits in TF32 where that is the default; other devices' vectors stayed.

    Args:
        feature_version: That a model was trained with.
        device: The type that the model is of; None = one that the table lacks.
    """
    if feature_version == FEATURE_VERSION:
        return True
    return feature_version == _BEFORE_TF32 and (device is None or device.convolution_precision("fp32") == "fp32")
