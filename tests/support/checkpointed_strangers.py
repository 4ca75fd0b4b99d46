"""Scripts that compute activations again in the backward pass, and what a capture of each must find."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tests.support.stranger import Stranger

_CHECKPOINTED = """
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    REENTRANT = False

    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(60, 16)
            self.layers = nn.ModuleList(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True) for _ in range(3))
            self.head = nn.Linear(16, 60)

        def forward(self, ids):
            hidden = self.table(ids)
            for layer in self.layers:
                if self.training:
                    hidden = checkpoint(layer, hidden, use_reentrant=REENTRANT)
                else:
                    hidden = layer(hidden)
            return self.head(hidden)

    def make():
        return Deep(), (torch.randint(0, 60, (4, 12)),), {}

    if __name__ == "__main__":
        import sys
        REENTRANT = sys.argv[1] == "1"
        net = Deep()
        optimizer = torch.optim.AdamW(net.parameters())
        for step in range(100):
            ids = torch.randint(0, 60, (6, 12))
            loss = nn.functional.cross_entropy(net(ids).flatten(0, 1), ids.flatten())
            optimizer.zero_grad(); loss.backward(); optimizer.step()
"""

CHECKPOINTED_STRANGERS: Mapping[str, Stranger] = MappingProxyType(
    {
        "checkpointed_layers": Stranger(
            source=_CHECKPOINTED,
            arguments=("0",),
            settings=(6, "adamw", "fp32", 1),
            recomputes=True,
        ),
        "checkpointed_layers_reentrant": Stranger(
            source=_CHECKPOINTED, arguments=("1",), settings=(6, "adamw", "fp32", 1), recomputes=True
        ),
    }
)
