"""Detection, recommendation, reinforcement learning and graphs: YOLOv3, NCF, an autoencoder of ratings, A3C, GCN."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from cotenant_profiler.zoo.batches import images, token_loss
from cotenant_profiler.zoo.convolution_blocks import Shortcut, convolution
from cotenant_profiler.zoo.dense import dense_stack
from cotenant_profiler.zoo.registry import Architecture, Batch, register


class Detector(nn.Module):
    """Darknet-53 with heads at three scales (YOLOv3): (batch, 3, size, size) -> (batch, anchors, 85)."""

    def __init__(self, width: int, blocks: tuple[int, ...] = (1, 2, 8, 8, 4)) -> None:
        super().__init__()
        self.stages = nn.ModuleList()
        inputs = width
        self.stem = convolution(3, width)
        for count in blocks:
            body = [
                Shortcut(nn.Sequential(convolution(2 * inputs, inputs, 1), convolution(inputs, 2 * inputs)))
                for _ in range(count)
            ]
            self.stages.append(nn.Sequential(convolution(inputs, 2 * inputs, stride=2), *body))
            inputs *= 2
        wide = (inputs // 2, inputs // 4, inputs // 8)
        self.necks = nn.ModuleList(
            _neck(fed, kept)
            for fed, kept in ((inputs, wide[0]), (wide[0] + wide[1], wide[1]), (2 * wide[2] + wide[2], wide[2]))
        )
        self.bridges = nn.ModuleList(convolution(wide[level], wide[level + 1], 1) for level in range(2))
        self.heads = nn.ModuleList(
            nn.Sequential(convolution(kept, 2 * kept), nn.Conv2d(2 * kept, 255, 1)) for kept in wide
        )

    def forward(self, pictures: Tensor) -> Tensor:
        """Return box, objectness and 80 class scores of every anchor."""
        hidden = self.stem(pictures)
        kept = []
        for stage in self.stages:
            hidden = stage(hidden)
            kept.append(hidden)
        found = []
        for level, (neck, head) in enumerate(zip(self.necks, self.heads, strict=True)):
            hidden = neck(hidden)
            found.append(head(hidden).flatten(2).unflatten(1, (3, 85)).permute(0, 1, 3, 2).flatten(1, 2))
            if level < 2:
                raised = functional.interpolate(self.bridges[level](hidden), scale_factor=2.0, mode="nearest")
                hidden = torch.cat((raised, kept[-2 - level]), dim=1)
        return torch.cat(found, dim=1)


def _neck(inputs: int, kept: int) -> nn.Sequential:
    return nn.Sequential(
        convolution(inputs, kept, 1), convolution(kept, 2 * kept), convolution(2 * kept, kept, 1),
        convolution(kept, 2 * kept), convolution(2 * kept, kept, 1),
    )  # fmt: skip


class CollaborativeFilter(nn.Module):
    """Product of embeddings in parallel with a tower (NeuMF): (batch, 2) of user and item -> (batch, 1)."""

    def __init__(self, users: int, items: int, factors: int, tower: tuple[int, ...]) -> None:
        super().__init__()
        self.users = nn.Embedding(users, factors + tower[0] // 2)
        self.items = nn.Embedding(items, factors + tower[0] // 2)
        self.factors = factors
        self.tower = dense_stack(tower)
        self.head = nn.Linear(factors + tower[-1], 1)

    def forward(self, pairs: Tensor) -> Tensor:
        """Return one score per pair."""
        user, item = self.users(pairs[:, 0]), self.items(pairs[:, 1])
        product = user[:, : self.factors] * item[:, : self.factors]
        raised = self.tower(torch.cat((user[:, self.factors :], item[:, self.factors :]), dim=1))
        scores: Tensor = self.head(torch.cat((product, raised), dim=1))
        return scores


class GamePlayer(nn.Module):
    """Convolutions and a recurrent cell over a frame (A3C): (batch, 1, 42, 42) -> (batch, 7) of policy and value."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs in (1, channels, channels, channels):
            layers += [nn.Conv2d(inputs, channels, 3, 2, 1), nn.ELU()]
        self.eyes = nn.Sequential(*layers, nn.Flatten())
        self.recurrent = nn.LSTM(channels * 9, width, batch_first=True)
        self.head = nn.Linear(width, 7)

    def forward(self, frames: Tensor) -> Tensor:
        """Return six action scores and a value."""
        seen = self.eyes(frames).unsqueeze(1)
        scores: Tensor = self.head(self.recurrent(seen)[0][:, 0])
        return scores


class GraphConvolution(nn.Module):
    """Two layers of neighbor averages on one fixed graph: (batch, nodes, features) -> (batch, nodes, classes)."""

    adjacency: Tensor

    def __init__(self, nodes: int, features: int, width: int, classes: int) -> None:
        super().__init__()
        steps = torch.arange(nodes)
        distance = (steps[:, None] - steps[None, :]).remainder(nodes)
        near = ((distance < 4) | (distance > nodes - 4)).float()
        self.register_buffer("adjacency", near / near.sum(1, keepdim=True))
        self.first = nn.Linear(features, width)
        self.second = nn.Linear(width, classes)

    def forward(self, features: Tensor) -> Tensor:
        """Return the class scores of every node."""
        hidden = functional.relu(torch.matmul(self.adjacency, self.first(features)))
        return torch.matmul(self.adjacency, self.second(hidden))


def _detections(size: int, batch: int) -> Batch:
    cells = sum((size // stride) ** 2 for stride in (32, 16, 8))
    return torch.randn(batch, 3, size, size), torch.rand(batch, 3 * cells, 85)


def _pairs(users: int, items: int, batch: int) -> Batch:
    chosen = torch.stack((torch.randint(0, users, (batch,)), torch.randint(0, items, (batch,))), dim=1)
    return chosen, torch.rand(batch, 1)


def _ratings(items: int, batch: int) -> Batch:
    content = torch.rand(batch, items)
    return content, content


def _node_features(nodes: int, features: int, batch: int) -> Batch:
    return torch.randn(batch, nodes, features), torch.randint(0, 7, (batch, nodes))


for _name, _scale, _width, _blocks, _size, _batches in (
    ("yolov3", "full", 32, (1, 2, 8, 8, 4), 416, (1, 2, 4, 8, 16)),
    ("detector_small", "small", 4, (1, 1, 1, 1, 1), 64, (1, 2, 4, 8)),
):
    register(
        Architecture(
            name=_name,
            family="detector",
            build=partial(Detector, _width, _blocks),
            make_batch=partial(_detections, _size),
            batches=_batches,
            loss=functional.binary_cross_entropy_with_logits,
            scale=_scale,
        )
    )
register(
    Architecture(
        name="ncf",
        family="recommender",
        build=partial(CollaborativeFilter, 6_040, 3_706, 8, (64, 32, 16, 8)),
        make_batch=partial(_pairs, 6_040, 3_706),
        batches=(256, 1024, 4096, 16_384),
        loss=functional.binary_cross_entropy_with_logits,
        optimizer="adam",
        scale="full",
    )
)
register(
    Architecture(
        name="rating_autoencoder",
        family="recommender",
        build=partial(dense_stack, (20_108, 200, 20_108)),
        make_batch=partial(_ratings, 20_108),
        batches=(512, 1024, 2048, 4096, 8192),
        loss=functional.binary_cross_entropy_with_logits,
        optimizer="adam",
        scale="full",
    )
)
register(
    Architecture(
        name="a3c",
        family="reinforcement",
        build=partial(GamePlayer, 32, 256),
        make_batch=images(1, 42, 7),
        batches=(4, 16, 64),
        optimizer="adam",
        scale="full",
    )
)
register(
    Architecture(
        name="a3c_small",
        family="reinforcement",
        build=partial(GamePlayer, 8, 32),
        make_batch=images(1, 42, 7),
        batches=(4, 8, 16, 32),
        optimizer="adam",
    )
)
for _name, _scale, _nodes, _width in (("gcn", "full", 2_708, 256), ("gcn_small", "small", 64, 32)):
    register(
        Architecture(
            name=_name,
            family="graph",
            build=partial(GraphConvolution, _nodes, 128, _width, 7),
            make_batch=partial(_node_features, _nodes, 128),
            batches=(1, 2, 4, 8),
            loss=token_loss,
            optimizer="adam",
            scale=_scale,
        )
    )
