"""Dense networks, recommenders and autoencoders on vectors."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from cotenant_profiler.zoo.batches import identifiers, vectors
from cotenant_profiler.zoo.registry import Architecture, Batch, register


def dense_stack(widths: tuple[int, ...]) -> nn.Sequential:
    """Return dense layers of the given widths with ReLU between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class EmbeddingRecommender(nn.Module):
    """Mean of embedded identifiers under a dense tower: (batch, fields) whole numbers -> (batch, 2)."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size, width)
        self.tower = dense_stack((width, 256, 64, 2))

    def forward(self, ids: Tensor) -> Tensor:
        """Return the scores of two classes."""
        scores: Tensor = self.tower(self.embedding(ids).mean(1))
        return scores


class InteractionRecommender(nn.Module):
    """Pairwise products of field embeddings under a dense tower (the shape of DLRM)."""

    def __init__(self, size: int, fields: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size, width)
        self.tower = dense_stack((fields * fields + fields * width, 128, 2))

    def forward(self, ids: Tensor) -> Tensor:
        """Return the scores of two classes."""
        embedded = self.embedding(ids)
        products = torch.matmul(embedded, embedded.transpose(1, 2))
        scores: Tensor = self.tower(torch.cat((products.flatten(1), embedded.flatten(1)), dim=1))
        return scores


def _vector_autoencoder_batch(batch: int) -> Batch:
    content = torch.randn(batch, 784)
    return content, content


register(
    Architecture(
        name="mlp",
        family="mlp",
        build=lambda: dense_stack((784, 768, 768, 10)),
        make_batch=vectors(784),
        batches=(32, 64, 128, 256),
        optimizer="adam",
    )
)
register(
    Architecture(
        name="mlp_deep",
        family="mlp",
        build=lambda: dense_stack((256,) + (256,) * 8 + (10,)),
        make_batch=vectors(256),
        batches=(64, 128, 256, 512),
    )
)
register(
    Architecture(
        name="vector_autoencoder",
        family="autoencoder",
        build=lambda: dense_stack((784, 256, 32, 256, 784)),
        make_batch=_vector_autoencoder_batch,
        batches=(64, 128, 256, 512),
        loss=functional.mse_loss,
        optimizer="adam",
    )
)
register(
    Architecture(
        name="recommender",
        family="recommender",
        build=lambda: EmbeddingRecommender(20_000, 32),
        make_batch=identifiers(20_000, 20),
        batches=(64, 128, 256, 512),
        optimizer="adam",
    )
)
register(
    Architecture(
        name="interaction_recommender",
        family="recommender",
        build=lambda: InteractionRecommender(10_000, 12, 16),
        make_batch=identifiers(10_000, 12),
        batches=(128, 256, 512, 1024),
        optimizer="sgd",
    )
)
