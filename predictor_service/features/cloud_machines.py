"""Which card a machine of a cloud has, by the name of its type: g5.xlarge, a2-highgpu-1g, Standard_NC24ads_A100_v4.

A machine has one or several whole cards of one type; it means one of them. Those that have a part of a card, and
types that are not listed, mean none: a name that means a wrong card is worse than one that is asked back.

The clouds' own tables list them (Amazon's accelerated instances, Google's accelerator-optimized machines, Azure's sizes
with GPUs). Those tables were read for Google's series, Amazon's p3 to p5 and g3 to g6, and Azure's A100, H100 and ND
series; the others are written from memory.
"""

from __future__ import annotations

import re
from typing import Final

_V100, _A100, _H100 = "Tesla V100-SXM2-16GB", "NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3"
_LARGER_V100, _LARGER_A100 = "Tesla V100-SXM2-32GB", "NVIDIA A100-SXM4-80GB"
_SERVER_EDITION: Final = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
_SIZES_OF_AMAZON: Final = r"\.(?:\d{0,3}xlarge|metal(?:-\d+xl)?)"
_OF_AMAZON: Final = {
    "p2": "Tesla K80", "p3": _V100, "p3dn": _LARGER_V100, "p4d": _A100, "p4de": _LARGER_A100, "p5": _H100,
    "p5e": "NVIDIA H200", "p5en": "NVIDIA H200", "p6-b200": "NVIDIA B200", "p6-b300": "NVIDIA B300 SXM6 AC",
    "p6e-gb200": "NVIDIA GB200", "g3": "Tesla M60", "g3s": "Tesla M60",
    "g4dn": "Tesla T4", "g5": "NVIDIA A10G", "g6": "NVIDIA L4", "gr6": "NVIDIA L4", "g6e": "NVIDIA L40S",
    "g7e": _SERVER_EDITION,
}  # fmt: skip
_OF_GOOGLE: Final = {
    "a2-highgpu": _A100, "a2-megagpu": _A100, "a2-ultragpu": _LARGER_A100, "a3-highgpu": _H100, "a3-megagpu": _H100,
    "a3-edgegpu": _H100, "a3-ultragpu": "NVIDIA H200", "a4-highgpu": "NVIDIA B200", "a4x-highgpu": "NVIDIA GB200",
}  # fmt: skip
_PATTERNS: Final = (
    *((rf"(?:ml\.)?{series}{_SIZES_OF_AMAZON}", card) for series, card in _OF_AMAZON.items()),
    *((rf"{series}-\d{{1,2}}g(?:-nolssd|-metal)?", card) for series, card in _OF_GOOGLE.items()),
    (r"g2-standard-\d{1,2}", "NVIDIA L4"),
    (r"g4-standard-(?:48|96|192|384)", _SERVER_EDITION),
    (r"standard_nc\d{1,2}r?", "Tesla K80"),
    (r"standard_nc\d{1,2}r?s_v2", "Tesla P100-PCIE-16GB"),
    (r"standard_nc\d{1,2}r?s_v3", "Tesla V100-PCIE-16GB"),
    (r"standard_nc\d{1,2}as_t4_v3", "Tesla T4"),
    (r"standard_nc\d{2}ads_a100_v4", "NVIDIA A100 80GB PCIe"),
    (r"standard_ncc?\d{2}adi?s_h100_v5", "NVIDIA H100 NVL"),
    (r"standard_nd\d{1,2}r?s", "Tesla P40"),
    (r"standard_nd40rs_v2", _LARGER_V100),
    (r"standard_nd96asr(?:_a100)?_v4", _A100),
    (r"standard_nd96amsr_a100_v4", _LARGER_A100),
    (r"standard_nd96isrf?_h100_v5", _H100),
    (r"standard_nd96isrf?_h200_v5", "NVIDIA H200"),
    (r"standard_nv(?:36|72)ad(?:m)?s_a10_v5", "NVIDIA A10"),
)


def card_of_machine(name: str) -> str | None:
    """Return the full name of the card that a machine of this type has; None where the type is not known."""
    lowered = name.strip().lower()
    return next((card for pattern, card in _PATTERNS if re.fullmatch(pattern, lowered)), None)
