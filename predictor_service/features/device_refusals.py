"""What is asked back where a name means no device, several, or one of which nothing that was learned holds."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Final

from predictor_service.errors import UnknownDeviceError
from predictor_service.features.devices import DEVICE_TYPES, GIBIBYTE, STANDIN_DEVICE, USUAL_TYPES, DeviceType

_OTHER_KINDS: Final = re.compile(r"(tpu|gaudi|hpu|trainium|trn|inferentia|inf|ascend|ipu|npu)\d*[a-z]?")
_OF_HOSTS: Final = re.compile(r"jetson|orin|xavier|tegra|thor|gb10|apple|mps|iris|uhd|igpu|radeon\d{3}m|8060s|8050s")


def is_of_another_kind(name: str) -> bool:
    """Whether a name is that of a processor for networks that is no GPU, by a word of it."""
    return any(_OTHER_KINDS.fullmatch(word) for word in _words(name))


def shares_memory_of_host(name: str) -> bool:
    """Whether a name is that of a GPU on the chip of its host: several times slower than the middle of the cards."""
    words = _words(name)
    joined = map("".join, itertools.pairwise(words))  # Radeon 780M
    return any(_OF_HOSTS.fullmatch(word) for word in (*words, *joined))


def refuse_other_kind(name: str) -> UnknownDeviceError:
    """A device of a kind that no model knows."""
    remedy = "name a GPU of NVIDIA or AMD that has its own memory"
    if not is_of_another_kind(name):
        remedy += (
            ", or state this one's memory (device_memory_bytes, --device-memory): it is answered as a middling card"
        )
    return UnknownDeviceError(
        f"device {name!r} is of a kind of which nothing was measured",
        remedy=remedy,
        details={"field": "device", "candidates": ""},
    )


def refuse_several(name: str, candidates: Sequence[DeviceType], memory_bytes: int) -> UnknownDeviceError:
    """A name that fits several types; with a memory that picks none of them where that is not 0."""
    listed = ", ".join(device.name for device in candidates)
    remedy = "name one of them, or state its memory (device_memory_bytes, --device-memory)"
    if memory_bytes:
        remedy = (
            f"none of them has {memory_bytes / GIBIBYTE:.4g} GiB: name one of them in full to be asked about with that "
            "memory, or a slice by its own name (NVIDIA A100-SXM4-40GB MIG 3g.20gb)"
        )
    return UnknownDeviceError(
        f"device {name!r} may be one of: {listed}",
        remedy=remedy,
        details={"field": "device", "candidates": listed},
    )


def refuse_slice_without_card(name: str, candidates: Iterable[DeviceType]) -> UnknownDeviceError:
    """A slice that is named without its card, as Kubernetes names what a pod asks for."""
    listed = ", ".join(part.name for part in candidates)
    return UnknownDeviceError(
        f"device {name!r} is a slice of a card that is not named; it may be one of: {listed or 'none that is known'}",
        remedy="name it with its card, e.g. NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        details={"field": "device", "candidates": listed},
    )


def refuse_unknown(name: str, nearest: Iterable[str]) -> UnknownDeviceError:
    """A word that means no device, with the known names that look like it."""
    listed = ", ".join(nearest)
    some = ", ".join([STANDIN_DEVICE, *USUAL_TYPES.values()])
    meant = f"did you mean {listed}?" if listed else f"known: {len(DEVICE_TYPES)} types, among them {some}."
    return UnknownDeviceError(
        f"device {name!r} is unknown",
        remedy=f"{meant} Of any other type state the memory (device_memory_bytes, --device-memory), or write the full "
        "name with its maker (NVIDIA ...)",
        details={"field": "device", "candidates": listed},
    )


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", name.lower())
