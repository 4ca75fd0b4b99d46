"""Small networks of the kinds that specialists train, built as they build them; `everyday_networks` has the others."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

_WORDS, _PLACES, _WIDTH, _HEADS = 96, 12, 16, 2


class LayerNorm2d(nn.LayerNorm):
    """Normalizes the channels of images, as ConvNeXt does."""

    def forward(self, x: Tensor) -> Tensor:
        x = functional.layer_norm(x.permute(0, 2, 3, 1), self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class ScaledBlocks(nn.Module):
    """ConvNeXt: depthwise 7x7, layer normalization of the last dimension, GELU, a scale for each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 4, 4), LayerNorm2d(8))
        self.depthwise = nn.Conv2d(8, 8, 7, padding=3, groups=8)
        self.norm, self.wide, self.narrow = nn.LayerNorm(8), nn.Linear(8, 32), nn.Linear(32, 8)
        self.scale = nn.Parameter(torch.ones(8))
        self.down = nn.Sequential(LayerNorm2d(8), nn.Conv2d(8, 16, 2, 2))
        self.head = nn.Linear(16, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = self.stem(image)
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.narrow(functional.gelu(self.wide(y)))
        x = self.down(x + y.permute(0, 3, 1, 2))
        answer: Tensor = self.head(functional.layer_norm(x.mean([-2, -1]), (16,)))
        return answer


class SqueezedBlocks(nn.Module):
    """EfficientNet: depthwise convolutions, SiLU, channels gated by what is squeezed from all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.SiLU(inplace=True))
        self.wide = nn.Sequential(nn.Conv2d(8, 16, 1, bias=False), nn.BatchNorm2d(16), nn.SiLU(inplace=True))
        self.depthwise = nn.Sequential(
            nn.Conv2d(16, 16, 5, padding=2, groups=16, bias=False), nn.BatchNorm2d(16), nn.SiLU(inplace=True)
        )
        self.pool, self.squeeze, self.excite = nn.AdaptiveAvgPool2d(1), nn.Conv2d(16, 4, 1), nn.Conv2d(4, 16, 1)
        self.narrow = nn.Sequential(nn.Conv2d(16, 8, 1, bias=False), nn.BatchNorm2d(8))
        self.drop, self.head = nn.Dropout(0.2), nn.Linear(8, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = self.stem(image)
        y = self.depthwise(self.wide(x))
        gate = torch.sigmoid(self.excite(functional.silu(self.squeeze(self.pool(y)))))
        x = x + self.narrow(gate * y)
        answer: Tensor = self.head(self.drop(self.pool(x).flatten(1)))
        return answer


class ConcatenatedLayers(nn.Module):
    """DenseNet: every layer sees all that came before it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        widths = [8 + 4 * layer for layer in range(3)]
        self.norms = nn.ModuleList([nn.BatchNorm2d(width) for width in widths])
        self.squeezes = nn.ModuleList([nn.Conv2d(width, 8, 1, bias=False) for width in widths])
        self.inner = nn.ModuleList([nn.BatchNorm2d(8) for _ in widths])
        self.layers = nn.ModuleList([nn.Conv2d(8, 4, 3, padding=1, bias=False) for _ in widths])
        self.transition = nn.Sequential(
            nn.BatchNorm2d(20), nn.ReLU(inplace=True), nn.Conv2d(20, 10, 1), nn.AvgPool2d(2, 2)
        )
        self.head = nn.Linear(10, 10)

    def forward(self, image: Tensor) -> Tensor:
        features = [self.stem(image)]
        for norm, squeeze, inner, layer in zip(self.norms, self.squeezes, self.inner, self.layers, strict=True):
            x = squeeze(functional.relu(norm(torch.cat(features, 1)), inplace=True))
            features.append(layer(functional.relu(inner(x), inplace=True)))
        x = functional.relu(self.transition(torch.cat(features, 1)), inplace=True)
        answer: Tensor = self.head(functional.adaptive_avg_pool2d(x, (1, 1)).flatten(1))
        return answer


class RotaryDecoder(nn.Module):
    """A decoder as Llama's: root mean squares, rotated queries and keys, shared keys, gated SiLU, tied embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(_WORDS, _WIDTH)
        self.norms = nn.ParameterList([nn.Parameter(torch.ones(_WIDTH)) for _ in range(3)])
        self.query = nn.Linear(_WIDTH, _WIDTH, bias=False)
        self.key, self.value = nn.Linear(_WIDTH, 8, bias=False), nn.Linear(_WIDTH, 8, bias=False)
        self.output = nn.Linear(_WIDTH, _WIDTH, bias=False)
        self.gate, self.up = nn.Linear(_WIDTH, 40, bias=False), nn.Linear(_WIDTH, 40, bias=False)
        self.down = nn.Linear(40, _WIDTH, bias=False)
        angles = torch.outer(torch.arange(_PLACES).float(), 1.0 / 100 ** (torch.arange(0, 4, 2).float() / 4))
        self.register_buffer("cosines", torch.cat([angles, angles], -1).cos(), persistent=False)
        self.register_buffer("sines", torch.cat([angles, angles], -1).sin(), persistent=False)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        normal = _root_mean_square(x, self.norms[0])
        query, key, value = (
            part(normal).view(x.shape[0], _PLACES, -1, 4).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        query, key = (
            each * self.get_buffer("cosines") + _rotated(each) * self.get_buffer("sines") for each in (query, key)
        )
        seen = functional.scaled_dot_product_attention(
            query, key.repeat_interleave(2, 1), value.repeat_interleave(2, 1), is_causal=True
        )
        x = x + self.output(seen.transpose(1, 2).reshape(x.shape[0], _PLACES, _WIDTH))
        normal = _root_mean_square(x, self.norms[1])
        x = x + self.down(functional.silu(self.gate(normal)) * self.up(normal))
        return functional.linear(_root_mean_square(x, self.norms[2]), self.words.weight)


class RelativeBias(nn.Module):
    """A block as T5's: no scale, a learned bias for each distance, dropout of weights, gated GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.bias = nn.Embedding(_WORDS, _WIDTH), nn.Embedding(8, _HEADS)
        self.norms = nn.ParameterList([nn.Parameter(torch.ones(_WIDTH)) for _ in range(2)])
        self.query, self.key, self.value, self.output = (nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(4))
        self.gate, self.up, self.down = nn.Linear(_WIDTH, 32), nn.Linear(_WIDTH, 32), nn.Linear(32, _WIDTH)
        self.drop = nn.Dropout(0.1)
        places = torch.arange(_PLACES)
        self.register_buffer("distances", (places[None] - places[:, None]).abs().clamp(max=7), persistent=False)

    def forward(self, words: Tensor) -> Tensor:
        x = self.drop(self.words(words))
        normal = _root_mean_square(x, self.norms[0])
        query, key, value = (_by_heads(part(normal)) for part in (self.query, self.key, self.value))
        scores = torch.matmul(query, key.transpose(3, 2)) + self.bias(self.distances).permute(2, 0, 1).unsqueeze(0)
        weights = self.drop(functional.softmax(scores.float(), dim=-1).type_as(scores))
        x = x + self.drop(self.output(torch.matmul(weights, value).transpose(1, 2).flatten(2)))
        normal = _root_mean_square(x, self.norms[1])
        answer: Tensor = x + self.drop(self.down(self.drop(functional.gelu(self.gate(normal)) * self.up(normal))))
        return answer


class SpokenWords(nn.Module):
    """wav2vec: convolutions over samples of sound, group normalization, an encoder of PyTorch's own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(1, 8, 10, 5, bias=False), nn.Conv1d(8, _WIDTH, 3, 2, bias=False)
        self.group, self.norm = nn.GroupNorm(8, 8), nn.LayerNorm(_WIDTH)
        self.places = nn.utils.parametrizations.weight_norm(nn.Conv1d(_WIDTH, _WIDTH, 4, padding=2, groups=2), dim=2)
        self.encoder = nn.TransformerEncoderLayer(_WIDTH, _HEADS, 32, dropout=0.1, activation="gelu", batch_first=True)
        self.head = nn.Linear(_WIDTH, 20)

    def forward(self, sound: Tensor) -> Tensor:
        x = functional.gelu(self.second(functional.gelu(self.group(self.first(sound.unsqueeze(1))))))
        x = self.norm(x.transpose(1, 2))
        x = x + functional.gelu(self.places(x.transpose(1, 2))[:, :, :-1]).transpose(1, 2)
        return functional.log_softmax(self.head(self.encoder(x)), dim=-1)


class RecurrentTranslator(nn.Module):
    """Encoder and decoder of gated recurrent units with attention over what the encoder said."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(_WORDS, _WIDTH, padding_idx=0)
        self.encoder = nn.GRU(_WIDTH, 8, batch_first=True, bidirectional=True)
        self.decoder = nn.GRU(_WIDTH, _WIDTH, batch_first=True)
        self.mixed, self.head = nn.Linear(2 * _WIDTH, _WIDTH), nn.Linear(_WIDTH, _WORDS)
        self.drop = nn.Dropout(0.2)

    def forward(self, words: Tensor) -> Tensor:
        said, _ = self.encoder(self.drop(self.words(words)))
        asked, _ = self.decoder(self.drop(self.words(words)))
        weights = functional.softmax(torch.bmm(asked, said.transpose(1, 2)), dim=2)
        mixed = torch.tanh(self.mixed(torch.cat([torch.bmm(weights, said), asked], 2)))
        return functional.log_softmax(self.head(self.drop(mixed)), dim=-1)


class Recommender(nn.Module):
    """DLRM: bags of embeddings, and products of all pairs of them."""

    def __init__(self) -> None:
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 8), nn.ReLU())
        self.bags = nn.ModuleList([nn.EmbeddingBag(50, 8, mode="sum") for _ in range(3)])
        self.top = nn.Sequential(nn.Linear(14, 16), nn.ReLU(), nn.Linear(16, 1), nn.Sigmoid())
        rows, columns = torch.tril_indices(4, 4, -1)
        self.register_buffer("pairs", rows * 4 + columns, persistent=False)

    def forward(self, dense: Tensor, first: Tensor, second: Tensor, third: Tensor) -> Tensor:
        x = self.bottom(dense)
        looked_up = [bag(given) for bag, given in zip(self.bags, (first, second, third), strict=True)]
        rows = torch.stack([x, *looked_up], 1)
        products = torch.bmm(rows, rows.transpose(1, 2)).flatten(1)[:, self.get_buffer("pairs")]
        answer: Tensor = self.top(torch.cat([x, products], 1))
        return answer


class RadianceField(nn.Module):
    """NeRF: places along rays as sines and cosines, a perceptron, and light gathered along each ray."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("octaves", 2.0 ** torch.arange(4), persistent=False)
        self.first = nn.Sequential(nn.Linear(27, 32), nn.ReLU(inplace=True), nn.Linear(32, 32), nn.ReLU(inplace=True))
        self.second = nn.Sequential(nn.Linear(59, 32), nn.ReLU(inplace=True))
        self.density, self.color = nn.Linear(32, 1), nn.Linear(32, 3)

    def forward(self, places: Tensor) -> Tensor:
        angles = (places.unsqueeze(-1) * self.get_buffer("octaves")).flatten(-2)
        coded = torch.cat([places, angles.sin(), angles.cos()], -1)
        x = self.second(torch.cat([self.first(coded), coded], -1))
        blocked = functional.softplus(self.density(x)) * 0.1
        opaque, passed = 1.0 - torch.exp(-blocked), torch.exp(-torch.cumsum(blocked, 1))
        return (opaque * passed * torch.sigmoid(self.color(x))).sum(1)


class RoutedExperts(nn.Module):
    """A mixture of experts: each word goes to the best two, whose answers are weighed."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.router = nn.Embedding(_WORDS, _WIDTH), nn.Linear(_WIDTH, 4, bias=False)
        self.inner, self.outer = nn.Parameter(torch.zeros(4, _WIDTH, 32)), nn.Parameter(torch.zeros(4, 32, _WIDTH))
        self.norm, self.head = nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, _WORDS)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words).flatten(0, 1)
        best, chosen = functional.softmax(self.router(x), dim=-1).topk(2, dim=-1)
        best = best / best.sum(-1, keepdim=True)
        shares = torch.zeros(x.shape[0], 4, dtype=best.dtype, device=x.device).scatter(1, chosen, best)
        inner = functional.relu(torch.einsum("nd,edh->neh", x, self.inner))
        answers = torch.einsum("neh,ehd->ned", inner, self.outer)
        x = self.norm(x + (shares.unsqueeze(-1) * answers).sum(1))
        answer: Tensor = self.head(x.unflatten(0, (-1, _PLACES)))
        return answer


class PointCloud(nn.Module):
    """PointNet: points turned by a learned matrix, the same perceptron for each, the largest of all points."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = nn.Sequential(nn.Conv1d(3, 8, 1), nn.BatchNorm1d(8), nn.ReLU())
        self.matrix = nn.Linear(8, 9)
        self.first = nn.Sequential(nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.ReLU())
        self.second = nn.Sequential(nn.Conv1d(16, 32, 1), nn.BatchNorm1d(32))
        self.head = nn.Sequential(nn.Linear(32, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 10))

    def forward(self, points: Tensor) -> Tensor:
        turning = self.matrix(torch.max(self.turn(points), 2)[0]).view(-1, 3, 3) + torch.eye(3, device=points.device)
        turned = torch.bmm(points.transpose(2, 1), turning).transpose(2, 1)
        x = torch.max(self.second(self.first(turned)), 2, keepdim=True)[0]
        return functional.log_softmax(self.head(x.flatten(1)), dim=1)


class Volumes(nn.Module):
    """A U-Net of volumes: instance normalization, leaky and learned ReLU, transposed and trilinear ways up."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv3d(1, 4, 3, padding=1), nn.InstanceNorm3d(4, affine=True), nn.LeakyReLU(0.01))
        self.down = nn.Sequential(nn.Conv3d(4, 8, 3, padding=1), nn.BatchNorm3d(8), nn.ReLU(inplace=True))
        self.up = nn.ConvTranspose3d(8, 4, 2, 2)
        self.fused = nn.Sequential(nn.Conv3d(8, 4, 3, padding=1), nn.PReLU())
        self.head = nn.Conv3d(12, 2, 1)

    def forward(self, volume: Tensor) -> Tensor:
        x = self.stem(volume)
        y = self.down(functional.max_pool3d(x, 2))
        z = self.fused(torch.cat([self.up(y), x], 1))
        wide = functional.interpolate(y, scale_factor=2.0, mode="trilinear", align_corners=False)
        answer: Tensor = self.head(torch.cat([z, wide], 1))
        return answer


def _root_mean_square(x: Tensor, scale: Tensor) -> Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return scale * wide.type_as(x)


def _rotated(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


def _by_heads(x: Tensor) -> Tensor:
    return x.view(x.shape[0], _PLACES, _HEADS, _WIDTH // _HEADS).transpose(1, 2)


def _images(batch: int) -> Tensor:
    return torch.zeros(batch, 3, 32, 32)


def _texts(batch: int) -> Tensor:
    return torch.zeros(batch, _PLACES, dtype=torch.long)


def _clicks(batch: int) -> tuple[Tensor, ...]:
    return (torch.zeros(batch, 13), *(torch.zeros(batch, 5, dtype=torch.long) for _ in range(3)))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor | tuple[Tensor, ...]]]] = {
    "scaled blocks": (ScaledBlocks, _images),
    "squeezed blocks": (SqueezedBlocks, _images),
    "concatenated layers": (ConcatenatedLayers, _images),
    "rotary decoder": (RotaryDecoder, _texts),
    "relative bias": (RelativeBias, _texts),
    "spoken words": (SpokenWords, lambda batch: torch.zeros(batch, 200)),
    "recurrent translator": (RecurrentTranslator, _texts),
    "recommender": (Recommender, _clicks),
    "radiance field": (RadianceField, lambda batch: torch.zeros(batch, 16, 3)),
    "routed experts": (RoutedExperts, _texts),
    "point cloud": (PointCloud, lambda batch: torch.zeros(batch, 3, 24)),
    "volumes": (Volumes, lambda batch: torch.zeros(batch, 1, 8, 8, 8)),
}
"""By name: what builds the network, and what makes its inputs of so many samples."""
