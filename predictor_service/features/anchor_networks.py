"""The networks of the zoo that a calibration measures, with their graphs.

What they took on the device at hand, over what the models of its type say of them, is how far off those models are
there. One convolves, one multiplies matrices, one launches many small operators: what they disagree about is the
calibration's own noise.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).with_name("anchors")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorNetwork:
    """A network of the zoo at one batch size; precision fp32, training.

    Attributes:
        network: Name in the zoo.
        batch_size: Samples per step.
        optimizer: That of the zoo.
    """

    network: str
    batch_size: int
    optimizer: str

    @property
    def graph_sha256(self) -> str:
        """Hash of its graph."""
        return hashlib.sha256(read_anchor_graph(self.network)).hexdigest()


STANDIN_ANCHORS: Final = (
    AnchorNetwork(network="resnet", batch_size=32, optimizer="momentum"),
    AnchorNetwork(network="mlp", batch_size=128, optimizer="adam"),
    AnchorNetwork(network="lstm", batch_size=32, optimizer="adam"),
)
"""All three were measured several times for datasets/cpu_standin."""
GPU_ANCHORS: Final = (
    AnchorNetwork(network="resnet50", batch_size=16, optimizer="momentum"),
    AnchorNetwork(network="vit_b16", batch_size=16, optimizer="adamw"),
    AnchorNetwork(network="shufflenet_v2_x1_0", batch_size=32, optimizer="momentum"),
)
"""They fit a GPU of 6 GiB."""


@lru_cache(maxsize=16)
def read_anchor_graph(network: str) -> bytes:
    """Return the stripped graph of an anchor.

    Raises:
        KeyError: No anchor has this name.
    """
    if network not in {anchor.network for anchor in (*STANDIN_ANCHORS, *GPU_ANCHORS)}:
        raise KeyError(network)
    return (_FOLDER / f"{network}.onnx").read_bytes()


def find_anchor_graph(graph_sha256: str) -> bytes | None:
    """Return the graph of the anchor with this hash; None when no anchor has it."""
    network = _networks_by_hash().get(graph_sha256)
    return read_anchor_graph(network) if network else None


@lru_cache(maxsize=1)
def _networks_by_hash() -> dict[str, str]:
    return {anchor.graph_sha256: anchor.network for anchor in (*STANDIN_ANCHORS, *GPU_ANCHORS)}
