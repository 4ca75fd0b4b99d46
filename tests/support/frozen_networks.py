"""Networks of which a part learns: adapters in a frozen one, new layers at the end of a frozen one."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from tests.support.everyday_networks import ResidualNetwork, WrittenOutAttention, images, texts

_RANK = 2


class Adapted(nn.Module):
    """A frozen layer with a narrow one around it that learns, as LoRA does it."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer
        self.down = nn.Linear(layer.in_features, _RANK, bias=False)
        self.up = nn.Linear(_RANK, layer.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.layer(x) + self.up(self.down(x))
        return answer


def adapted_attention() -> nn.Module:
    network = WrittenOutAttention().requires_grad_(False)
    for name in ("query", "value"):
        setattr(network, name, Adapted(getattr(network, name)))
    return network


def new_head() -> nn.Module:
    network = ResidualNetwork().requires_grad_(False)
    network.head = nn.Linear(16, 10)
    return network


def last_layers() -> nn.Module:
    network = ResidualNetwork().requires_grad_(False)
    for part in (network.second, network.head):
        part.requires_grad_(True)
    return network


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]] = {
    "adapted attention": (adapted_attention, texts),
    "new head": (new_head, images),
    "last layers": (last_layers, images),
}
"""By name: what builds the network, and what makes an input of so many samples."""
